#include "torch/torch.hpp"

#include "trireme/learn/trainer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/config/models_of.hpp"
#include "trireme/kernels/device_type.hpp"
#include "trireme/learn/reward_rows.hpp"
#include "trireme/learn/scoring.hpp"
#include "trireme/learn/sharded_models.hpp"
#include "trireme/learn/step_plan.hpp"
#include "trireme/plan/decisions.hpp"
#include "trireme/ppo/kl.hpp"
#include "trireme/ppo/minibatches.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::learn {
namespace {

// The actor, or with a score head the critic.
std::unique_ptr<zero::ShardedModel> make_model(const config::Options& options,
                                               const comm::Roles& roles,
                                               const model::ModelSpec& spec, at::Device device,
                                               const machine::MemoryCheck& memory,
                                               const zero::ShardedModel* base = nullptr) {
  auto its = trained_options(options, roles, spec, memory);
  if (spec.head == model::HeadKind::score) its.name = "critic";
  its.track_changes =
      plan::sends_deltas(options, !kernels::on_host(device), roles.topology.nodes == 1);
  its.base = base;
  return make_sharded(roles.trainers, spec, device, std::move(its));
}

std::unordered_map<uint64_t, int64_t> rows_by_id(const Samples& samples) {
  std::unordered_map<uint64_t, int64_t> out;
  for (int64_t i = 0; i < samples.size(); ++i) out.emplace(samples.id[static_cast<size_t>(i)], i);
  return out;
}

}  // namespace

Trainer::Trainer(const config::Options& options, const comm::Roles& roles,
                 const TrainedModels& models, const machine::ComputeResources& resources,
                 const machine::MemoryCheck& memory, int64_t optimizer_steps)
    : options_(options),
      ranks_(roles.trainers.batch()),
      device_(resources.device),
      threads_(resources.threads),
      actor_(make_model(options, roles, models.actor, device_, memory)),
      critic_(models.critic
                  ? make_model(options, roles, *models.critic, device_, memory,
                               config::critic_shares_base(options) ? actor_.get() : nullptr)
                  : nullptr),
      refers_(config::reference_is_actor(options, config::Command::ppo)),
      actor_rate_(options.actor, optimizer_steps),
      old_log_probs_(options, {"the generators were not asked"}) {
  if (critic_) critic_rate_.emplace(options.critic, optimizer_steps);
  if (refers_ && options.algo.distill.in_steps())
    teacher_rows_.emplace(options.algo.distill, *actor_, model::AdapterUse::disabled);
}

void Trainer::add_teacher(std::unique_ptr<zero::ShardedModel> teacher) {
  teacher_ = std::move(teacher);
  teacher_rows_.emplace(options_.algo.distill, *teacher_);
}

void Trainer::set_schedule(int64_t optimizer_steps) {
  actor_rate_ = zero::LearningRate(options_.actor, optimizer_steps);
  if (critic_) critic_rate_.emplace(options_.critic, optimizer_steps);
}

void Trainer::start_average() {
  if (options_.train.enable_ema) actor_->enable_average(options_.train.ema_beta);
}

void Trainer::sum(std::span<double> values) const {
  ranks_.all_reduce(values.data(), static_cast<int64_t>(values.size()), comm::DType::f64,
                    comm::Op::sum);
}

std::optional<Mismatch> Trainer::score(ppo::Experience& experience, int64_t version,
                                       comm::Progress* progress, comm::May may) {
  threads_.use();
  const ScoringPass by{{ranks_, progress, may}, options_.rollout_micro_batch_tokens(), device_};
  Mismatch mismatch;
  {
    const trace::Region region{"old log-probs"};
    mismatch = old_log_probs_.evaluate(experience, *actor_, by.pass, version,
                                       scoring_temperature(options_), device_);
    if (!experience.old_log_probs.defined()) return std::nullopt;
  }
  if (refers_ && !teacher_rows_) {
    const trace::Region region{"reference log-probs"};
    experience.ref_log_probs =
        action_log_probs(*actor_, experience.samples, by, scoring_temperature(options_),
                         model::AdapterUse::disabled);
    if (!experience.ref_log_probs.defined()) return std::nullopt;
  }
  if (critic_) {
    const trace::Region region{"values"};
    experience.values = action_values(*critic_, experience.samples, by,
                                      critic_scale(options_, critic_->spec().shape));
    if (!experience.values.defined()) return std::nullopt;
  }
  return mismatch;
}

ppo::PipelineReport Trainer::advantages(ppo::Experience& experience, const SequenceList& sequences,
                                        double kl_coefficient) {
  const ppo::PipelineOptions how = ppo::pipeline_options(options_, kl_coefficient);
  const ppo::Sum over_trainers = [this](std::span<double> values) { sum(values); };
  const RewardRows rewards =
      gather_rewards(experience.samples, sequences, how.parts(), over_trainers);
  return ppo::advantages(experience, rewards.table, rewards.mine, how, over_trainers);
}

