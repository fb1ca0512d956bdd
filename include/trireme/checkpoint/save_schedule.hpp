// When a run saves: by ckpt.interval (iterations, a time, or "auto"), and again after a save that
// failed.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "trireme/base/error.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/config/options.hpp"

namespace trireme::checkpoint {

// The saves of this process so far.
struct SavesSoFar {
  int64_t committed = 0;
  double last_seconds = 0;  // from its start to the commit; 0: none
  bool at_work = false;
};

// Every rank of a run has one, with the same calls; times are rank 0's to decide by.
class SaveSchedule {
 public:
  // `options` must outlive it. `ranks`: of the world, which fail independently.
  SaveSchedule(const config::CkptOptions& options, int ranks) : options_(options), ranks_(ranks) {}

  // After `iteration`: by the iterations of ckpt.interval, or since a save failed and its time has
  // come again.
  bool due(int64_t iteration) const { return until_due(iteration) == 0; }
  // Iterations from this one to the next that is due so; `never` without such a rule.
  static constexpr int64_t never = std::numeric_limits<int64_t>::max();
  int64_t until_due(int64_t iteration) const;
  // Whether ckpt.interval is a time and it is over since the last save began.
  bool time_is_due(const SavesSoFar& saves) const;

  // A save began, the one that was to be tried again as well: until its end is known none is due
  // beside it.
  void began() {
    since_save_.restart();
    retry_at_ = -1;
  }
  // So many seconds of it held training up.
  void cost(double seconds) { cost_ = seconds; }
  void cost_more(double seconds) { cost_ += seconds; }
  void committed();
  // Whether what ended a save may be over a moment later: a full disk, a quota, a file server or
  // memory. A run that lost its lock has to go.
  static bool may_pass(ExitCode code);
  // The save of `saved` failed with an error that may pass, as is known after `iteration`. Throws
  // one of the same code when it is the last of ckpt.max_failures in a row. Else what is to be
  // said: which checkpoint is the last good one (`committed`; -1: none), when it is tried again.
  std::string failed(const UserError& error, int64_t saved, int64_t iteration, int64_t committed);
  // Saves of this process that failed.
  int64_t failures() const { return failures_; }

  // With ckpt.interval = "auto": what to say of the time between two saves, where it has changed by
  // half since this was last asked; else empty.
  std::string changed_interval(double last_seconds);

 private:
  // Seconds between two saves by Young's and Daly's rule, at least as long as one takes.
  double best_interval(double last_seconds) const;

  const config::CkptOptions& options_;
  int ranks_;
  int64_t failures_ = 0;
  int64_t failed_in_a_row_ = 0;
  int64_t retry_at_ = -1;       // iteration; -1: nothing failed
  base::Stopwatch since_save_;  // since the last one began, or the run
  double cost_ = 0;             // seconds that the last save held training up; 0: none was made
  double announced_ = 0;        // interval
};

}  // namespace trireme::checkpoint
