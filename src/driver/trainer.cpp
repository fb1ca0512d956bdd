#include "torch/torch.hpp"

#include "driver/trainer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "driver/scoring.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/ppo/kl.hpp"
#include "trireme/ppo/minibatches.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {
namespace {

std::unique_ptr<zero::ShardedModel> make_model(const config::Options& options, const Roles& roles,
                                               const model::ModelSpec& spec, at::Device device, const char* name) {
  const std::optional<comm::CommView> replicas =
      roles.shard_groups > 1 ? std::optional(roles.shard_replicas.view()) : std::nullopt;
  return std::make_unique<zero::ShardedModel>(
      spec, roles.shard_group.view(), replicas, device,
      zero::ShardedModelOptions{.name = name,
                                .compute = options.model.dtype,
                                .training = zero::Training::trainable,
                                .recompute = options.train.recompute,
                                .track_changes = false});
}

double scoring_temperature(const config::Options& options) {
  return options.rollout.temperature > 0 ? options.rollout.temperature : 1.0;
}

ppo::PlanInput plan_input(const config::Options& options, const Cards& cards, int trainers, int64_t iteration, int64_t epoch) {
  return {.lengths = lengths_of(cards),
          .owner = {},
          .ranks = trainers,
          .batch_size = options.train.batch_size,
          .micro_batch_tokens = options.train.micro_batch_tokens,
          .seed = static_cast<uint64_t>(options.run.seed),
          .shuffle = static_cast<uint64_t>(iteration * options.train.max_epochs + epoch)};
}

// A micro-batch on the device: its packed sequences and its columns of action tokens.
struct DeviceBatch {
  DeviceBatch(const ppo::Experience& micro, at::Device where) : device(where) {
    std::vector<int64_t> which(static_cast<size_t>(micro.sequences()));
    std::iota(which.begin(), which.end(), int64_t{0});
    actions = make_action_batch(micro.samples, which, device);
    host_columns = actions.columns.to(at::kCPU);
    mask = at::ones_like(actions.columns, at::kByte);
  }
  // The action columns of a host tensor [T]; undefined stays undefined.
  at::Tensor column(const at::Tensor& all) const {
    return all.defined() ? all.index_select(0, host_columns).to(device) : at::Tensor{};
  }

  at::Device device;
  ActionBatch actions;
  at::Tensor host_columns;
  at::Tensor mask;
};

}  // namespace

double learning_rate(const zero::LearningRate& schedule, int64_t step) { return schedule.at(std::min(step, schedule.steps())); }

zero::AdamWOptions adamw_options(const config::OptimizerOptions& options, double lr) {
  return {.lr = lr,
          .beta1 = options.adam.betas[0],
          .beta2 = options.adam.betas[1],
          .eps = options.adam.eps,
          .weight_decay = options.adam.weight_decay,
          .max_norm = options.max_norm};
}

// One optimizer step on this rank.
struct Trainer::Step {
  std::vector<ppo::Experience> micro_batches;  // as many as on every other trainer, empty ones at the end
  ppo::Normalizer normalizer;
};

Trainer::Trainer(const config::Options& options, const Roles& roles, const model::ModelSpec& actor,
                 const std::optional<model::ModelSpec>& critic, at::Device device, int threads, int64_t optimizer_steps)
    : options_(options),
      ranks_(roles.trainers.view()),
      device_(device),
      threads_(threads),
      actor_(make_model(options, roles, actor, device, "actor")),
      critic_(critic ? make_model(options, roles, *critic, device, "critic") : nullptr),
      actor_rate_(options.actor, optimizer_steps),
      kl_coefficient_(options.algo.kl.init_coef),
      old_log_probs_(options, {"the generators were not asked"}) {
  if (critic_) critic_rate_.emplace(options.critic, optimizer_steps);
}

void Trainer::set_schedule(int64_t optimizer_steps) {
  actor_rate_ = zero::LearningRate(options_.actor, optimizer_steps);
  if (critic_) critic_rate_.emplace(options_.critic, optimizer_steps);
}

void Trainer::start_average() {
  if (options_.train.enable_ema) actor_->enable_average(options_.train.ema_beta);
}

void Trainer::sum(std::span<double> values) const {
  ranks_.all_reduce(values.data(), static_cast<int64_t>(values.size()), comm::DType::f64, comm::Op::sum);
}

