// When a run evaluates, saves and leaves, and how: every question of the loops about that is asked
// here. What asks for it are conditions: signals, the file `stop`, the walltime, ckpt.interval,
// ckpt.target, ckpt.patience.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>

#include "driver/checkpointing.hpp"
#include "driver/run_folder.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/comm/progress.hpp"
#include "trireme/comm/roles.hpp"
#include "trireme/comm/run_watch.hpp"
#include "trireme/config/options.hpp"
#include "trireme/driver/run_schedule.hpp"
#include "trireme/driver/run_state.hpp"
#include "trireme/job/signals.hpp"
#include "trireme/job/stop_conditions.hpp"
#include "trireme/job/stop_file.hpp"
#include "trireme/job/term_watch.hpp"
#include "trireme/job/walltime.hpp"

namespace trireme::driver {

class StopPolicy : public comm::LeaveWatch {
 public:
  // Collective over world. From here on signals are served; rank 0 asks the batch system for the
  // end of the job.
  StopPolicy(const config::Options& options, const comm::Roles& roles, const RunFolder& folder,
             comm::RunWatch& watch);
  ~StopPolicy() override;

  // The run has so many iterations and makes these checkpoints; null once they are gone. Local.
  void plan(int64_t iterations, const Checkpointing* checkpoints);

  // ---- Between iterations. The answers are the same on every rank.
  // Whether another iteration begins, or one that was interrupted goes on.
  bool goes_on(const RunState& state) const;
  // Whether the held-out data is due after this iteration.
  bool evaluates(int64_t iteration) const {
    return evaluation_due(options_.eval, iteration, iterations_);
  }
  // After an iteration of so many seconds, its evaluation included; `better`: its checkpoint would
  // be the best. Collective over world.
  AfterIteration after(const RunState& state, double seconds, bool better);

  // ---- Inside an iteration (comm/progress.hpp). Main thread.
  bool leaves_inside() const override {
    return options_.run.stop_within == config::StopWithin::step;
  }
  job::StopReason wish() override;
  void waited() override;

  // ---- What the run tells it. Local.
  void begins(int64_t iteration);
  // All ranks are about to write their last checkpoint.
  void leaving();
  bool is_leaving() const { return standing_.leaving; }
  // Around the making of a checkpoint; what comes after it lasts until closed().
  void saving(bool on);
  void closed();
  // A save that was asked for by a signal or the file `save` has begun.
  void save_request_served();

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

  void add_conditions();
  job::StopReason agree_to_stop();
  void measure_saves();
  bool saves_at_work() const { return checkpoints_ && checkpoints_.load()->busy(); }
  // Whether a checkpoint is made now to know how long one takes; says so.
  bool measures_a_save();
  // The run could be left now.
  void mark_place();
  void announce_stop();
  // Iteration of the newest checkpoint of what this run has done, -1: none. Any thread.
  int64_t newest_committed() const;
  job::TermFacts term_facts() const;
  int leave_at_once() const;

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
};

}  // namespace trireme::driver
