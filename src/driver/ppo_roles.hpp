// The roles that this rank has in a PPO run, and the models behind them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver/checkpointing.hpp"
#include "driver/run.hpp"
#include "driver/weight_bridge.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/environment/environments.hpp"
#include "trireme/learn/model_start.hpp"
#include "trireme/learn/trainer.hpp"
#include "trireme/report/iteration_metrics.hpp"
#include "trireme/reward/scorer.hpp"
#include "trireme/rollout/generator.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::driver {

struct PpoRoles {
  // Starts plugins and environments, then the device, then the models; sizes the KV caches by what
  // the weights of all roles leave. The actor's weights are not loaded yet. Collective over world.
  PpoRoles(Run& run, const text::Tokenizer& tokenizer, const data::PromptSet& prompts,
           const std::optional<data::PromptSet>& held_out, int64_t iterations,
           int64_t schedule_steps);
  PpoRoles(const PpoRoles&) = delete;

  // The weights that a new run starts from. Collective over the trainers.
  void load();
  // Their part of a checkpoint.
  std::vector<SavedModel> saved() const;
  // Trainers to generators. Collective over world.
  void sync_weights(int64_t version);
  // Threads that worked, bytes of all models of all ranks, what engines and plugins did since the
  // last call, the last sync of weights, syncs that had to be repeated. Collective over world.
  void add_metrics(report::IterationMetrics& metrics) const;
  // Before the trainers work: generators that share memory with them give their KV caches back,
  // until the next rollout, and on GPUs their weights, until the next sync, where that sends all of
  // them; unless the memory plan has room for them. Local.
  void release_caches();
  // Where train.replica_check is due: throws when copies of the trained models are not equal. On
  // the trainers; collective over them.
  void check_replicas(int64_t iteration) const;
  // The actor, its moving average and the critic, as far as the deck wants them. Collective over
  // world.
  void export_trained(const std::string& name) const;

  Run& run;
  learn::ModelStart actor_start;
  std::optional<learn::ModelStart> critic_start;
  // Null where this rank lacks the role.
  std::unique_ptr<reward::Scorer> scorer;
  std::unique_ptr<environment::Environments> environments;  // on the first rank of a replica
  std::unique_ptr<learn::Trainer> trainer;
  std::unique_ptr<rollout::Generator> generator;

 private:
  void start_critic();
  void start_programs(const text::Tokenizer& tokenizer);  // plugins and environments
  void start_reference();  // after trainer and scorer; collective over the ranks that have it
  void start_generators(const data::PromptSet& prompts);
  // Whether the rollout's log-probs are those of the trainer, bit for bit.
  void compare_numerics();
  void log_links() const;
  bool exports_critic() const { return run.options.critic.save_value_network && critic_start; }

  std::shared_ptr<const model::KeptFiles> actor_files_, critic_files_;  // for exports
  std::unique_ptr<WeightBridge> weight_bridge_;
  weightsync::SyncTotals last_sync_;
  bool caches_give_way_ = false;  // to this rank's training (plan::caches_give_way())
};

}  // namespace trireme::driver
