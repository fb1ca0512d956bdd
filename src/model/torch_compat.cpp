#include "torch/torch.hpp"

#include "torch_compat.hpp"

#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_forward.h>

#include <tuple>

namespace trireme::model::compat {

namespace {

// Has no grouped heads: keys and values are repeated.
at::Tensor efficient_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const PackedEnds& ends, const Scores& scores) {
  constexpr int64_t causal_from_bottom_right = 2;  // sdp::CustomMaskType
  const int64_t group = q.size(1) / k.size(1);
  const auto repeated = [&](const at::Tensor& x) {
    return at::repeat_interleave(x, group, 1).unsqueeze(0);
  };
  // LibTorch 2.11: (q, k, v, bias, cu_q, cu_k, max_q, max_k, dropout, mask type, log-sum-exp,
  // scale), the rest by default. [1, T, H, hd]
  auto result = at::_efficient_attention_forward(
      q.contiguous().unsqueeze(0), repeated(k), repeated(v), std::nullopt, ends.queries, ends.keys,
      ends.most_queries, ends.most_keys, /*dropout_p=*/0.0, causal_from_bottom_right,
      /*compute_log_sumexp=*/false, scores.scale, /*seqlen_k=*/std::nullopt,
      scores.window > 0 ? std::optional(scores.window) : std::nullopt);
  return std::get<0>(std::move(result)).squeeze(0);
}

}  // namespace

at::Tensor varlen_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const PackedEnds& ends, const Scores& scores) {
  if (q.scalar_type() == at::kFloat) return efficient_attention(q, k, v, ends, scores);
  // LibTorch 2.11: (q, k, v, cu_q, cu_k, max_q, max_k, dropout, causal, debug mask), the rest by
  // default. Its causal is bottom-right.
  auto result = at::_flash_attention_forward(
      q.contiguous(), k.contiguous(), v.contiguous(), ends.queries, ends.keys, ends.most_queries,
      ends.most_keys, /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false,
      scores.scale, scores.window > 0 ? std::optional<int64_t>(scores.window - 1) : std::nullopt,
      scores.window > 0 ? std::optional<int64_t>(0) : std::nullopt);
  return std::get<0>(std::move(result));
}

}  // namespace trireme::model::compat
