// The forward pass on the host with kernels of our own: one region of threads per step that runs
// the model's step program, no allocation once the buffers have their size.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attention_units.hpp"
#include "local_shape.hpp"
#include "sampler.hpp"
#include "step_backend.hpp"
#include "thread_program.hpp"
#include "thread_team.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/comm/huge_buffer.hpp"
#include "trireme/comm/rank_parts.hpp"
#include "trireme/kernels/decode_attention.hpp"
#include "trireme/model/forward.hpp"

namespace trireme::generate {

class FusedBackend final : public StepBackend {
 public:
  FusedBackend(const model::ModelSpec& spec, const GeneratorWeights& weights, int64_t pages,
               int64_t page_size, ThreadTeam& team, const comm::CommView& tensor_parallel,
               bool shared_sums);

  void reserve_positions(int64_t positions) override;
  std::vector<Drawn> step(const StepBatch& batch, std::span<const DrawRequest> draws) override;
  KeptLogits keep(int64_t row) override;
  void copy_page(int32_t from, int32_t to) override;
  void release_cache() override { cache_.discard(); }
  void report(EngineCounters& counters) const override {
    counters.sum_bytes = counters.sum_host_bytes = sum_bytes_;
    counters.attention_parts = attention_parts_;
    counters.whole_row_steps = whole_row_steps_;
  }
  std::vector<std::string> describe() const override;
  std::vector<std::string> differences() const override;

  // Bytes of one page: keys and values of all layers and KV heads of this rank.
  static int64_t page_bytes(const LocalShape& shape, int64_t page_size);

 private:
  // Rows of activations; each row is zero-padded to a multiple of 32 elements, as the GEMM wants
  // it.
  struct Rows {
    comm::HugeBuffer memory;
    comm::HugeBuffer copies;  // one of each thread, of few rows, where row work is repeated
    int64_t stride = 0;       // elements
    int64_t element_bytes = 0;
    int64_t copy_bytes = 0;
    std::byte* row(int64_t i) const { return memory.data() + i * stride * element_bytes; }
    std::byte* row(int64_t i, int copy) const {
      return copies.data() + copy * copy_bytes + i * stride * element_bytes;
    }
  };

  void reserve_rows(int64_t rows, int64_t logit_rows);
  void index_rows(const StepBatch& batch);
  void fit_ropes(const StepBatch& batch);
  void cap_logits(int64_t count) const;
  void prepare_attention(const StepBatch& batch);
  const Rows& rows(Buffer buffer) const { return rows_[index_of(buffer)]; }
  // Row i as a thread sees it in this step.
  std::byte* row(Buffer buffer, int64_t i, int thread) const {
    const bool own = work_ == RowWork::repeated && program_.copied[index_of(buffer)];
    return own ? rows(buffer).row(i, thread) : rows(buffer).row(i);
  }
  int64_t width(Buffer buffer) const { return program_.width[index_of(buffer)]; }
  // Of rows [first, first + m).
  kernels::GemmArguments gemm(size_t linear, int64_t first, int64_t m, int thread) const;
  // The order in which the trainer adds products with `outputs` of this linear's outputs at a time.
  kernels::GemmOrder order_of(const ProgramLinear& linear, int64_t outputs) const;
  kernels::ElementType type_of(const ProgramLinear& linear) const {
    return holds_logits(linear.out) ? shape_.logit_type : shape_.type;
  }

  // A thread's share of a phase.
  void execute(const Phase& phase, const StepBatch& batch, int thread);
  template <class OfRow>
  void by_rows(const Phase& phase, int64_t count, int thread, OfRow&& of_row) const;
  // A thread's part of the rows, each of which is one thread's.
  ThreadTeam::Range share_of_rows(int thread, int64_t count) const {
    return team_.share(thread, count, work_ == RowWork::whole ? kernels::gemm_row_unit : 1);
  }
  RowWork work_for(int64_t rows) const;
  void execute_rows(const Phase& phase, const StepBatch& batch, int64_t i, int thread);
  void execute_heads(const Phase& phase, const StepBatch& batch, int64_t row, int64_t first_head,
                     int64_t heads) const;
  void execute_columns(const Phase& phase, const StepBatch& batch, int thread) const;
  // The phase's operation on `count` elements of row i, from `first` on.
  void execute_row(const Phase& phase, const StepBatch& batch, int64_t i, int thread, int64_t first,
                   int64_t count) const;
  void look_up(const Phase& phase, const StepBatch& batch, int64_t i, int thread);
  void linears(const Phase& phase, int64_t m, int thread) const;
  void columns(const Phase& phase, int64_t m, int thread);
  void sum(const Phase& phase, int64_t m, int thread);
  void attend(const Phase& phase, int thread);
  kernels::AttentionArguments attention(const Phase& phase, const AttentionUnit& unit) const;
  std::byte* tile(int32_t page, int layer, int64_t kv_head, int64_t position_in_page) const;

  const GeneratorWeights& weights_;
  LocalShape shape_;
  model::ModelSpec spec_;
  int64_t page_size_;
  int64_t page_bytes_;
  ThreadTeam& team_;
  comm::CommView comm_;
  comm::HugeBuffer cache_;
  model::Ropes ropes_;
  int64_t rope_positions_ = 0;
  ThreadProgram program_;
  std::vector<kernels::GemmOrder> orders_;  // of program_.linears
  int64_t most_repeated_ = 0;               // rows whose work is repeated on all threads at most
  int64_t fewest_whole_ = 0;  // rows from which on each is one thread's, products and all; 0: never
  int64_t capacity_ = 0, logit_capacity_ = 0;
  std::vector<Rows> rows_;                 // by buffer
  std::unique_ptr<comm::RankParts> sums_;  // of [M, D], tensor parallel only
  int64_t sum_bytes_ = 0, attention_parts_ = 0, whole_row_steps_ = 0;
  // Of this step.
  RowWork work_ = RowWork::shared;
  AttentionUnits attention_;
  std::vector<int64_t> parts_at_;    // [units] of parts_, where attention goes in parts
  std::vector<int32_t> parts_done_;  // [units], atomic
  std::vector<float> parts_;
  std::vector<int32_t> sequence_of_row_;
  std::vector<const std::byte*> page_starts_;  // of all sequences, one after another
  std::vector<size_t> first_page_;             // [sequences]
  Sampler sampler_;
};

}  // namespace trireme::generate
