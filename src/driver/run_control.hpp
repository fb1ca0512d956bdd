// What happens around the iterations of every pipeline: the resumed state, the report of an
// iteration, checkpoints, the agreed stop, the end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver/checkpointing.hpp"
#include "driver/run.hpp"
#include "trireme/base/error.hpp"
#include "trireme/driver/run_state.hpp"
#include "trireme/learn/divergence.hpp"
#include "trireme/report/generation_totals.hpp"
#include "trireme/report/iteration_metrics.hpp"
#include "trireme/report/metrics_file.hpp"
#include "trireme/report/run_reporter.hpp"
#include "trireme/trace/table.hpp"

namespace trireme::driver {

// Models that a run saves and exports beside its state (driver/run_state.hpp).
struct Savable {
  std::vector<SavedModel> models;
  // Exports what was trained as Hugging Face folders `name`... of the run folder. Collective.
  std::function<void(const std::string& name)> export_trained;
  // Digests of what the run reads: data, reference.
  learn::Inputs inputs = {};
  // This rank's part of rollouts that wait for the next iterations, and of what generators
  // remember; `unfinished` stays empty. Collective.
  std::function<StoredParts()> rollouts = [] { return StoredParts(); };
};

// Declare it behind the models that it saves: a save in the background reads them, and its end is
// awaited here.
class RunControl {
 public:
  // Collective over world, after all child processes were started. `iterations`: of the whole run.
  RunControl(Run& run, Savable savable, int64_t iterations);
  ~RunControl();
  RunControl(const RunControl&) = delete;

  struct Start {
    RunState state;
    StoredParts parts;
    bool resumed = false;  // from a checkpoint, which was read into the models
  };
  // The newest checkpoint, or the state of a new run whose learning rates span `schedule_steps`.
  // Opens metrics.jsonl. Collective.
  Start resume_or_begin(int64_t schedule_steps);

  // Adds the seconds by phase, writes the line of metrics.jsonl and the console; `state`
  // remembers both. Collective.
  void report(report::IterationMetrics& metrics, RunState& state, double seconds);
  // Asks the stop policy after an iteration of `seconds`. Returns the exit code if the run has to
  // leave. Collective.
  std::optional<ExitCode> end_iteration(RunState& state, double seconds);
  // Leaves inside an iteration, when all ranks know that the run stops: `state` says where it
  // lies, `unfinished` is this rank's part of what is done of it. Nothing is written when nothing
  // is new. Collective.
  ExitCode leave_inside(const RunState& state, std::string unfinished);
  // The end of the run: last checkpoint, export, table, plot. Collective.
  ExitCode finish(const RunState& state);

 private:
  std::string curve() const { return run_.command == config::Command::ppo ? "reward" : "loss"; }
  void save(const RunState& state, bool wait);
  int64_t metrics_cursor() const {
    return run_.roles.world.broadcast_value(metrics_file_ ? metrics_file_->cursor() : int64_t{0},
                                            0);
  }
  // False: it failed for want of space or the like, on every rank alike; said once. Collective.
  bool export_or_go_on(const std::string& name);
  report::RunRecord record_of_start(const RunState& state) const;
  ExitCode leave(const RunState& state, job::StopReason reason);
  ExitCode leave(const std::vector<double>& rewards);  // with what is committed

  Run& run_;
  Savable savable_;
  int64_t iterations_;
  Checkpointing checkpoints_;
  std::unique_ptr<report::MetricsFile> metrics_file_;  // on rank 0
  std::unique_ptr<report::RunReporter> reporter_;      // on rank 0
  report::IterationMetrics last_;
  trace::Waited waited_;  // at the last report
  report::GenerationTotals generation_;
  learn::Divergence divergence_{run_.options.train.divergence};
  std::string unfinished_;
};

}  // namespace trireme::driver
