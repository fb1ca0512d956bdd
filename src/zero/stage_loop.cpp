#include "torch/torch.hpp"

#include "zero/stage_loop.hpp"

#include <algorithm>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/heap.hpp"
#include "trireme/kernels/own_gradient.hpp"
#include "trireme/trace/region.hpp"
#include "zero/shards.hpp"

namespace trireme::zero {

StageLoop::StageLoop(const model::ModelSpec& spec, comm::ShardExchange& exchange,
                     GradientSums& sums, model::Strategy& strategy, const StagePlacement& placement)
    : spec_(spec),
      slots_(comm::gradient_slots(slot_geometry(spec, placement.ranks))),
      exchange_(exchange),
      sums_(sums),
      strategy_(strategy),
      placement_(placement) {
  EXPECT(!spec.stages.empty() && spec.stages.front().kind == model::StageKind::embedding &&
         spec.stages.back().kind == model::StageKind::head);
  // embedding_backward() takes the stage's gradient for the look-up's.
  const auto& embedding = spec.stages.front().operations;
  EXPECT(!spec.parameters[spec.index_of(spec.stages.front(), *model::weight_of(embedding.front()))]
              .trainable ||
         std::none_of(embedding.begin() + 1, embedding.end(),
                      [](const model::Operation& o) { return model::row_of(o).computes; }));
  while (first_trainable_ <= last() && !trainable(first_trainable_)) ++first_trainable_;
}

bool StageLoop::keeps_graph(int stage) const {
  const auto& s = spec_.stages[static_cast<size_t>(stage)];
  return stage >= first_trainable_ && s.kind == model::StageKind::block &&
         s.layer >= placement_.recomputed_blocks;
}

// Grown by doubling: long contexts need tens of MiB that short runs never touch.
void StageLoop::grow_ropes(int64_t positions) {
  if (positions <= rope_positions_) return;
  rope_positions_ = std::max({positions, 2 * rope_positions_, int64_t{1024}});
  ropes_ = model::make_ropes(spec_, rope_positions_, placement_.device);
}

std::vector<at::Tensor> StageLoop::weights(int stage, bool leaves) {
  const auto pointers = exchange_.gathered(stage);
  const auto& parameters = spec_.stages[static_cast<size_t>(stage)].parameters;
  const auto options = at::TensorOptions().dtype(placement_.compute).device(placement_.device);
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < parameters.size(); ++i) {
    tensors.push_back(
        at::from_blob(pointers[i], spec_.parameters[parameters[i]].spec.shape, options));
    if (!leaves || !spec_.parameters[parameters[i]].trainable) continue;
    tensors.back().set_requires_grad(true);
    if (placement_.compute != at::kFloat) tensors.back().set_grad_dtype(at::kFloat);
  }
  return tensors;
}

void StageLoop::preset_gradients(int stage, const std::vector<at::Tensor>& weights, Reduce when) {
  if (!trainable(stage)) return;
  const GradientPlace place = gradient_place(stage, when);
  auto next = place.parameters.begin();
  for (const at::Tensor& weight : weights) {
    if (!weight.requires_grad()) continue;
    const at::Tensor slot =
        at::from_blob(*next++, weight.sizes(), weight.options().dtype(at::kFloat));
    if (place.has_sums) {
      weight.mutable_grad() = slot;
    } else {
      kernels::overwrite_gradient(weight, slot);
    }
  }
}

void StageLoop::complete_gradients(int stage, const std::vector<at::Tensor>& weights) {
  const auto& [parameters, elements] = slots_[static_cast<size_t>(stage)];
  size_t i = 0;
  for (const at::Tensor& weight : weights) {
    if (!weight.requires_grad()) continue;
    kernels::zero_unwritten_gradient(weight);
    const int64_t end = i + 1 < parameters.size() ? parameters[i + 1].offset : elements,
                  padding = end - parameters[i++].offset - weight.numel();
    const at::Tensor& gradient = weight.grad();
    if (padding > 0)
      at::from_blob(gradient.mutable_data_ptr<float>() + weight.numel(), {padding},
                    gradient.options())
          .zero_();
  }
}

model::PackedBatch StageLoop::part_of(const model::PackedBatch& batch) {
  if (placement_.device.is_cpu()) base::return_freed_memory_near_goal();
  if (batch.tokens() == 0) return batch;
  grow_ropes(batch.max_length);
  model::PackedBatch part = strategy_.part(batch);
  model::fit_ropes(spec_, part, ropes_);
  return part;
}

at::Tensor StageLoop::compute(int stage, const std::vector<at::Tensor>& weights,
                              const at::Tensor& x, const model::PackedBatch& part,
                              model::AdapterUse adapter) {
  return model::run_stage({spec_, spec_.stages[static_cast<size_t>(stage)], weights, part, ropes_,
                           strategy_, dropout_ ? &*dropout_ : nullptr},
                          x, adapter);
}

kernels::HeadWeight StageLoop::head_weight(const std::vector<at::Tensor>& weights,
                                           model::AdapterUse adapter) const {
  const auto low = spec_.head_low_position(adapter);
  return {weights[spec_.head_position(adapter)], low ? weights[*low] : at::Tensor{},
          spec_.shape.logit_cap};
}

