// The numbers of a PPO iteration, gathered from the roles. Everything here is collective over the communicator it takes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver/generator.hpp"
#include "driver/metrics.hpp"
#include "trireme/driver/progress.hpp"
#include "driver/roles.hpp"
#include "trireme/machine/threads.hpp"
#include "driver/trainer.hpp"
#include "trireme/base/samples.hpp"
#include "trireme/ppo/experience.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::driver {

// Collective over ranks.
void sum_over(const comm::CommView& ranks, std::vector<double>& values);

// reward, its parts, response_length, truncated share, response_clip_ratio (share of sequences of `max_len` tokens), tokens, of
// samples that lie on any ranks. `parts` names the reward sources. Collective over world.
void add_rollout_metrics(const comm::CommView& world, const Samples& samples, const std::vector<std::string>& parts,
                         int64_t max_len, IterationMetrics& metrics);

// `kl_coefficient` of this iteration, `kl` as Trainer::kl_to_reference() has it, losses, clip_ratio, mismatch, norms and rates. Collective over the trainers.
void add_training_metrics(const config::Options& options, const Roles& roles, double kl_coefficient,
                          const PipelineTotals& pipeline, const learn::Mismatch& mismatch, const learn::UpdateReport& update,
                          const std::optional<double>& kl, IterationMetrics& metrics);

// What the trainers know, on every rank: their metrics, and the state that they returned. Collective over world.
TrainingState share_training_state(const Roles& roles, IterationMetrics& metrics, const TrainingState& state);

// A model of this rank: actor, critic, reference, reward_NAME.
using ModelMemory = std::pair<std::string, zero::MemoryUse>;
// Bytes by kind ("actor_moments", "reference_weights", ...), the largest over ranks; of every model that any rank has. Null where
// this rank is no generator. Collective over world.
void add_memory_metrics(const comm::CommView& world, const std::vector<ModelMemory>& models, const GeneratorMemory* generator,
                        IterationMetrics& metrics);

// Threads that were planned and that worked, the fewest over the ranks of a role. Null where this rank lacks the role. Collective
// over world.
void add_thread_metrics(const comm::CommView& world, const machine::ThreadPlan& threads, const Trainer* trainer, const Generator* generator,
                        IterationMetrics& metrics);

// eval_reward (mean), eval_pass1 and eval_pass<n>: mean share of samples, and share of prompts with any sample, whose reward is
// above 0.5.
void add_evaluation_metrics(const comm::CommView& world, const Samples& samples, int64_t n, IterationMetrics& metrics);

// Prompt of a sample within its iteration: the samples of one prompt share it.
inline uint64_t group_of(uint64_t id) { return id >> 20; }

// Groups whose mean reward lies strictly inside `range`, in the order of their prompts. Collective over world.
std::vector<uint64_t> informative_groups(const comm::CommView& world, const Samples& samples, const config::Range& range);

}  // namespace trireme::driver
