#include "torch/torch.hpp"

#include "trireme/model/strategy.hpp"

#include "packed_attention.hpp"
#include "torch_compat.hpp"
#include "trireme/kernels/row_invariant.hpp"

namespace trireme::model {

at::Tensor Strategy::linear(const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const Parameter&) {
  return kernels::linear(x, weight, bias);
}

at::Tensor Strategy::attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const Scores& scores, const PackedBatch& part, int) {
  const bool flash = q.is_cuda() && scores.cap == 0 &&
                     (q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf);
  const auto& ends = part.cu_seqlens_device;
  if (flash && part.tokens() > 0)
    return compat::varlen_attention(q, k, v, {ends, ends, part.max_length, part.max_length},
                                    scores);
  return attend_packed(q, k, v, scores, part.cu_seqlens);
}

}  // namespace trireme::model
