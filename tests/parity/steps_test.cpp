// Twenty supervised steps against plain PyTorch (tests/gold/make_steps.py): any number of ranks,
// gradient accumulation, packed sequences, with and without recompute, hybrid sharding, and with
// parameters that are frozen. The gold file's bounds hold for every way of running.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "parity/golden_rows.hpp"
#include "parity/ranks.hpp"
#include "parity/registry.hpp"
#include "parity/site.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/learn/scoring.hpp"
#include "trireme/learn/update_step.hpp"
#include "trireme/model/model_files.hpp"
#include "trireme/ppo/losses.hpp"
#include "trireme/ppo/minibatches.hpp"
#include "trireme/zero/schedule.hpp"

namespace trireme::test {
namespace {

using at::Tensor;

// One way of running the same training.
struct Run {
  std::string name;
  int64_t micro_batch_tokens = 1'000'000;
  int64_t recompute = -1;  // blocks, -1: all
  comm::ExchangeKind exchange = comm::ExchangeKind::automatic;
  int shard_groups = 1;
  config::DType compute = config::DType::f32;
};

std::filesystem::path gold() {
  return std::filesystem::path(std::getenv("TRIREME_SOURCE_DIR")) / "tests/gold";
}

const Golden& steps() {
  static const Golden golden(gold() / "steps");
  return golden;
}

const Golden& frozen_steps() {
  static const Golden golden(gold() / "steps_frozen");
  return golden;
}

config::OptimizerOptions optimizer_of(const GoldenCase& c) {
  const auto betas = c.numbers("betas");
  config::OptimizerOptions options;
  options.adam = {.lr = *c.number("lr"),
                  .betas = {betas[0], betas[1]},
                  .eps = *c.number("eps"),
                  .weight_decay = *c.number("weight_decay")};
  options.lr_scheduler = choice(c, "scheduler", config::LrScheduler::linear);
  options.warmup_ratio = *c.number("warmup_ratio");
  options.min_lr_ratio = *c.number("min_lr_ratio");
  options.max_norm = *c.number("clip");
  return options;
}

class Training {
 public:
  Training(const GoldenCase& c, const Run& run)
      : case_(c),
        run_(run),
        group_size_(world().size() / run.shard_groups),
        shard_(comm::Comm::split(world(), world().rank() / group_size_, world().rank(), "shard")),
        replicas_(
            comm::Comm::split(world(), world().rank() % group_size_, world().rank(), "replicas")),
        model_(spec(), shard_,
               run.shard_groups > 1 ? std::optional(replicas_.view()) : std::nullopt, at::kCPU,
               {.compute = run.compute, .recompute = run.recompute, .exchange = run.exchange}) {
    const auto weights = model::open_model(path());
    model_.load([&](size_t p, const base::Block& block, float* out) {
      model::load_parameter(model_.spec(), p, block, *weights.weights, 0, out);
    });
  }

  void run() {
    const config::OptimizerOptions options = optimizer_of(case_);
    const auto count = static_cast<int64_t>(*case_.number("steps"));
    const zero::LearningRate rate(options, count);
    for (int64_t step = 0; step < count; ++step) {
      losses.push_back(gradients_of(step));
      rates.push_back(rate.at(step));
      norms.push_back(model_.step(learn::adamw_options(options, rates.back())).grad_norm);
    }
  }

  // A whole parameter; every replica has the same rows.
  Tensor parameter(const std::string& name) {
    const size_t p = parameter_index(model_.spec(), name);
    return whole_parameter(model_, p, model_.master(p)).div(run_.shard_groups);
  }

  std::vector<double> losses, norms, rates;

 private:
  std::filesystem::path path() const { return gold() / "steps" / *case_.word("model"); }
  model::ModelSpec spec() const {
    auto out = model::describe(model::open_model(path()).shape, model::HeadKind::language);
    model::freeze(out, case_.words("freeze"), "freeze");
    return out;
  }

