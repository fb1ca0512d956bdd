#include "torch/torch.hpp"

#include "torch_compat.hpp"

#include <ATen/ops/_flash_attention_forward.h>

#include <tuple>

namespace trireme::model::compat {

at::Tensor varlen_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& cu_seqlens,
                            int64_t max_length) {
  // LibTorch 2.11: (q, k, v, cu_q, cu_k, max_q, max_k, dropout, causal, debug mask), the rest by default.
  auto result =
      at::_flash_attention_forward(q.contiguous(), k.contiguous(), v.contiguous(), cu_seqlens, cu_seqlens, max_length, max_length,
                                   /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false, /*scale=*/std::nullopt);
  return std::get<0>(std::move(result));
}

}  // namespace trireme::model::compat
