// What the loops of all pipelines have in common: roles, folder, device, checkpoints, the report of an iteration, and the ways in
// which a run goes on after one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver/checkpointing.hpp"
#include "driver/memory_check.hpp"
#include "driver/metrics.hpp"
#include "driver/progress.hpp"
#include "driver/roles.hpp"
#include "driver/run_context.hpp"
#include "driver/run_folder.hpp"
#include "driver/threads.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/config/options.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/model/stored_type.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {

class Loop {
 public:
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  virtual ~Loop() = default;

 protected:
  // Collective over world: makes roles and folder, takes the run lock. With another command than ppo every rank is a trainer and
  // nothing else.
  Loop(const config::Options& options, const comm::Session& session, config::Command command);

  // The device becomes current, checkpoints can be added. After all child processes were started. Collective.
  void start_device();
  // Refuses the job where its memory will not do (MemoryCheck::admit). After start_device(), before weights are read. Collective.
  void check_memory(const model::ModelSpec& actor, const std::optional<model::ModelSpec>& critic);
  // Reads the newest checkpoint into the models that were added and sets progress_; without one progress_ is that of a new run
  // whose learning rates span `schedule_steps`. Opens metrics.jsonl. Returns whether there was one. `pending` receives this rank's
  // part of a rollout that was waiting. Collective.
  bool resume_or_begin(int64_t schedule_steps, std::string& pending);

  // Whether the held-out data is due after this iteration: every eval.steps, and after the last.
  bool evaluation_due(int64_t iteration) const;
  // Adds the seconds by phase, writes the line of metrics.jsonl and the console. Collective.
  void report(IterationMetrics& metrics, double seconds);
  // After each iteration: agrees with the others whether to stop, saves when it is time. The exit code of a run that has to leave.
  // Collective.
  std::optional<ExitCode> settle(const IterationMetrics& metrics, double seconds);
  // The end of the run: last checkpoint, export, table, plot. Collective.
  ExitCode finish();

  // The type of exported weights: what the deck says, or with model.dtype = "auto" that of the model the run starts from, so that
  // an export does not depend on the processor.
  model::StoredType export_type(const model::ModelSpec& spec) const;

  // Exports what was trained as Hugging Face folders `name`... of the run folder. Collective.
  virtual void export_trained(const std::string& name) = 0;
  // This rank's part of a rollout that waits for the next iteration.
  virtual std::string pending_rollout() const { return {}; }

  std::optional<trace::Phase> starting_{std::in_place, trace::Name{"start"}};  // until the first iteration
  config::Options options_;  // model.dtype settled
  config::ComputeType asked_type_;  // what the deck says
  const comm::Session& session_;
  config::Command command_;
  Roles roles_;
  RunFolder folder_;
  RunContext context_;
  std::vector<comm::RankPlace> places_;  // of all ranks
  ThreadPlan threads_;
  at::Device device_;
  int64_t iterations_ = 0;  // of the whole run
  std::unique_ptr<Checkpointing> checkpoint_;
  Progress progress_;

 private:
  std::string curve() const { return command_ == config::Command::ppo ? "reward" : "loss"; }
  // Whether an evaluation of this iteration gave the best value of ckpt.best_metric so far; remembers it.
  bool is_best(const IterationMetrics& metrics);
  void save(bool wait);
  ExitCode leave(comm::StopReason reason);

  MemoryCheck memory_;
  std::unique_ptr<MetricsFile> metrics_file_;  // on rank 0
  IterationMetrics last_;
};

}  // namespace trireme::driver