  // Gradients of one step in micro-batches; returns its loss.
  double gradients_of(int64_t step) {
    GoldenRows mine(case_.input("sequences").select(0, step),
                    case_.input("attention_mask").select(0, step));
    mine.set_action_mask(case_.input("loss_mask").select(0, step));
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < mine.samples().size(); ++i) lengths.push_back(mine.samples().length(i));
    auto bins = ppo::micro_batches(lengths, run_.micro_batch_tokens, 1);
    bins.resize(static_cast<size_t>(world().max(static_cast<int64_t>(bins.size()))));
    std::vector<learn::ActionBatch> batches;
    std::array<double, 2> totals{};
    for (const auto& bin : bins) {
      batches.push_back(learn::make_action_batch(mine.samples(), bin, at::kCPU));
      totals[0] += static_cast<double>(batches.back().columns.numel());
    }
    sum_over_ranks(totals);
    const ppo::Normalizer normalizer{totals[0], std::nullopt, 1};
    double here = 0;
    int64_t left = std::ssize(batches);
    for (const auto& batch : batches) {
      const auto loss_of = [&](const Tensor& hidden, const Tensor& head) {
        const auto out = kernels::token_log_probs(hidden.index_select(0, batch.rows), head,
                                                  batch.targets, 1.0, kernels::Entropy::skip);
        Tensor loss =
            ppo::sft_loss(out.log_probs, config::LossAggregation::token_mean,
                          {at::ones_like(batch.columns, at::kByte), batch.segments, normalizer});
        here += loss.item<double>();
        return loss;
      };
      model_.forward_backward(batch.packed, loss_of, zero::reduce_before(--left));
    }
    return world().sum(here);
  }

  const GoldenCase& case_;
  Run run_;
  int group_size_;
  comm::Comm shard_, replicas_;
  zero::ShardedModel model_;
};

void train_and_compare(const GoldenCase& c, const Run& run) {
  SCOPED_TRACE(run.name);
  Training training(c, run);
  training.run();
  expect_matches(c, "lrs", at::tensor(training.rates));
  if (run.compute == config::DType::bf16) {
    // Twice the distance of PyTorch's own bf16 run from float32: a third rounding of the same kind
    // lies within it.
    expect_matches(c, "bf16_losses", at::tensor(training.losses));
    return;
  }
  expect_matches(c, "losses", at::tensor(training.losses));
  expect_matches(c, "grad_norms", at::tensor(training.norms));
  for (const auto& [field, key] : c.outputs) {
    if (field.starts_with("param/")) expect_matches(c, field, training.parameter(field.substr(6)));
  }
}

// All models; of a fake device, where each takes its time, one.
std::vector<const GoldenCase*> steps_here() {
  if (site().device) return {&steps().at("sft_steps.llama_untied")};
  return steps().starting_with("sft_steps.");
}

using Steps = AtSite;

TEST_F(Steps, EveryModelWithPackedMicroBatches) {
  ASSERT_EQ(steps().all().size(), 3u);
  for (const GoldenCase* c : steps_here())
    train_and_compare(*c, {.name = c->name, .micro_batch_tokens = 40});
}

TEST_F(Steps, OneMicroBatchWithoutRecompute) {
  train_and_compare(steps().at("sft_steps.llama_untied"),
                    {.name = "one micro-batch", .recompute = 0});
}

TEST_F(Steps, OneSequencePerMicroBatchThroughTheRing) {
  if (site().device) GTEST_SKIP() << "a device has no other exchange";
  train_and_compare(steps().at("sft_steps.llama_untied"),
                    {.name = "ring",
                     .micro_batch_tokens = 1,
                     .recompute = 1,
                     .exchange = comm::ExchangeKind::mpi_ring});
}

TEST_F(Steps, HybridSharding) {
  if (world().size() == 1) GTEST_SKIP() << "one rank has no groups";
  const auto& c = steps().at("sft_steps.llama_tied");
  train_and_compare(
      c, {.name = "every rank a group", .micro_batch_tokens = 40, .shard_groups = world().size()});
  if (world().size() % 2 == 0)
    train_and_compare(c, {.name = "two groups", .recompute = 0, .shard_groups = 2});
}

// Parameters that the gold run left alone are not among its outputs; all others are.
TEST_F(Steps, OfWhatIsNotFrozen) {
  ASSERT_EQ(frozen_steps().all().size(), 4u);
  for (const GoldenCase* c : frozen_steps().starting_with("frozen_steps.")) {
    train_and_compare(*c, {.name = c->name, .micro_batch_tokens = 40});
    if (site().device) return;
    train_and_compare(
        *c, {.name = c->name + " ring", .recompute = 0, .exchange = comm::ExchangeKind::mpi_ring});
  }
}

TEST_F(Steps, Bf16) {
  for (const GoldenCase* c : steps_here()) {
    train_and_compare(
        *c, {.name = c->name + " bf16", .micro_batch_tokens = 40, .compute = config::DType::bf16});
  }
}

}  // namespace
}  // namespace trireme::test
