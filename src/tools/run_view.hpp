// Run folders as the tools see them, whether a run is at work in them or not.
#pragma once

#include <filesystem>

#include "trireme/report/run_history.hpp"

namespace trireme::tools {

bool is_run(const std::filesystem::path& folder);

// By the run's lock: a run whose process lives is running. With who holds it, in words.
report::RunState state_of_run(const report::RunHistory& run);

// How the run stands, on standard output.
void print_status(const std::filesystem::path& folder);

}  // namespace trireme::tools
