// PPO and its relatives. Read run() first: it is the algorithm, and says which ranks do what and
// where they meet.
#pragma once

#include <optional>

#include "driver/ppo_roles.hpp"
#include "driver/rollout_phase.hpp"
#include "driver/run.hpp"
#include "driver/run_control.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/learn/bad_batches.hpp"
#include "trireme/learn/datasets.hpp"
#include "trireme/learn/unfinished.hpp"

namespace trireme::driver {

class PpoLoop {
 public:
  // Collective over world: loads data and models, starts plugins.
  PpoLoop(const config::Options& options, const comm::Session& session);
  PpoLoop(const PpoLoop&) = delete;
  // Collective.
  ExitCode run();

 private:
  // Where the run stands: at a checkpoint, or before its first iteration.
  RunState resume_or_start();
  // One iteration. The exit code of a run that was asked to stop inside it.
  std::optional<ExitCode> iterate(RunState& state, report::IterationMetrics& metrics);
  // The iteration that a stop had interrupted, up to the end of its learning: what iterate() does
  // first.
  std::optional<ExitCode> finish_learning(learn::Unfinished unfinished, RunState& state,
                                          report::IterationMetrics& metrics);
  // This trainer's batches; null where the rank is none.
  std::optional<learn::Learning> begin_learning(Samples samples,
                                                const learn::SequenceList& sequences,
                                                const RunState& state);
  // Optimizer steps. state.training, the same on every rank. leave: the run stops between two of
  // them.
  comm::Then learn(std::optional<learn::Learning>& learning, const learn::SequenceList& sequences,
                   RunState& state, report::IterationMetrics& metrics);
  // The run stops inside the iteration: saves what is done of it.
  ExitCode leave_inside(const char* phase, RunState state, const report::IterationMetrics& metrics,
                        const learn::Learning* learning);
  void sync_weights(const RunState& state);

  Run run_;
  text::Tokenizer tokenizer_;
  data::PromptSet prompts_;
  data::PromptSampler sampler_;
  int64_t iterations_;  // of the whole run
  std::optional<data::PromptSet> held_out_;
  std::optional<learn::PretrainingTexts> pretraining_;  // actor.ptx_coef
  PpoRoles roles_;
  RolloutPhase rollouts_;
  std::optional<learn::Unfinished> unfinished_;  // an earlier start's part of the first iteration
  learn::BadBatches bad_batches_;
  RunControl control_;  // last: it saves what stands above
};

}  // namespace trireme::driver
