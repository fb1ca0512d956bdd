// The forward pass with LibTorch's operations through the model's own list of operations, on any
// device: the reference for the fused kernels, and the path on GPUs.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "decode_graphs.hpp"
#include "local_shape.hpp"
#include "paged_queries.hpp"
#include "product_window.hpp"
#include "step_backend.hpp"
#include "step_indices.hpp"
#include "tensor_sampler.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/comm/rank_sums.hpp"
#include "trireme/model/forward.hpp"

namespace trireme::generate {

class TorchBackend final : public StepBackend {
 public:
  // Of `options`, paths of a device are taken where it has kernels of our own for them, and none on
  // a host.
  TorchBackend(const model::ModelSpec& spec, const GeneratorWeights& weights, int64_t pages,
               const EngineOptions& options, const comm::CommView& tensor_parallel);

  void reserve_positions(int64_t positions) override;
  std::vector<Drawn> step(const StepBatch& batch, std::span<const DrawRequest> draws) override;
  KeptLogits keep(int64_t row) override;
  void copy_page(int32_t from, int32_t to) override;
  bool records_steps() const override { return graphs_ != nullptr; }
  void release_cache() override;
  void report(EngineCounters& counters) const override;
  std::vector<std::string> describe() const override;
  std::vector<std::string> differences() const override;

  static int64_t page_bytes(const LocalShape& shape, int64_t page_size);

 private:
  class PagedStrategy;
  class SumsOnStream;
  at::Tensor forward(const StepIndices& indices, const Upload& upload);
  void compute(const StepBatch& batch, StepIndices& indices, Upload& upload);
  at::Tensor decode(const DecodeShape& shape, int64_t rows, StepIndices& indices, Upload& upload);
  std::optional<DecodeShape> recorded_shape(const StepBatch& batch);
  void make_cache();
  void count_sums(const comm::RankSumsCounters& before, int64_t rows);
  at::Tensor head(const at::Tensor& x) const;
  at::Tensor capped(const at::Tensor& logits) const;
  at::Tensor product(const at::Tensor& x, size_t parameter) const;
  std::vector<at::Tensor> parameters(const model::Stage& stage) const;
  const kernels::DrawKernels* draws_where_logits_lie(const comm::CommView& comm) const;
  bool fuses_operators(const comm::CommView& comm) const;
  AttendPages attention_over_pages(const comm::CommView& comm) const;
  bool on_host() const { return weights_.place() == Place::host; }
  bool draws_on_host() const {
    return sampler_->device() != device_;
  }  // where the device's own kernels were put aside

  const model::ModelSpec& spec_;
  const GeneratorWeights& weights_;
  LocalShape shape_;
  int64_t pages_;
  int64_t page_size_;
  at::Device device_;
  std::unique_ptr<comm::RankSums> sums_;  // null: one rank. Freed after graphs_, which record it
  at::Tensor cache_;  // [2, L, pages * page size, K, hd]: keys, values; one page more for rows that
                      // fill recorded steps up
  model::Ropes ropes_;
  int64_t rope_positions_ = 0;
  at::Tensor logits_;                          // [rows, V], where they are drawn from
  std::unique_ptr<comm::RankSums> draw_sums_;  // of draws on the host beside a device
  std::unique_ptr<TensorSampler> sampler_;
  bool fused_operators_ = false;
  ProductWindow window_;
  AttendPages attend_pages_ = nullptr;    // null: not used
  std::unique_ptr<DecodeGraphs> graphs_;  // null: not used
  int64_t weights_placed_ = 0;            // as recorded steps know them
  comm::RankSumsCounters sums_of_row_;    // of a decoded row; `sums` of a whole step of decoding
  int64_t attention_calls_ = 0, paged_attention_calls_ = 0, uploads_ = 0, device_waits_ = 0;
};

}  // namespace trireme::generate
