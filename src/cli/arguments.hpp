// The command line, before anything starts.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/isa.hpp"
#include "trireme/driver/commands.hpp"

namespace trireme::cli {

enum class Needs : uint8_t { nothing, mpi };

// Why the folder in which the program was started cannot be used (errno; 0: it can): it was
// removed, or its file system is gone. Relative paths mean nothing then, and the process is in "/".
extern int lost_working_folder;

// What to run. `action` gets the session of a command that needs one, null otherwise.
struct Invocation {
  Needs needs = Needs::nothing;
  std::function<ExitCode(const comm::Session*)> action;
  config::Device device = config::Device::cpu;  // where its tensors may live
  std::optional<base::Isa> isa = {};            // the deck's run.isa; none: auto
};

// Parses the arguments; decks are read and validated here, before MPI starts. Prints help and
// versions itself and returns an empty action then. Throws UserError(usage, configuration,
// input_missing, unfit_environment where
// the working folder is lost).
Invocation parse(int argc, char** argv);

}  // namespace trireme::cli
