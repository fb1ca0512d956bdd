// The report that a crashing rank leaves behind.
#pragma once

#include <filesystem>

namespace trireme::job {

// On SIGSEGV, SIGBUS, SIGFPE and SIGABRT: writes the stack of the thread to `file`
// (logs/rank-NNNNN.crash) and takes the signal's default action, so that the exit code stays 139,
// 135, 136, 134. After MPI_Init: Open MPI installs handlers of its own for these signals. The
// handler calls only what is safe in one. Once per process; a later call changes the file.
void install_crash_handlers(const std::filesystem::path& file);

}  // namespace trireme::job
