// Forward and backward over the stages of a model whose weights come from an exchange. Private to
// zero.
//
//   forward    gather(i + 1) | compute i                         keep the inputs of the stages
//   backward   gather(i - 1) | compute i again, differentiate i | add up the gradients of i + 1
//
// Gradients go straight into the exchange's fp32 storage, or into the sums of a step: leaves are
// views of the gathered weights, their .grad is preset to views of the gradient slot. A stage's
// first gradients of a reduction overwrite what the slot held (kernels/own_gradient.hpp). Frozen
// parameters are no leaves; backward ends at the first stage that has a trainable one, and stages
// before it keep nothing. A kept stage (no recompute) holds its autograd graph from forward to
// backward; its weights are gathered again at the same address before that graph runs backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "trireme/comm/shard_exchange.hpp"
#include "trireme/model/forward.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/zero/sharded_model.hpp"
#include "zero/gradient_sums.hpp"

namespace trireme::zero {

// Where the weights of a stage are gathered, in type `compute`, and which graphs are kept.
struct StagePlacement {
  int ranks;
  at::Device device;
  at::ScalarType compute;
  int64_t recomputed_blocks;  // blocks from this one on keep their graphs
};

class StageLoop {
 public:
  // Adds up a stage's gradients, whose reduction was begun: finish_reduce().
  using FinishReduction = std::function<void(int stage)>;

  // `spec`, `exchange` over the placement's ranks, `sums` and `strategy` must outlive the loop.
  StageLoop(const model::ModelSpec& spec, comm::ShardExchange& exchange, GradientSums& sums,
            model::Strategy& strategy, const StagePlacement& placement);

  void forward(const model::PackedBatch& batch, const Head& head, model::AdapterUse adapter);
  // Later gradients stay in the sums, which are wanted then.
  void forward_backward(const model::PackedBatch& batch, const Loss& loss,
                        const FinishReduction& finish_reduction, Reduce when,
                        const model::DropoutDraws& draws);

  // As ShardedModel::visit_whole().
  void visit_whole(const WantsParameter& wanted, const VisitWhole& visit);

  // Most bytes of stage inputs that one pass kept so far; activations of kept stages do not count.
  int64_t peak_input_bytes() const { return peak_input_bytes_; }

 private:
  // A stage between its forward and its backward.
  struct Kept {
    at::Tensor input;   // [T, D]; undefined for the embedding
    at::Tensor output;  // with its graph, for kept stages only
    std::vector<at::Tensor> leaves;
  };

  int last() const { return static_cast<int>(spec_.stages.size()) - 1; }
  bool keeps_graph(int stage) const;
  bool trainable(int stage) const {
    return spec_.is_trainable(spec_.stages[static_cast<size_t>(stage)]);
  }
  // `leaves`: trainable ones are leaves of a graph.
  std::vector<at::Tensor> weights(int stage, bool leaves);
  // The trainable parameters of a stage put their gradients into their storage.
  void preset_gradients(int stage, const std::vector<at::Tensor>& weights, Reduce when);
  // After the stage's backward: zeros where no gradient came, and in the padding of slices.
  void complete_gradients(int stage, const std::vector<at::Tensor>& weights);
  // The strategy's part of a batch for this rank; the rotary embedding reaches all of its
  // positions.
  model::PackedBatch part_of(const model::PackedBatch& batch);
  at::Tensor compute(int stage, const std::vector<at::Tensor>& weights, const at::Tensor& x,
                     const model::PackedBatch& part,
                     model::AdapterUse adapter = model::AdapterUse::applied);
  kernels::HeadWeight head_weight(const std::vector<at::Tensor>& weights,
                                  model::AdapterUse adapter) const;
  void forward_stage(int stage, const model::PackedBatch& part, std::vector<Kept>& kept);
  // Where a stage's gradients go, by trainable parameter: the sums, or the exchange's slot with
  // what the sums have.
  GradientPlace gradient_place(int stage, Reduce when);
  // Differentiates one stage; `gradient` is that of its output and becomes that of its input, which
  // the first trainable stage has none of.
  void backward_stage(int stage, const model::PackedBatch& part, Kept kept, const Loss& loss,
                      at::Tensor& gradient, Reduce when);
  void embedding_backward(const model::PackedBatch& part, std::vector<at::Tensor> leaves,
                          const at::Tensor& gradient);
  void grow_ropes(int64_t positions);

  const model::ModelSpec& spec_;
  std::vector<comm::SlotGeometry> slots_;  // of gradients
  comm::ShardExchange& exchange_;
  GradientSums& sums_;
  model::Strategy& strategy_;
  StagePlacement placement_;
  int first_trainable_ = 0;                     // stage; behind the last: none
  std::optional<model::DropoutDraws> dropout_;  // of the pass; none: it only goes forward
  model::Ropes ropes_;
  int64_t rope_positions_ = 0;
  int64_t peak_input_bytes_ = 0;
};

}  // namespace trireme::zero
