// `trireme ppo DECK --dry-run --ranks N --ranks-per-node R`: what the job would be, without MPI, data or models.
#pragma once

#include "trireme/base/error.hpp"
#include "trireme/config/options.hpp"

namespace trireme::driver {

struct DryRun {
  int ranks = 1;
  int ranks_per_node = 0;  // 0: all on one node
};

// Checks what a run checks before it starts and prints the role map on standard output, with what of it costs time. One
// process. The options are validated already. Throws UserError(configuration) as the run would.
ExitCode run_dry(const config::Options& options, config::Command command, const DryRun& machine);

}  // namespace trireme::driver
