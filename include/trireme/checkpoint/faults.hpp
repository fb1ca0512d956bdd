// [fault] of the deck: faults injected into this process, for tests: at named places, and in the
// file operations of checkpoints.
#pragma once

#include <string>

#include "trireme/config/options.hpp"

namespace trireme::checkpoint {

// Installs the faults that are meant for `rank`, as early as the run knows its rank; their gates
// are files in `run_folder`. Local.
void install_faults(const config::FaultOptions& options, const std::string& run_folder, int rank);

}  // namespace trireme::checkpoint
