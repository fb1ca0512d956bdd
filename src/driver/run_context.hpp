// What every run has around its loop: the batch job, the walltime, the agreed stop, trace and
// table, the exit.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver/checkpointing.hpp"
#include "driver/run_folder.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/comm/progress.hpp"
#include "trireme/comm/roles.hpp"
#include "trireme/comm/run_watch.hpp"
#include "trireme/config/options.hpp"
#include "trireme/job/signals.hpp"
#include "trireme/job/stop_conditions.hpp"
#include "trireme/job/stop_file.hpp"
#include "trireme/job/term_watch.hpp"
#include "trireme/job/walltime.hpp"
#include "trireme/report/generation_totals.hpp"
#include "trireme/report/iteration_metrics.hpp"
#include "trireme/trace/table.hpp"

namespace trireme::driver {

class RunContext : public comm::LeaveWatch {
 public:
  // Collective over world. From here on signals are served; rank 0 asks the batch system for the
  // end of the job.
  RunContext(const config::Options& options, const comm::Roles& roles, const RunFolder& folder,
             comm::RunWatch& watch);
  ~RunContext() override;

  // The run can make checkpoints: how long they take goes into the walltime rule. Null once they
  // are gone. Local.
  void watch(const Checkpointing* checkpoints) { checkpoints_ = checkpoints; }

  // The main thread begins this phase: for the live line. Local.
  void begin(const char* phase, int64_t iteration, int64_t iterations);
  // Places inside an iteration (comm/progress.hpp): what asks to leave there, as far as this rank
  // has heard; waiting is not its own stretch of work. Main thread.
  bool leaves_inside() const override {
    return options_.run.stop_within == config::StopWithin::step;
  }
  job::StopReason wish() override;
  void waited() override;
  // All ranks are about to write their last checkpoint. Local.
  void leaving();

  // An iteration took so long, its evaluation included. Local, before agree_to_stop().
  void phase_took(double seconds);
  // Collective; once per iteration.
  job::StopReason agree_to_stop();
  // A save that was asked for by a signal or the file `save` has begun. Local.
  void save_request_served();
  job::Walltime& walltime() { return walltime_; }
  // Around the making of a checkpoint. Local.
  void saving(bool on);

  // Writes trace.json with what was recorded so far. Collective.
  void write_trace();
  // The end: trace, table, summary.json, plot. Collective.
  void finish(const std::string& title, const std::vector<double>& curve,
              const report::IterationMetrics& last, const report::GenerationTotals& generation);

 private:
  // How the run stands, for the thread that leaves after SIGTERM. Seconds; 0: not known.
  struct Standing {
    std::atomic<int64_t> current{0};    // iteration at work
    std::atomic<int64_t> finished{-1};  // iterations done; -1: the run is starting
    std::atomic<double> began{
        0};  // when the run could last be left, on the monotonic clock; 0: not yet
    std::atomic<double> stretch{0};  // longest so far between two such moments
    std::atomic<double> latest_stop{
        std::numeric_limits<double>::infinity()};  // by the walltime, on the monotonic clock
    std::atomic<double> save{0};
    std::atomic<bool> saving{false};
    std::atomic<bool> leaving{false};  // the last checkpoint has begun
  };

  void measure_saves();
  job::NextIteration next_iteration() const;
  void add_stop_conditions();
  // Whether a checkpoint is made now to know how long one takes; says so.
  bool measures_a_save();
  // The run could be left now.
  void mark_place();
  void announce_stop();
  // Iteration of the newest checkpoint of what this run has done, -1: none. Any thread.
  int64_t newest_committed() const;
  job::TermFacts term_facts() const;
  int leave_at_once() const;
  void merge_trace();

  const config::Options& options_;
  const comm::Roles& roles_;
  const RunFolder& folder_;
  comm::RunWatch& watch_;
  job::Walltime walltime_;
  std::atomic<const Checkpointing*> checkpoints_ = nullptr;
  Standing standing_;
  int64_t iterations_ = 0;
  int64_t saves_seen_ = 0;
  bool save_announced_ = false;
  bool iteration_announced_ = false;
  std::optional<base::Stopwatch> closing_;    // since the last checkpoint was written
  std::unique_ptr<job::StopFile> stop_file_;  // on rank 0
  job::StopConditions inside_;   // of this rank, while an iteration is at work; any thread
  job::StopConditions between_;  // two iterations
  std::unique_ptr<job::TermWatch> term_watch_;
  base::Stopwatch since_start_;
  double clock_offset_ = 0;
  double origin_ = 0;
};

}  // namespace trireme::driver
