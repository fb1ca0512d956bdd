// Draws the next tokens where the logits lie, by the functors of kernels/draw.hpp: on devices without a word to the host until the ids are there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "draw.hpp"
#include "local_shape.hpp"
#include "trireme/comm/rank_sums.hpp"
#include "trireme/kernels/draw.hpp"
#include "upload.hpp"

namespace trireme::generate {

class TensorSampler {
 public:
  // `sums` joins the tensor-parallel ranks and takes memory of `device`; null: one rank.
  TensorSampler(const GeneratorWeights& weights, size_t head, const LocalShape& shape, at::Device device, const kernels::DrawKernels& kernels,
                comm::RankSums* sums);

  at::Device device() const { return device_; }
  // Says what draw() will need on the device.
  void plan(std::span<const DrawRequest> requests, Upload& upload);
  // What was planned, from logits [rows, this rank's slice] on the device, once the upload is sent; the same on every rank. Waits for the device
  // once. Collective over the ranks.
  std::vector<Drawn> draw(std::span<const DrawRequest> requests, const at::Tensor& logits, const Upload& upload);

 private:
  kernels::DrawArguments arguments(const at::Tensor& logits, const Upload& upload);
  std::vector<kernels::DrawResult> results(const at::Tensor& on_device, int64_t rows) const;

  LocalShape shape_;
  std::vector<int64_t> slice_first_;  // of each rank, and the vocabulary
  int64_t longest_slice_ = 0;
  int rank_;
  at::Device device_;
  const kernels::DrawKernels& kernels_;
  comm::RankSums* sums_;
  std::vector<kernels::DrawRow> rows_;
  int32_t masked_ = 0, truncated_ = 0;
  Upload::Piece row_piece_, forbidden_piece_, slice_piece_;
  enum Scratch : uint8_t { running, values, places, segments, masked, slices, summaries, drawn, scratch_count };
  at::Tensor scratch_[scratch_count];  // bytes, as many as were ever needed
};

}  // namespace trireme::generate
