// Parts of report.html below its charts.
#pragma once

#include <filesystem>
#include <string>

#include "trireme/report/run_history.hpp"

namespace trireme::report {

// Each empty where the run has nothing of the kind.
std::string samples_part(const RunHistory& run);
// Bytes by model and kind, of the newest iteration.
std::string memory_part(const RunHistory& run);
std::string roles_part(const RunHistory& run);
std::string problems_part(const RunHistory& run);
std::string starts_part(const RunHistory& run);
std::string deck_part(const RunHistory& run);
// Links relative to `file`, and the command that continues.
std::string files_part(const RunHistory& run, const std::filesystem::path& file);

// The command that starts the run again from its own deck; "" where it is not known.
std::string command_of(const RunHistory& run);

}  // namespace trireme::report