UpdateStep Trainer::make_step(const ppo::Experience& experience,
                              const std::vector<std::vector<int64_t>>& micro_batches,
                              const PretrainingRows& pretraining, int64_t number) {
  UpdateStep step;
  step.sum = [this](std::span<double> values) { sum(values); };
  step.teacher = teacher_rows_ ? &*teacher_rows_ : nullptr;
  std::vector<ppo::CountedSequence> counted;
  for (const auto& rows : micro_batches) {
    step.micro_batches.push_back(experience.select(rows));
    const auto more = ppo::counted_sequences(step.micro_batches.back().samples);
    counted.insert(counted.end(), more.begin(), more.end());
  }
  step.normalizer = ppo::step_normalizer(counted, options_, step.sum);
  if (pretraining) {
    step.pretraining = pretraining(number);
    step.pretraining_totals = totals_of(step.pretraining, ranks_);
  }
  return step;
}

comm::Then Trainer::take_steps(const ppo::Experience& experience, const SequenceList& sequences,
                               const UpdateSettings& settings, UpdateReport& report) {
  threads_.use();
  meter_.start();
  const ppo::Experience* held = &experience;
  ppo::Experience handed_over;  // by others, for a later epoch
  std::unordered_map<uint64_t, int64_t> row_of = rows_by_id(experience.samples);
  std::vector<int> owner;
  int64_t number = 0;  // of the step within the iteration
  for (int64_t epoch = 0; epoch < options_.train.max_epochs; ++epoch) {
    const EpochPlan plan =
        plan_epoch(options_, sequences, ranks_.size(), settings.iteration + 1, epoch);
    if (epoch == 0) owner = plan.owner;
    for (const auto& planned : plan.steps) {
      if (number++ < report.steps) continue;  // taken before the run was interrupted
      if (settings.progress && settings.progress->agree(ranks_) == comm::Then::leave)
        return comm::Then::leave;
      if (plan.owner != owner) {
        handed_over = hand_over(*held, sequences, plan.owner, ranks_);
        held = &handed_over;
        row_of = rows_by_id(held->samples);
        owner = plan.owner;
      }
      if (ranks_.rank() == 0) count_balance(planned, sequences);
      ppo::Bins mine = planned.micro_batches[static_cast<size_t>(ranks_.rank())];
      for (auto& bin : mine) {
        for (int64_t& sequence : bin)
          sequence = row_of.at(sequences[static_cast<size_t>(sequence)].id);
      }
      UpdateStep step = make_step(*held, mine, settings.pretraining, report.steps);
      step.progress = settings.progress;
      step.kl_coefficient = settings.kl_coefficient;
      if (settings.progress) settings.progress->some();
      const bool talks = ranks_.rank() == 0;
      const auto look_at = [&](SkippedSteps& skips, const char* name,
                               const zero::StepResult& result) {
        if (!result.updated && settings.bad_batches)
          settings.bad_batches->save(step, settings.iteration + 1, report.steps + 1);
        skips.count(name, result, talks);
      };
      if (critic_) {
        const double rate = critic_rate_->at_or_last(critic_->steps());
        look_at(critic_skips_, "critic",
                critic_step(*critic_, step, options_, rate, device_, report));
      }
      if (settings.iteration > options_.critic.freezing_steps) {
        const double rate = actor_rate_.at_or_last(actor_->steps());
        look_at(actor_skips_, "actor", actor_step(*actor_, step, options_, rate, device_, report));
      }
      ++report.steps;
    }
  }
  meter_.stop();
  return comm::Then::go_on;
}

void Trainer::average(UpdateReport& report) const {
  std::vector<double> sums;
  for (const auto loss : UpdateReport::losses) sums.push_back(report.*loss);
  const auto losses = std::ssize(sums);
  sums.insert(sums.end(), report.statistics.sums.begin(), report.statistics.sums.end());
  sum(sums);
  std::copy(sums.begin() + losses, sums.end(), report.statistics.sums.begin());
  const auto steps = static_cast<double>(std::max<int64_t>(report.steps, 1));
  auto mean = sums.begin();
  for (const auto loss : UpdateReport::losses) report.*loss = *mean++ / steps;
  report.grad_norm /= steps;
  report.critic_grad_norm /= steps;
}

std::optional<double> Trainer::kl_to_reference(const PipelineTotals& pipeline,
                                               const UpdateReport& update) const {
  if (teacher_rows_ || options_.algo.kl.use_loss) {
    const double in_loss = teacher_rows_ ? update.distill_loss : update.kl_loss;
    return update.actor_steps > 0 ? std::optional(in_loss) : std::nullopt;
  }
  std::array<double, 2> sums{pipeline.kl, pipeline.sequences};
  sum(sums);
  return sums[0] / std::max(1.0, sums[1]);
}

TrainingState Trainer::next_state(double kl_coefficient, const std::optional<double>& kl) const {
  const auto& options = options_.algo.kl;
  if (options.target && kl) {
    kl_coefficient =
        ppo::adapt_kl_coefficient(kl_coefficient, *kl, *options.target,
                                  static_cast<double>(options_.sequences_per_iteration()),
                                  static_cast<double>(options.horizon));
  }
  return state_inside(kl_coefficient);
}

TrainingState Trainer::state_inside(double kl_coefficient) const {
  return {actor_->steps(), critic_ ? critic_->steps() : 0, kl_coefficient};
}

}  // namespace trireme::learn
