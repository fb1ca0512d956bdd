#include "torch/torch.hpp"

#include "zero/stage_loop.hpp"

#include <algorithm>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/heap.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::zero {

StageLoop::StageLoop(const model::ModelSpec& spec, comm::ShardExchange& exchange,
                     GradientSums& sums, model::Strategy& strategy, at::Device device,
                     at::ScalarType compute, int64_t recomputed_blocks)
    : spec_(spec),
      exchange_(exchange),
      sums_(sums),
      strategy_(strategy),
      device_(device),
      compute_(compute),
      recomputed_blocks_(recomputed_blocks) {
  EXPECT(!spec.stages.empty() && spec.stages.front().kind == model::StageKind::embedding &&
         spec.stages.back().kind == model::StageKind::head);
  // embedding_backward() takes the stage's gradient for the look-up's.
  const auto& embedding = spec.stages.front().operations;
  EXPECT(std::none_of(embedding.begin() + 1, embedding.end(),
                      [](const model::Operation& o) { return model::row_of(o).computes; }));
}

bool StageLoop::keeps_graph(int stage) const {
  const auto& s = spec_.stages[static_cast<size_t>(stage)];
  return s.kind == model::StageKind::block && s.layer >= recomputed_blocks_;
}

// Grown by doubling: long contexts need tens of MiB that short runs never touch.
void StageLoop::grow_ropes(int64_t positions) {
  if (positions <= rope_positions_) return;
  rope_positions_ = std::max({positions, 2 * rope_positions_, int64_t{1024}});
  ropes_ = model::make_ropes(spec_, rope_positions_, device_);
}

std::vector<at::Tensor> StageLoop::weights(int stage, bool leaves) {
  const auto pointers = exchange_.gathered(stage);
  const auto& parameters = spec_.stages[static_cast<size_t>(stage)].parameters;
  const auto options = at::TensorOptions().dtype(compute_).device(device_);
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < parameters.size(); ++i) {
    tensors.push_back(
        at::from_blob(pointers[i], spec_.parameters[parameters[i]].spec.shape, options));
    if (!leaves) continue;
    tensors.back().set_requires_grad(true);
    if (compute_ != at::kFloat) tensors.back().set_grad_dtype(at::kFloat);
  }
  return tensors;
}

void StageLoop::preset_gradients(const std::vector<float*>& into,
                                 const std::vector<at::Tensor>& leaves) {
  for (size_t i = 0; i < leaves.size(); ++i)
    leaves[i].mutable_grad() =
        at::from_blob(into[i], leaves[i].sizes(), leaves[i].options().dtype(at::kFloat));
}

model::PackedBatch StageLoop::part_of(const model::PackedBatch& batch) {
  if (device_.is_cpu()) base::return_freed_memory_near_goal();
  if (batch.tokens() == 0) return batch;
  grow_ropes(batch.max_length);
  return strategy_.part(batch);
}

at::Tensor StageLoop::compute(int stage, const std::vector<at::Tensor>& weights,
                              const at::Tensor& x, const model::PackedBatch& part) {
  return model::run_stage(spec_, spec_.stages[static_cast<size_t>(stage)], weights, x, part, ropes_,
                          strategy_);
}

void StageLoop::forward(const model::PackedBatch& batch, const Head& head) {
  const model::PackedBatch part = part_of(batch);
  const bool work = part.tokens() > 0;
  const at::NoGradGuard no_gradients;
  at::Tensor x;  // [T, D]
  exchange_.gather(0);
  for (int stage = 0; stage <= last(); ++stage) {
    if (stage < last()) exchange_.gather(stage + 1);
    trace::Region region{"forward", stage, trace::Category::kernel};
    const auto parameters = weights(stage, false);
    if (work) x = compute(stage, parameters, x, part);
    if (work && stage == last()) head(x, parameters.back());
    ASSERT(exchange_.holds(stage));
    exchange_.release(stage);
  }
}

