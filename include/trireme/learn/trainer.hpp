// The trainer role: actor and critic, evaluation of experience, PPO epochs. All calls are
// collective over the trainers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/comm/progress.hpp"
#include "trireme/comm/roles.hpp"
#include "trireme/config/options.hpp"
#include "trireme/learn/bad_batches.hpp"
#include "trireme/learn/exchange.hpp"
#include "trireme/learn/learning.hpp"
#include "trireme/learn/mismatch.hpp"
#include "trireme/learn/skipped_steps.hpp"
#include "trireme/learn/teacher_rows.hpp"
#include "trireme/learn/training_state.hpp"
#include "trireme/learn/update_step.hpp"
#include "trireme/machine/compute_resources.hpp"
#include "trireme/machine/memory_check.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/ppo/experience.hpp"
#include "trireme/zero/schedule.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::learn {

// One iteration's update.
struct UpdateSettings {
  int64_t iteration = 0;  // from 0: seeds the order of the optimizer steps, tells whether the actor
                          // waits (critic.freezing_steps)
  double kl_coefficient = 0;           // of the KL in the loss
  PretrainingRows pretraining = {};    // empty without actor.ptx_coef
  comm::Progress* progress = nullptr;  // worked on after each micro-batch; before each optimizer
                                       // step all trainers may leave
  BadBatches* bad_batches = nullptr;   // keep the steps whose gradient is not finite
};

// The models that a PPO run trains.
struct TrainedModels {
  const model::ModelSpec& actor;
  const model::ModelSpec* critic = nullptr;  // null: the estimator has none
};

class Trainer {
 public:
  // Collective over the trainers. `optimizer_steps` is the length of the learning-rate schedules.
  Trainer(const config::Options& options, const comm::Roles& roles, const TrainedModels& models,
          const machine::ComputeResources& resources, const machine::MemoryCheck& memory,
          int64_t optimizer_steps);

  zero::ShardedModel& actor() { return *actor_; }
  zero::ShardedModel* critic() { return critic_.get(); }  // nullptr: the estimator has none
  // The frozen teacher of algo.distill.policy = "distribution"; null: none, or the actor without
  // its adapter.
  const zero::ShardedModel* teacher() const { return teacher_.get(); }
  // Threads that worked in the last update(); 0: it was too short to say.
  int threads_worked() const { return meter_.worked(); }
  // The length of the learning-rate schedules that a resumed run began with.
  void set_schedule(int64_t optimizer_steps);

  // That teacher, where it is a model of its own. Collective.
  void add_teacher(std::unique_ptr<zero::ShardedModel> teacher);

  // After the weights were loaded and before a checkpoint is: starts the moving average where the
  // deck asks for one.
  void start_average();

  // Where score() takes old log-probs from; until this is called it computes them.
  void set_old_log_probs(const OldLogProbs& old_log_probs) { old_log_probs_ = old_log_probs; }
  // Sets old log-probs, with a critic values, and the reference's log-probs where that is the actor
  // without its adapter and no optimizer step runs it. `version` is that of the weights; unknown
  // (-1): old log-probs are computed. `progress` is worked on after each micro-batch, and where the
  // trainers `may` they leave the pass there. Returns the mismatch with the rollout's log-probs;
  // nullopt: they left.
  std::optional<Mismatch> score(ppo::Experience& experience, int64_t version = -1,
                                comm::Progress* progress = nullptr,
                                comm::May may = comm::May::stay);
  // Rewards to advantages; group baselines see the rewards of all trainers.
  ppo::PipelineReport advantages(ppo::Experience& experience, const SequenceList& sequences,
                                 double kl_coefficient);
  // The optimizer steps of the PPO epochs that `report` does not have yet; adds this rank's sums to
  // it. `sequences` are those of the whole rollout, and this trainer has those that
  // plan_epoch() gives it for the first epoch; for each later one trainers hand over to each
  // other. leave: the run stops before the last one. Collective.
  comm::Then take_steps(const ppo::Experience& experience, const SequenceList& sequences,
                        const UpdateSettings& settings, UpdateReport& report);
  // This rank's sums become means over all trainers and optimizer steps. Collective.
  void average(UpdateReport& report) const;
  // Mean KL to the reference that the iteration saw: of the rollout's tokens before the update, a
  // mean over sequences of their token means; with algo.kl.use_loss the KL in the loss, a mean over
  // the optimizer steps (OpenRLHF: info["kl"]); with a teacher of distributions the divergence in
  // the loss. nullopt where it was not computed: in the loss
  // while the actor waits for the critic. Collective.
  std::optional<double> kl_to_reference(const PipelineTotals& pipeline,
                                        const UpdateReport& update) const;
  // After an iteration with `kl_coefficient`, which adapts to the KL that was seen (F26); without
  // one it stays.
  TrainingState next_state(double kl_coefficient, const std::optional<double>& kl) const;
  // Between two optimizer steps of an iteration with `kl_coefficient`.
  TrainingState state_inside(double kl_coefficient) const;

 private:
  // One planned optimizer step as this rank has it; `number` counts those of the iteration.
  // Collective.
  UpdateStep make_step(const ppo::Experience& experience,
                       const std::vector<std::vector<int64_t>>& micro_batches,
                       const PretrainingRows& pretraining, int64_t number);
  void sum(std::span<double> values) const;

  config::Options options_;
  comm::CommView ranks_;  // with sequences of their own
  at::Device device_;
  machine::Threads threads_;
  machine::ThreadMeter meter_;
  std::unique_ptr<zero::ShardedModel> actor_;
  std::unique_ptr<zero::ShardedModel> critic_;
  bool refers_;  // the reference is the actor without its adapter
  std::unique_ptr<zero::ShardedModel> teacher_;
  std::optional<TeacherRows> teacher_rows_;  // of algo.distill.policy = "distribution"
  zero::LearningRate actor_rate_;
  std::optional<zero::LearningRate> critic_rate_;
  SkippedSteps actor_skips_{options_.train.max_skipped_steps};
  SkippedSteps critic_skips_{options_.train.max_skipped_steps};
  OldLogProbs old_log_probs_;
};

}  // namespace trireme::learn
