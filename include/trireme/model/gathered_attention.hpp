// Attention of a step of generation: the last positions of several sequences to all positions of
// each. Legend: B sequences, M rows of the step (queries), S positions of all sequences (keys), H
// heads, K KV heads, hd head size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trireme/model/operations.hpp"

namespace trireme::model {

// Sequence b has queries [queries[b], queries[b + 1]) and keys [keys[b], keys[b + 1]), of which its
// queries are the last.
struct GatheredLengths {
  std::vector<int64_t> queries{0}, keys{0};  // [B + 1]
  at::Tensor queries_device, keys_device;    // the same, i32 on the device; undefined on CPUs
  int64_t most_queries = 0, most_keys = 0;   // of one sequence

  void add(int64_t its_queries, int64_t its_keys);
};

// softmax(scale q k^T) v, where every query sees the keys up to its own position: causal from the
// bottom right, and no more than its window. q [M, H, hd], k and v [S, K, hd] -> [M, H, hd]. One
// kernel on CUDA; on CPUs, and where scores are capped, one sequence after another. Forward only.
at::Tensor attend_gathered(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const Scores& scores, const GatheredLengths& lengths);

}  // namespace trireme::model
