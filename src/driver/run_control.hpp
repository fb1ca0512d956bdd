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
#include "trireme/driver/progress.hpp"
#include "trireme/learn/divergence.hpp"
#include "trireme/report/generation_totals.hpp"
#include "trireme/report/iteration_metrics.hpp"
#include "trireme/report/metrics_file.hpp"

namespace trireme::driver {

// What a run saves and exports beside its progress.
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
    Progress progress;
    StoredParts parts;
    bool resumed = false;  // from a checkpoint, which was read into the models
  };
  // The newest checkpoint, or the progress of a new run whose learning rates span `schedule_steps`.
  // Opens metrics.jsonl. Collective.
  Start resume_or_begin(int64_t schedule_steps);

  // Whether the held-out data is due after this iteration: every eval.steps, and after the last.
  bool evaluation_due(int64_t iteration) const;
  // Adds the seconds by phase, writes the line of metrics.jsonl and the console; `progress`
  // remembers both. Collective.
  void report(report::IterationMetrics& metrics, Progress& progress, double seconds);
  // After each iteration: agrees with the others whether to stop, saves when it is time. The exit
  // code of a run that has to leave. Collective.
  std::optional<ExitCode> end_iteration(const report::IterationMetrics& metrics, Progress& progress,
                                        double seconds);
  // Whether the run goes on behind `iteration`: there are more, and neither ckpt.target nor
  // ckpt.patience has ended it.
  bool goes_on(int64_t iteration) const { return iteration < iterations_ && !ended_early_; }
  // Leaves inside an iteration, when all ranks know that the run stops: `progress` says where it
  // lies, `unfinished` is this rank's part of what is done of it. Nothing is written when nothing
  // is new. Collective.
  ExitCode leave_inside(const Progress& progress, std::string unfinished);
  // The end of the run: last checkpoint, export, table, plot. Collective.
  ExitCode finish(const Progress& progress);

 private:
  std::string curve() const { return run_.command == config::Command::ppo ? "reward" : "loss"; }
  bool target_reached(const Progress& progress);
  void save(const Progress& progress, bool wait);
  int64_t metrics_cursor() const {
    return run_.roles.world.broadcast_value(metrics_file_ ? metrics_file_->cursor() : int64_t{0},
                                            0);
  }
  // False: it failed for want of space or the like, on every rank alike; said once. Collective.
  bool export_or_go_on(const std::string& name);
  ExitCode leave(const Progress& progress, job::StopReason reason);
  ExitCode leave(const std::vector<double>& rewards);  // with what is committed

  Run& run_;
  Savable savable_;
  int64_t iterations_;
  Checkpointing checkpoints_;
  std::unique_ptr<report::MetricsFile> metrics_file_;  // on rank 0
  report::IterationMetrics last_;
  report::GenerationTotals generation_;
  learn::Divergence divergence_{run_.options.train.divergence};
  bool ended_early_ = false;
  std::string unfinished_;
};

}  // namespace trireme::driver
