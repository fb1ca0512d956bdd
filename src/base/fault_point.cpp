#include "trireme/base/fault_point.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <mutex>
#include <new>
#include <string_view>
#include <thread>
#include <utility>

#include "trireme/base/allocation.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/fault_gates.hpp"
#include "trireme/base/files.hpp"

namespace trireme::base {
namespace {

struct Counted {
  InjectedFault fault;
  int64_t passes = 0;
};

struct Installed {
  std::mutex mutex;
  std::vector<Counted> faults;
};

Installed& installed() {
  static Installed one;
  return one;
}

std::atomic<bool> any{false};
thread_local bool skips_next = false;

constexpr size_t more_than_there_is = size_t{1} << 60;

// In the way in which any other allocation fails.
void fail_to_allocate() {
#if defined(__SANITIZE_ADDRESS__) || \
    defined(__SANITIZE_THREAD__)  // whose operator new ends the process
  note_failed_new(more_than_there_is);
  throw std::bad_alloc();
#else
  void* const memory = ::operator new(more_than_there_is);
  ::operator delete(memory);
#endif
}

bool is_nan(const InjectedFault& fault) { return fault.kind == "nan"; }

// The faults whose turn it is; passes of that place are counted.
std::vector<InjectedFault> due(std::string_view place, bool numbers) {
  std::vector<InjectedFault> out;
  const std::lock_guard lock(installed().mutex);
  for (Counted& one : installed().faults) {
    if (one.fault.place != place || is_nan(one.fault) != numbers) continue;
    ++one.passes;
    if (one.fault.pass == 0 || one.fault.pass == one.passes) out.push_back(one.fault);
  }
  return out;
}

void strike(const InjectedFault& fault, const std::filesystem::path& file) {
  if (fault.kind == "kill") ::raise(SIGKILL);
  if (fault.kind == "segv") ::raise(SIGSEGV);
  if (fault.kind == "suspend") ::raise(SIGSTOP);
  if (fault.kind == "exit") ::_exit(static_cast<int>(fault.value));
  if (fault.kind == "delay")
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(fault.value));
  if (fault.kind == "signal") ::raise(static_cast<int>(fault.value));
  while (fault.kind == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
  if (fault.kind == "skip") skips_next = true;
  if (fault.kind == "open") open_gate(static_cast<int>(fault.value));
  if (fault.kind == "gate") wait_for_gate(static_cast<int>(fault.value));
  if (fault.kind == "alloc_fail") fail_to_allocate();
  if (fault.kind == "io_fail" && file.empty())
    throw_errno(static_cast<int>(fault.value), "reach the injected fault at", fault.place);
  if (fault.kind == "io_fail")  // "fsync" of "ckpt.fsync"
    throw_errno(static_cast<int>(fault.value), fault.place.substr(fault.place.rfind('.') + 1),
                file);
}

}  // namespace

void install_faults(std::vector<InjectedFault> faults) {
  static constexpr std::array<std::string_view, 13> kinds{
      "kill",       "segv",    "hang", "suspend", "exit", "delay", "signal",
      "alloc_fail", "io_fail", "nan",  "skip",    "open", "gate"};
  const std::lock_guard lock(installed().mutex);
  installed().faults.clear();
  for (InjectedFault& fault : faults) {
    if (std::find(kinds.begin(), kinds.end(), fault.kind) == kinds.end())
      throw InternalError(text("no fault of the kind ", fault.kind));
    installed().faults.push_back({std::move(fault)});
  }
  any = !installed().faults.empty();
}

void fault_point(const char* place) {
  if (any.load(std::memory_order_relaxed)) fault_point(place, {});
}

void fault_point(const char* place, const std::filesystem::path& file) {
  if (!any.load(std::memory_order_relaxed)) return;
  for (const InjectedFault& fault : due(place, false)) strike(fault, file);
}

bool skip_wanted() {
  return any.load(std::memory_order_relaxed) && std::exchange(skips_next, false);
}

bool nan_wanted(const char* place) {
  return any.load(std::memory_order_relaxed) && !due(place, true).empty();
}

}  // namespace trireme::base