void StageLoop::forward(const model::PackedBatch& batch, const Head& head,
                        model::AdapterUse adapter) {
  const model::PackedBatch part = part_of(batch);
  const bool work = part.tokens() > 0;
  const at::NoGradGuard no_gradients;
  dropout_ = std::nullopt;
  at::Tensor x;  // [T, D]
  exchange_.gather(0);
  for (int stage = 0; stage <= last(); ++stage) {
    if (stage < last()) exchange_.gather(stage + 1);
    trace::Region region{"forward", stage, trace::Category::kernel};
    const auto parameters = weights(stage, false);
    if (work) x = compute(stage, parameters, x, part, adapter);
    if (work && stage == last()) head(x, head_weight(parameters, adapter));
    ASSERT(exchange_.holds(stage));
    exchange_.release(stage);
  }
}

void StageLoop::visit_whole(const WantsParameter& wanted, const VisitWhole& visit) {
  const at::NoGradGuard no_gradients;
  std::vector<bool> seen(spec_.parameters.size());
  std::vector<std::vector<size_t>> places(spec_.stages.size());  // of a stage's parameters
  for (size_t s = 0; s < spec_.stages.size(); ++s) {
    const auto& parameters = spec_.stages[s].parameters;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (seen[parameters[i]] || !wanted(parameters[i])) continue;
      seen[parameters[i]] = true;
      places[s].push_back(i);
    }
  }
  const auto start = [&](int stage) {
    if (stage <= last() && !places[static_cast<size_t>(stage)].empty()) exchange_.gather(stage);
  };
  start(0);
  for (int stage = 0; stage <= last(); ++stage) {
    start(stage + 1);
    const auto& here = places[static_cast<size_t>(stage)];
    if (here.empty()) continue;
    trace::Region region{"visit weights", stage, trace::Category::kernel};
    const auto tensors = weights(stage, false);
    const auto& parameters = spec_.stages[static_cast<size_t>(stage)].parameters;
    for (const size_t i : here) visit(parameters[i], tensors[i]);
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
    if (graph) mine.input = mine.input.detach().set_requires_grad(stage > first_trainable_);
    at::Tensor output = compute(stage, parameters, mine.input, part);
    kept[static_cast<size_t>(stage) + 1].input = output.detach();
    if (stage < first_trainable_) mine.input.reset();
    if (graph) {
      mine.output = std::move(output);
      mine.leaves = std::move(parameters);
    }
  }
  ASSERT(exchange_.holds(stage));
  exchange_.release(stage);
}

void StageLoop::forward_backward(const model::PackedBatch& batch, const Loss& loss,
                                 const FinishReduction& finish_reduction, Reduce when,
                                 const model::DropoutDraws& draws) {
  dropout_ = draws;
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
  int reducing = -1;
  const auto finish = [&] {
    if (reducing >= 0) finish_reduction(reducing);
    reducing = -1;
  };
  for (int stage = last(); stage >= first_trainable_; --stage) {
    if (stage > first_trainable_)
      exchange_.gather(stage - 1);  // the last two stages still lie in a ring from the forward pass
    backward_stage(stage, part, std::move(kept[static_cast<size_t>(stage)]), loss, gradient, when);
    finish();
    if (later || !trainable(stage)) continue;
    exchange_.reduce(stage);
    reducing = stage;
  }
  finish();
}

GradientPlace StageLoop::gradient_place(int stage, Reduce when) {
  return when == Reduce::later ? sums_.of(stage) : sums_.move_to(stage, exchange_.gradients(stage));
}

void StageLoop::backward_stage(int stage, const model::PackedBatch& part, Kept kept,
                               const Loss& loss, at::Tensor& gradient, Reduce when) {
  trace::Region region{"backward", stage, trace::Category::kernel};
  const bool work = part.tokens() > 0;
  auto leaves = weights(stage, true);
  if (kept.output.defined()) leaves = std::move(kept.leaves);
  preset_gradients(stage, leaves, when);
  if (work && stage == 0) {
    embedding_backward(part, leaves, gradient);
  } else if (work) {
    const at::AutoGradMode mode(true);
    at::Tensor output = std::move(kept.output);
    if (!output.defined()) {
      kept.input = kept.input.detach().set_requires_grad(stage > first_trainable_);
      output = compute(stage, leaves, kept.input, part);
    }
    if (stage == last()) {
      const at::Tensor value = loss(output, head_weight(leaves, model::AdapterUse::applied));
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
  complete_gradients(stage, leaves);
  ASSERT(exchange_.holds(stage));
  exchange_.release(stage);
}

// The embedding's gradient has T rows that are not zero: they are added in fp32 where they belong,
// without the dense gradient in the compute type that autograd would make.
void StageLoop::embedding_backward(const model::PackedBatch& part, std::vector<at::Tensor> leaves,
                                   const at::Tensor& gradient) {
  const model::Stage& stage = spec_.stages.front();
  at::Tensor& embedding =
      leaves[spec_.position_of(stage, *model::weight_of(stage.operations.front()))];
  if (embedding.requires_grad()) {
    const at::NoGradGuard no_gradients;
    kernels::zero_unwritten_gradient(embedding);
    embedding.mutable_grad().index_add_(0, part.ids, gradient.to(at::kFloat));
    embedding = embedding.detach();
  }
  if (std::ranges::none_of(leaves, [](const at::Tensor& leaf) { return leaf.requires_grad(); }))
    return;
  const at::AutoGradMode mode(true);
  compute(0, leaves, {}, part).backward(gradient);
}

}  // namespace trireme::zero
