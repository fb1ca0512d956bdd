// LibTorch calls whose signature differs between versions: all of this module's are here.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/model/operations.hpp"

namespace trireme::model::compat {

// Sequences one after another: where each one's queries and keys begin, i32 [B + 1] on the device,
// and the largest numbers of them.
struct PackedEnds {
  const at::Tensor& queries;
  const at::Tensor& keys;
  int64_t most_queries = 0;
  int64_t most_keys = 0;
};
// Causal attention of a sequence's last positions (queries) to all of its positions (keys) by one
// of LibTorch's kernels for CUDA: flash for bf16 and fp16, differentiable; the memory-efficient one
// for fp32, forward only. q [T, H, hd], k and v [S, K, hd].
at::Tensor varlen_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const PackedEnds& ends, const Scores& scores);

}  // namespace trireme::model::compat