void StageLoop::forward_stage(int stage, const model::PackedBatch& part, std::vector<Kept>& kept) {
  trace::Region region{"forward", stage, trace::Category::kernel};
  const bool graph = keeps_graph(stage);
  auto& mine = kept[static_cast<size_t>(stage)];
  auto parameters = weights(stage, graph);
  if (part.tokens() > 0) {
    const at::AutoGradMode mode(graph);
    if (graph) mine.input = mine.input.detach().set_requires_grad(true);
    at::Tensor output = compute(stage, parameters, mine.input, part);
    kept[static_cast<size_t>(stage) + 1].input = output.detach();
    if (graph) {
      mine.output = std::move(output);
      mine.leaves = std::move(parameters);
    }
  }
  ASSERT(exchange_.holds(stage));
  exchange_.release(stage);
}

void StageLoop::forward_backward(const model::PackedBatch& batch, const Loss& loss,
                                 const GradientShards& shards, Reduce when) {
  const model::PackedBatch part = part_of(batch);
  std::vector<Kept> kept(spec_.stages.size());
  exchange_.gather(0);
  for (int stage = 0; stage < last(); ++stage) {
    exchange_.gather(stage + 1);
    forward_stage(stage, part, kept);
  }
  int64_t bytes = 0;
  for (const auto& stage : kept)
    bytes += stage.input.defined() ? static_cast<int64_t>(stage.input.nbytes()) : 0;
  peak_input_bytes_ = std::max(peak_input_bytes_, bytes);

  const bool later = when == Reduce::later;
  at::Tensor gradient;  // of the stage's output, [T, D]
  for (int stage = last(); stage >= 0; --stage) {
    if (stage > 0)
      exchange_.gather(stage - 1);  // the last two stages still lie in a ring from the forward pass
    backward_stage(stage, part, std::move(kept[static_cast<size_t>(stage)]), loss, gradient, when);
    if (later) continue;
    if (stage < last()) exchange_.finish_reduce(stage + 1, shards(stage + 1));
    exchange_.reduce(stage);
  }
  if (!later) exchange_.finish_reduce(0, shards(0));
}

std::vector<float*> StageLoop::gradient_storage(int stage, Reduce when) {
  if (when == Reduce::later) return sums_.of(stage);
  auto slot = exchange_.gradients(stage);
  sums_.move_to(stage, slot);
  return slot;
}

void StageLoop::backward_stage(int stage, const model::PackedBatch& part, Kept kept,
                               const Loss& loss, at::Tensor& gradient, Reduce when) {
  trace::Region region{"backward", stage, trace::Category::kernel};
  const bool work = part.tokens() > 0;
  if (stage == 0) {
    weights(stage, false);
    embedding_backward(part, gradient, gradient_storage(stage, when).front());
    exchange_.release(stage);
    return;
  }
  auto leaves = weights(stage, true);
  if (kept.output.defined()) leaves = std::move(kept.leaves);
  preset_gradients(gradient_storage(stage, when), leaves);
  if (work) {
    const at::AutoGradMode mode(true);
    at::Tensor output = std::move(kept.output);
    if (!output.defined()) {
      kept.input = kept.input.detach().set_requires_grad(true);
      output = compute(stage, leaves, kept.input, part);
    }
    if (stage == last()) {
      const at::Tensor value = loss(output, leaves.back());
      if (!value.defined() || value.numel() != 1 || !value.requires_grad()) {
        throw InternalError("a loss must be one number that depends on the hidden states");
      }
      output.reset();
      value.backward();
    } else {
      output.backward(gradient);
    }
    gradient = kept.input.grad();
  }
  ASSERT(exchange_.holds(stage));
  exchange_.release(stage);
}

// The embedding's gradient has T rows that are not zero: they are added in fp32 where they belong,
// without the dense gradient in the compute type that autograd would make.
void StageLoop::embedding_backward(const model::PackedBatch& part, const at::Tensor& gradient,
                                   float* into) const {
  if (part.tokens() == 0) return;
  const auto& shape = spec_.parameters[spec_.stages.front().parameters.front()].spec.shape;
  at::Tensor dense =
      at::from_blob(into, shape, at::TensorOptions().dtype(at::kFloat).device(device_));
  const at::NoGradGuard no_gradients;
  dense.index_add_(0, part.ids, gradient.to(at::kFloat));
}

}  // namespace trireme::zero