Mismatch Trainer::evaluate(ppo::Experience& experience, int64_t version) {
  at::set_num_threads(threads_);
  Mismatch mismatch;
  {
    const trace::Region region{"old log-probs"};
    mismatch = old_log_probs_.evaluate(experience, *actor_, ranks_, version, scoring_temperature(options_), device_);
  }
  if (critic_) {
    const trace::Region region{"values"};
    experience.values = action_values(*critic_, experience.samples, ranks_, options_.rollout_micro_batch_tokens(), device_);
  }
  return mismatch;
}

ppo::PipelineReport Trainer::shape(ppo::Experience& experience, const Cards& cards) {
  std::unordered_map<uint64_t, size_t> place_of;
  for (size_t i = 0; i < cards.size(); ++i) place_of.emplace(cards[i].id, i);
  const ppo::RewardTable mine = ppo::reward_table(experience.samples);
  std::vector<int64_t> rows;
  std::vector<double> all(3 * cards.size(), 0.0);  // reward, length, truncated of every sequence
  for (size_t i = 0; i < mine.reward.size(); ++i) {
    const size_t row = place_of.at(experience.samples.id[i]);
    rows.push_back(static_cast<int64_t>(row));
    all[3 * row] = double{mine.reward[i]};
    all[3 * row + 1] = static_cast<double>(mine.response_length[i]);
    all[3 * row + 2] = mine.truncated[i];
  }
  sum(all);
  ppo::RewardTable table;
  for (size_t row = 0; row < cards.size(); ++row) {
    table.reward.push_back(static_cast<float>(all[3 * row]));
    table.response_length.push_back(static_cast<int64_t>(all[3 * row + 1]));
    table.truncated.push_back(all[3 * row + 2] != 0);
  }
  return ppo::advantages(experience, table, rows, ppo::pipeline_options(options_, kl_coefficient_),
                         [this](std::span<double> values) { sum(values); });
}

std::vector<int> Trainer::place(const config::Options& options, const Cards& cards, int trainers, int64_t iteration) {
  std::vector<int> owner(cards.size(), 0);
  for (const auto& step : ppo::plan_epoch(plan_input(options, cards, trainers, iteration, 0))) {
    for (size_t rank = 0; rank < step.micro_batches.size(); ++rank) {
      for (const auto& bin : step.micro_batches[rank]) {
        for (const int64_t sequence : bin) owner[static_cast<size_t>(sequence)] = static_cast<int>(rank);
      }
    }
  }
  return owner;
}

UpdateReport Trainer::update(ppo::Experience& experience, const Cards& cards, const std::vector<int>& owner,
                             int64_t iteration) {
  at::set_num_threads(threads_);
  std::unordered_map<uint64_t, int64_t> local_row;
  for (int64_t i = 0; i < experience.sequences(); ++i) local_row.emplace(experience.samples.id[static_cast<size_t>(i)], i);

  UpdateReport report;
  for (int64_t epoch = 0; epoch < options_.train.max_epochs; ++epoch) {
    auto input = plan_input(options_, cards, ranks_.size(), iteration, epoch);
    input.owner = owner;
    for (const auto& planned : ppo::plan_epoch(input)) {
      Step step;
      std::array<double, 2> totals{};  // action tokens, sequences with any
      for (const auto& bin : planned.micro_batches[static_cast<size_t>(ranks_.rank())]) {
        std::vector<int64_t> rows;
        for (const int64_t sequence : bin) rows.push_back(local_row.at(cards[static_cast<size_t>(sequence)].id));
        step.micro_batches.push_back(experience.select(rows));
        totals[0] += static_cast<double>(step.micro_batches.back().action_tokens());
        for (const int64_t length : ppo::response_lengths(step.micro_batches.back().samples)) totals[1] += length > 0;
      }
      sum(totals);
      step.normalizer.action_tokens = totals[0];
      step.normalizer.sequences = totals[1];
      if (before_step) before_step();
      if (critic_) train_critic(step, report);
      if (iteration > options_.critic.freezing_steps) train_actor(step, report);
      ++report.steps;
    }
  }
  std::vector<double> sums{report.policy_loss, report.value_loss, report.kl_loss, report.entropy};
  sums.insert(sums.end(), report.statistics.sums.begin(), report.statistics.sums.end());
  sum(sums);
  const auto steps = static_cast<double>(std::max<int64_t>(report.steps, 1));
  report.policy_loss = sums[0] / steps;
  report.value_loss = sums[1] / steps;
  report.kl_loss = sums[2] / steps;
  report.entropy = sums[3] / steps;
  std::copy(sums.begin() + 4, sums.end(), report.statistics.sums.begin());
  report.grad_norm /= steps;
  report.critic_grad_norm /= steps;
  return report;
}

