// Faults injected at named places, for tests ([fault] of the deck). Without any installed a place
// costs one relaxed load.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::base {

// What happens to this process at a place. Kinds: kill, segv, hang, suspend, exit, delay, signal,
// alloc_fail, io_fail, nan, skip.
struct InjectedFault {
  std::string kind;
  std::string place;
  int64_t pass = 1;  // from 1; 0: every one
  double value = 0;  // exit: code; delay: milliseconds; signal: its number; io_fail: errno
};

// Replaces those there are; passes are counted from here. Throws InternalError for a kind that
// nobody knows.
void install_faults(std::vector<InjectedFault> faults);

// The calling thread is at `place`: ends the process, stops it, sleeps, never returns, or throws
// std::bad_alloc or UserError, as installed.
void fault_point(const char* place);

// Whether the collective that the calling thread is about to call is to be left out: once, the
// first behind the place of a fault `skip`.
bool skip_wanted();

// Whether a number is to be spoilt at `place` in this pass.
bool nan_wanted(const char* place);

}  // namespace trireme::base
