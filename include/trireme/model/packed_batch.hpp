// Tokens of several sequences in one batch. Legend: T tokens, B sequences.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace trireme::model {

// Sequences one after another, never padded. Owns its tensors; on the model's device.
struct PackedBatch {
  at::Tensor ids;                      // i64 [T]
  at::Tensor positions;                // i64 [T], from 0 in each sequence
  std::vector<int64_t> cu_seqlens{0};  // [B + 1], host
  at::Tensor cu_seqlens_device;        // i32 [B + 1] on CUDA, undefined on CPU
  int64_t max_length = 0;
  // [B] tokens of each sequence, where the batch has not all of them (a step of generation); else
  // empty.
  std::vector<int64_t> whole_lengths;
  // [B] which of a model's adapters each sequence has, -1: none; empty unless it has several.
  std::vector<int32_t> adapters;

  int64_t tokens() const { return cu_seqlens.back(); }
  int64_t sequences() const { return static_cast<int64_t>(cu_seqlens.size()) - 1; }
};
PackedBatch pack(std::span<const std::span<const int32_t>> sequences, at::Device device);

}  // namespace trireme::model
