// Under mpirun on a terminal: the launcher follows an error with a dozen lines of its own, which
// push the one that matters off the screen.
#pragma once

#include <string>

namespace trireme::job {

// Says the first line of `message` on the launcher's terminal once the launcher has ended, from a
// process that stays for that (at most a minute). Nothing where the parent of this process is no
// mpirun or writes to no terminal. Called when the program is about to end; the first call counts.
void repeat_after_launcher(const std::string& message) noexcept;

}  // namespace trireme::job
