// The forward pass on the host with kernels of our own: one region of threads per step, barriers between the phases of a
// block, no allocation once the buffers have their size.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "local_shape.hpp"
#include "step_backend.hpp"
#include "thread_team.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/comm/huge_buffer.hpp"
#include "trireme/kernels/decode_attention.hpp"
#include "trireme/model/forward.hpp"

namespace trireme::generate {

class FusedBackend final : public StepBackend {
 public:
  FusedBackend(const model::ModelSpec& spec, const GeneratorWeights& weights, int64_t pages, int64_t page_size, ThreadTeam& team,
               const comm::CommView& tensor_parallel);

  void reserve_positions(int64_t positions) override;
  std::vector<kernels::LogitsRow> forward(const StepBatch& batch) override;
  void copy_page(int32_t from, int32_t to) override;
  void release_cache() override { cache_.discard(); }
  std::vector<std::string> describe() const override;
  std::vector<std::string> differences() const override;

  // Bytes of one page: keys and values of all layers and KV heads of this rank.
  static int64_t page_bytes(const LocalShape& shape, int64_t page_size);

 private:
  // Rows of activations; each row is zero-padded to a multiple of 32 elements, as the GEMM wants it.
  struct Rows {
    comm::HugeBuffer memory;
    int64_t stride = 0;  // elements
    int64_t element_bytes = 0;
    std::byte* row(int64_t i) const { return memory.data() + i * stride * element_bytes; }
  };
  struct Linear {
    size_t weight = 0;
    int64_t bias = -1;  // parameter, -1: none
    int64_t k = 0;
    int64_t n = 0;
    kernels::GemmOrder order;
  };
  struct Layer {
    Linear q, k, v, o, gate, up, down;
    size_t input_norm = 0, post_norm = 0;
    int64_t o_bias = -1;
  };
  // A product of the step: threads share the columns of several of them.
  struct Product {
    const Linear* linear = nullptr;
    const Rows* x = nullptr;
    const Rows* y = nullptr;
  };

  // The trainer multiplies `together` of the outputs at a time.
  Linear make_linear(size_t weight, int64_t k, int64_t n, int64_t together) const;
  void make_layers(const model::ModelSpec& spec);
  std::vector<const Linear*> linears() const;  // one of each kind
  void reserve_rows(int64_t rows, int64_t logit_rows);
  void index_rows(const StepBatch& batch);
  kernels::GemmArguments gemm(const Linear& linear, const Rows& x, int64_t m) const;

  void forward_thread(const StepBatch& batch, int thread);
  void embed(const StepBatch& batch, int thread);
  void products(std::initializer_list<Product> list, int64_t m, int thread) const;
  void norm_rows(size_t weight, int64_t rows, int thread) const;
  void rotate_and_store(const StepBatch& batch, int layer, int thread) const;
  void attend(const StepBatch& batch, int layer, int thread) const;
  void feed_forward(const Layer& layer, int64_t m, int thread) const;
  // y = x weight^T summed over the tensor-parallel ranks, added to the residual stream, which is then normalised.
  void project(const Linear& linear, const Rows& x, int64_t o_bias, size_t next_norm, int64_t m, int thread);
  void sum_over_ranks(int64_t m, int thread);
  void logits(const StepBatch& batch, int thread);
  std::byte* tile(int32_t page, int layer, int64_t kv_head, int64_t position_in_page) const;

  const GeneratorWeights& weights_;
  LocalShape shape_;
  config::ModelShape model_shape_;
  float epsilon_;
  int64_t page_size_;
  int64_t page_bytes_;
  ThreadTeam& team_;
  comm::CommView comm_;
  comm::HugeBuffer cache_;
  model::Rope rope_;
  int64_t rope_positions_ = 0;
  size_t embedding_ = 0, final_norm_ = 0;
  Linear head_;
  std::vector<Layer> layers_;
  int64_t capacity_ = 0, logit_capacity_ = 0;
  Rows x_, normed_, q_, k_, v_, attended_, gate_, up_, projected_, last_, logits_;
  std::vector<float> partials_;  // [ranks][M][D], tensor parallel only
  std::vector<int32_t> sequence_of_row_;
  std::vector<const std::byte*> page_starts_;  // of all sequences, one after another
  std::vector<size_t> first_page_;             // [sequences]
};

}  // namespace trireme::generate
