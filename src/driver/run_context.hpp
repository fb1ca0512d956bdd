// What every run has around its loop: the watchdog, the walltime, the agreed stop, trace and table, the exit.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver/metrics.hpp"
#include "driver/roles.hpp"
#include "driver/run_folder.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/comm/stop.hpp"
#include "trireme/comm/watchdog.hpp"
#include "trireme/config/options.hpp"
#include "trireme/trace/table.hpp"

namespace trireme::driver {

class RunContext {
 public:
  // Collective over world.
  RunContext(const config::Options& options, const Roles& roles, const RunFolder& folder);

  // The main thread is alive and begins this phase: for the watchdog and the live line. Local.
  void begin(const char* phase, int64_t iteration, int64_t iterations);
  // Waits until all ranks of the world have come here, asleep, so that ranks which still work may use the cores (roles
  // that take turns, run.threads = "phase"). Collective.
  void meet(const char* where);

  // Collective; once per iteration.
  comm::StopReason agree_to_stop();
  comm::Walltime& walltime() { return walltime_; }
  void set_io_deadline(bool on);

  // Writes trace.json with what was recorded so far. Collective.
  void write_trace();
  // The end: trace, table, summary.json, plot. Collective.
  void finish(const std::string& title, const std::vector<double>& curve, const IterationMetrics& last);

 private:
  const config::Options& options_;
  const Roles& roles_;
  const RunFolder& folder_;
  comm::Walltime walltime_;
  std::unique_ptr<comm::Watchdog> watchdog_;
  base::Stopwatch since_start_;
  double clock_offset_ = 0;
  double origin_ = 0;
};

// Facts about machine and run for the top of the log. Collective over world.
void log_start(const config::Options& options, const Roles& roles, const comm::Session& session, const std::string& command);

// Seconds to add to this rank's monotonic clock to read rank 0's; the best of several round trips. Collective over world.
double measure_clock_offset(const comm::CommView& world);

}  // namespace trireme::driver
