#include "plan/product_bytes.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include "trireme/base/checked.hpp"
#include "trireme/base/heap.hpp"
#include "trireme/config/models_of.hpp"

namespace trireme::plan {
namespace {

// By the runs of docs/user/plan.md. With matrix units a product adds an eighth of the code that it
// adds elsewhere, and the first products add most.
constexpr int64_t full_caches = int64_t{40} << 20, first_tile_products = int64_t{3} << 20,
                  most_packed = int64_t{56} << 20, least_packed = int64_t{4} << 20;

using Shapes = std::set<std::vector<int64_t>>;

// Shapes of the matrices that are multiplied with: of blocks and the head.
void add_shapes(const ModelLayout& model, Shapes& shapes) {
  for (size_t stage = 1; stage < model.stages.size(); ++stage) {
    for (const size_t tensor : model.stages[stage]) {
      if (model.tensors[tensor].shape.size() == 2) shapes.insert(model.tensors[tensor].shape);
    }
  }
}

// Passes of at most `micro_batch` tokens over a rank's share of the sequences: whole sequences fill
// each at least by half.
int64_t passes(int64_t sequences, size_t ranks, int64_t longest, int64_t micro_batch) {
  if (sequences <= 0) return 0;
  const int64_t share = base::ceil_div(sequences, static_cast<int64_t>(ranks)),
                most = std::max<int64_t>(micro_batch / longest, 1);
  return share <= most ? 1 : std::min(share, 2 * base::ceil_div(share, most));
}

// Each adds a product at least.
int64_t iterations_that_count(const Job& job) {
  return std::min<int64_t>(job.length.iterations, 8 * base::cached_products);
}

// Passes that train, and that only score, by their tokens.
struct Passes {
  int64_t trained = 0, scored = 0;
};

// Of models of the reward ranks.
int64_t reward_passes(const Job& job, int64_t sequences) {
  int64_t out = 0;
  for (size_t i = 0; i < job.models.reward_models.size(); ++i) {
    const RewardPass pass = reward_pass(job, i);
    out += passes(sequences, job.roles.reward.size(), pass.longest, pass.tokens);
  }
  return out;
}

// Of ppo: the models that score answers have the same micro-batches, reward models theirs.
Passes ppo_passes(const Job& job, int64_t of_step) {
  const auto& o = job.options;
  const int64_t sequences = o.sequences_per_iteration();
  const int64_t steps = base::ceil_div(sequences, o.train.batch_size) * o.train.max_epochs;
  const int64_t scored =
      passes(sequences, std::min(job.roles.trainer.size(), job.roles.reward.size()), o.max_len(),
             o.rollout_micro_batch_tokens()) +
      reward_passes(job, sequences);
  const int64_t iterations = iterations_that_count(job);
  return {iterations * steps * of_step,
          iterations * scored + reward_passes(job, job.length.evaluated)};
}

// Evaluations have the same rows each time.
Passes passes_of_run(const Job& job) {
  const auto& o = job.options;
  const int64_t sequences_of_row =
      config::row_kind(o, job.command) == config::RowKind::pair ? 2 : 1;
  const auto of_rows = [&](int64_t rows) {
    return passes(rows * sequences_of_row, job.roles.trainer.size(), o.max_len(),
                  o.train.micro_batch_tokens);
  };
  const int64_t of_step = of_rows(o.train.batch_size);
  if (job.command == config::Command::ppo) return ppo_passes(job, of_step);
  return {iterations_that_count(job) * of_step, of_rows(job.length.evaluated)};
}

// Of a thread: each buffer grows to the largest block.
struct Buffers {
  int64_t left = 0, right = 0, result = 0;

  // [rows, inner] times [inner, columns], the rows dealt out to threads.
  void take(int64_t rows, int64_t inner, int64_t columns, bool rounds) {
    constexpr int64_t operand_bytes = int64_t{8} << 20, most_columns = 1024;
    const int64_t lines = std::max<int64_t>(operand_bytes / (4 * inner), 1);
    rows = std::min(rows, lines);
    columns = std::min({columns, lines, most_columns});
    left = std::max(left, 4 * rows * inner);
    right = std::max(right, 4 * inner * columns);
    if (rounds) result = std::max(result, 4 * rows * columns);
  }
};

}  // namespace

int64_t packed_operand_bytes(const Job& job) {
  if (job.compute != config::DType::f32) return 0;
  int64_t largest = 0;
  for (const auto& tensor : job.models.actor.tensors)
    largest = std::max(largest, tensor.elements());
  return std::clamp(4 * largest, least_packed, most_packed);
}

int64_t widened_block_bytes(const Job& job) {
  if (job.compute != config::DType::bf16 || job.host_bf16 != HostBf16::widened) return 0;
  const bool ppo = job.command == config::Command::ppo;
  const int64_t trained = training_tokens(job),
                all = std::max(trained,
                               ppo ? scoring_tokens(job, static_cast<int>(job.roles.trainer.size()))
                                   : trained);
  Shapes shapes;
  add_shapes(job.models.actor, shapes);
  if (job.models.critic) add_shapes(*job.models.critic, shapes);
  const auto share = [&](int64_t rows) { return base::ceil_div<int64_t>(rows, job.threads); };
  Buffers buffers;
  for (const auto& shape : shapes) {
    buffers.take(share(all), shape[1], shape[0], true);
    buffers.take(share(trained), shape[0], shape[1], true);
    buffers.take(share(shape[0]), trained, shape[1], false);
  }
  return job.threads * (buffers.left + buffers.right + buffers.result);
}

int64_t product_code_bytes(const Job& job) {
  if (job.compute != config::DType::bf16 || job.host_bf16 == HostBf16::widened) return 0;
  if (job.length.iterations == 0 || job.length.evaluated < 0) return full_caches;
  // Rollouts and judges write with products of their own (kernels/), but for this backend, where
  // each step may have another number of rows.
  const bool writes = job.command == config::Command::ppo;
  if (writes && job.options.generate.backend == config::GenerateBackend::torch) return full_caches;
  Shapes trained, all;
  add_shapes(job.models.actor, trained);
  if (job.models.critic) add_shapes(*job.models.critic, trained);
  all = trained;
  if (job.models.reference) add_shapes(*job.models.reference, all);
  for (const ModelLayout& model : job.models.reward_models) add_shapes(model, all);
  const Passes passes = passes_of_run(job);
  // Forward, and backward to the inputs and to the weights.
  const int64_t products = 3 * passes.trained * static_cast<int64_t>(trained.size()) +
                           passes.scored * static_cast<int64_t>(all.size());
  const bool tiles = job.host_bf16 == HostBf16::tiles;
  const int64_t full = base::cached_products * (tiles ? 8 : 1);
  const int64_t grown = full_caches * std::min(products, full) / full;
  return tiles ? std::min(first_tile_products + grown, full_caches) : grown;
}

}  // namespace trireme::plan
