// Draws the next tokens where the logits lie, by the functors of kernels/draw.hpp: on devices
// without a word to the host until the ids are there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "draw.hpp"
#include "trireme/comm/rank_sums.hpp"
#include "trireme/generate/weights.hpp"
#include "trireme/kernels/decode_gemm.hpp"
#include "trireme/kernels/draw.hpp"
#include "upload.hpp"

namespace trireme::generate {

class TensorSampler {
 public:
  // Slice `rank` of a vocabulary that is cut at `slice_first`, whose last number is its size.
  // `sums` joins the tensor-parallel ranks and takes memory of `device`; null: one rank.
  TensorSampler(kernels::ElementType type, std::vector<int64_t> slice_first, int rank,
                at::Device device, const kernels::DrawKernels& kernels, comm::RankSums* sums);

  at::Device device() const { return device_; }
  // Says what draw() will need on the device.
  void plan(std::span<const DrawRequest> requests, Upload& upload);
  // Draws the planned tokens from logits [rows, this rank's slice] on the device, once the upload
  // is sent; the same on every rank. Waits for the device once. Collective over the ranks.
  std::vector<Drawn> draw(const at::Tensor& logits, const Upload& upload);

 private:
  kernels::DrawArguments arguments(const at::Tensor& logits, const Upload& upload);
  std::vector<kernels::DrawResult> results(const at::Tensor& on_device, int64_t rows) const;

  int64_t own_ids() const {
    return slice_first_[static_cast<size_t>(rank_) + 1] - slice_first_[static_cast<size_t>(rank_)];
  }

  kernels::ElementType type_;
  std::vector<int64_t> slice_first_;
  int64_t longest_slice_ = 0;
  int rank_;
  at::Device device_;
  const kernels::DrawKernels& kernels_;
  comm::RankSums* sums_;
  std::vector<kernels::DrawRow> rows_;
  int32_t changed_ = 0, truncated_ = 0;
  Upload::Piece row_piece_, forbidden_piece_, bias_piece_, seen_piece_, slice_piece_;
  enum Scratch : uint8_t {
    running,
    values,
    places,
    segments,
    changed,
    slices,
    summaries,
    drawn,
    scratch_count
  };
  at::Tensor scratch_[scratch_count];  // bytes, as many as were ever needed
};

// Where the cuts are for TensorSampler.
std::vector<int64_t> vocabulary_cuts(const GeneratorWeights& weights, size_t head);

// A difference between draws by these kernels on a device and the host's, on artificial logits;
// empty: none.
std::string draws_problem(at::Device device, const kernels::DrawKernels& kernels);

}  // namespace trireme::generate
