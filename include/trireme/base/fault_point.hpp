// Faults injected at named places, for tests ([fault] of the deck): the only place where the
// program learns that it is being tested. Places are the regions of trace.json (trace/region.hpp),
// the points and file operations of a checkpoint's commit ("ckpt.begin", "ckpt.fsync"), and named
// numbers. Without any fault installed a place costs one relaxed load.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::base {

// A fault that strikes this process at a place. Kinds: kill, segv, hang, suspend, exit, delay,
// signal, alloc_fail, io_fail, nan, skip, open, gate.
struct InjectedFault {
  std::string kind;
  std::string place;
  int64_t pass = 1;  // from 1; 0: every one
  double value = 0;  // exit: code; delay: milliseconds; signal: its number; io_fail: errno
};

// Replaces the installed faults and starts to count passes anew. Throws InternalError for an
// unknown kind.
void install_faults(std::vector<InjectedFault> faults);

// The calling thread is at `place`, about to change `file` if one is given: ends the process, stops
// it, sleeps, never returns, or throws std::bad_alloc or UserError, as installed.
void fault_point(const char* place);
void fault_point(const char* place, const std::filesystem::path& file);

// Whether the calling thread skips its next collective: true once after the place of a fault
// `skip`.
bool skip_wanted();

// Whether a number at `place` becomes NaN in this pass.
bool nan_wanted(const char* place);

}  // namespace trireme::base
