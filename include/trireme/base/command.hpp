// Asking another program (squeue, qstat): started without a shell, with a deadline.
#pragma once

#include <string>
#include <vector>

namespace trireme::base {

struct CommandResult {
  bool ran = false;    // found, and ended in time by itself
  int exit_code = 0;   // 127: not found, where the system says so only after the start
  std::string output;  // stdout and stderr, at most 64 KiB
};

// Runs `command` (searched in PATH) with nothing to read, and kills it after `timeout_seconds`.
// Never throws for what the command does. Close-on-exec descriptors of this process stay here.
CommandResult run_command(const std::vector<std::string>& command, double timeout_seconds);

}  // namespace trireme::base