void Trainer::train_actor(const Step& step, UpdateReport& report) {
  const trace::Region region{"actor step"};
  const auto loss_options = ppo::policy_loss_options(options_);
  const auto& entropy_coef = options_.actor.entropy_coef;
  const auto entropy_mode = !entropy_coef        ? kernels::Entropy::skip
                            : *entropy_coef == 0 ? kernels::Entropy::value
                                                 : kernels::Entropy::differentiable;
  for (const ppo::Experience& micro : step.micro_batches) {
    const DeviceBatch batch(micro, device_);
    actor_->forward_backward(batch.actions.packed, [&](const at::Tensor& hidden, const at::Tensor& head_weight) {
      const auto head = kernels::token_log_probs(hidden.index_select(0, batch.actions.rows), head_weight, batch.actions.targets,
                                                 scoring_temperature(options_), entropy_mode);
      const ppo::PolicyLossInput input{head.log_probs, batch.column(micro.old_log_probs), batch.column(micro.rollout_log_probs),
                                       batch.column(micro.advantages), batch.mask, batch.actions.segments};
      const auto policy = ppo::policy_loss(input, loss_options, step.normalizer);
      at::Tensor loss = policy.loss;
      report.policy_loss += policy.loss.item<double>();
      report.statistics += policy.statistics;
      if (options_.algo.kl.use_loss && micro.ref_log_probs.defined()) {
        const at::Tensor kl = ppo::kl_loss(head.log_probs, batch.column(micro.ref_log_probs), input.old_log_probs, batch.mask,
                                           batch.actions.segments, options_.algo.kl, step.normalizer);
        report.kl_loss += kl.item<double>();
        loss = loss.add(kl, kl_coefficient_);
      }
      if (entropy_coef) {
        const at::Tensor entropy = ppo::entropy_term(head.entropy, batch.mask, batch.actions.segments, step.normalizer);
        report.entropy += entropy.item<double>();
        if (*entropy_coef != 0) loss = loss.sub(entropy, *entropy_coef);
      }
      return loss;
    });
  }
  report.lr = learning_rate(actor_rate_, actor_->steps());
  const auto result = actor_->step(adamw_options(options_.actor, report.lr));
  report.grad_norm += result.grad_norm;
  report.changed_values += result.changed_values;
  report.skipped_steps += !result.updated;
}

void Trainer::train_critic(const Step& step, UpdateReport& report) {
  const trace::Region region{"critic step"};
  for (const ppo::Experience& micro : step.micro_batches) {
    const DeviceBatch batch(micro, device_);
    critic_->forward_backward(batch.actions.packed, [&](const at::Tensor& hidden, const at::Tensor& head_weight) {
      const at::Tensor values = score_head(hidden.index_select(0, batch.actions.rows), head_weight);
      at::Tensor loss = ppo::value_loss(values, batch.column(micro.values),
                                        batch.column(micro.returns), batch.mask, batch.actions.segments,
                                        options_.critic.value_clip, config::LossAggregation::token_mean, step.normalizer);
      report.value_loss += loss.item<double>();
      return loss;
    });
  }
  report.critic_lr = learning_rate(*critic_rate_, critic_->steps());
  const auto result = critic_->step(adamw_options(options_.critic, report.critic_lr));
  report.critic_grad_norm += result.grad_norm;
  report.skipped_steps += !result.updated;
}

void Trainer::adapt_kl(double kl, int64_t samples) {
  const auto& options = options_.algo.kl;
  if (!options.target) return;
  kl_coefficient_ = ppo::adapt_kl_coefficient(kl_coefficient_, kl, *options.target, static_cast<double>(samples),
                                              static_cast<double>(options.horizon));
}

}  // namespace trireme::driver
