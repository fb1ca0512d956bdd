// One optimizer step of PPO, model by model: gradients of the losses over its micro-batches, then
// AdamW. Collective over the trainers.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "trireme/comm/comm.hpp"
#include "trireme/comm/progress.hpp"
#include "trireme/config/options.hpp"
#include "trireme/learn/scoring.hpp"
#include "trireme/learn/teacher_rows.hpp"
#include "trireme/learn/training_set.hpp"
#include "trireme/ppo/experience.hpp"
#include "trireme/ppo/losses.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::learn {

// Sums over the micro-batches of this rank and over optimizer steps, until Trainer::average() makes
// means of them.
struct UpdateReport {
  double policy_loss = 0;
  double value_loss = 0;
  double kl_loss = 0;
  double ptx_loss = 0;
  double entropy = 0;
  double positive_nll = 0;
  double distill_loss = 0;
  double grad_norm = 0;
  double critic_grad_norm = 0;
  double lr = 0;
  double critic_lr = 0;
  ppo::PolicyStatistics statistics;
  int64_t steps = 0;
  int64_t actor_steps =
      0;  // of these; fewer while the actor waits for the critic (critic.freezing_steps)
  int64_t changed_values = 0;
  int64_t skipped_steps = 0;  // the gradient was not finite

  // Sums over trainers, until they are averaged.
  static constexpr std::array losses{&UpdateReport::policy_loss, &UpdateReport::value_loss,
                                     &UpdateReport::kl_loss,     &UpdateReport::ptx_loss,
                                     &UpdateReport::entropy,     &UpdateReport::positive_nll,
                                     &UpdateReport::distill_loss};
};

// The data of an optimizer step on this rank; as many micro-batches as on every other
// trainer, empty ones at the end.
struct UpdateStep {
  std::vector<ppo::Experience> micro_batches;
  ppo::Normalizer normalizer;
  ppo::Sum sum;  // over the trainers; for what a step has to know of all its tokens
  std::vector<RowBatch> pretraining;  // empty without actor.ptx_coef
  BatchTotals pretraining_totals;
  TeacherRows* teacher = nullptr;      // with algo.distill.policy = "distribution"
  comm::Progress* progress = nullptr;  // worked on after each micro-batch
  double kl_coefficient = 0;           // of the KL in the actor's loss
};

// Policy loss, and where the deck asks for them KL loss (times kl_coefficient), divergence from a
// teacher, entropy bonus and pretraining loss.
zero::StepResult actor_step(zero::ShardedModel& actor, const UpdateStep& step,
                            const config::Options& options, double lr, at::Device device,
                            UpdateReport& report);
zero::StepResult critic_step(zero::ShardedModel& critic, const UpdateStep& step,
                             const config::Options& options, double lr, at::Device device,
                             UpdateReport& report);

// The temperature at which log-probs are taken: the rollout's, 1 for a greedy one.
double scoring_temperature(const config::Options& options);

// The optimizer's options for one step.
zero::AdamWOptions adamw_options(const config::OptimizerOptions& options, double lr);

}  // namespace trireme::learn
