#include "trireme/job/crash.hpp"

#include <execinfo.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>

#include "trireme/job/verdict.hpp"

namespace trireme::job {
namespace {

// Filled in before the handlers are installed; only read in them.
std::array<char, 4096> crash_file{};
// The handler's own stack: an overflow of the main thread's leaves none there.
alignas(16) std::array<char, 65536> handler_stack{};

void write_text(int file, const char* text) {
  [[maybe_unused]] const ssize_t written = ::write(file, text, std::strlen(text));
}

const char* name_of(int signal) {
  switch (signal) {
    case SIGSEGV: return "SIGSEGV (an address that is not ours)";
    case SIGBUS: return "SIGBUS (a page that cannot be had, as of a truncated file)";
    case SIGFPE: return "SIGFPE (an integer division)";
    case SIGABRT: return "SIGABRT (a library or the C++ runtime gave up)";
    default: return "a signal";
  }
}

void on_crash(int signal) {
  const int file = ::open(crash_file.data(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file >= 0) {
    write_text(file, name_of(signal));
    write_text(file, "; stack of the thread, innermost first (addr2line -Cfie FILE OFFSET):\n");
    std::array<void*, 128> frames;
    backtrace_symbols_fd(frames.data(), backtrace(frames.data(), static_cast<int>(frames.size())),
                         file);
    ::close(file);
  }
  record_verdict(128 + signal);
  // SA_RESETHAND restored the default action, which takes place when this handler returns.
  ::raise(signal);
}

}  // namespace

void install_crash_handlers(const std::filesystem::path& file) {
  const std::string path = file.string();
  if (path.size() >= crash_file.size()) return;
  std::memcpy(crash_file.data(), path.c_str(), path.size() + 1);

  // The first call loads the unwinder, which allocates: not in a handler.
  std::array<void*, 1> frame;
  backtrace(frame.data(), 1);
  stack_t stack{};
  stack.ss_sp = handler_stack.data();
  stack.ss_size = handler_stack.size();
  ::sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_handler = on_crash;
  action.sa_flags = SA_ONSTACK | static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT}) sigaction(signal, &action, nullptr);
}

}  // namespace trireme::job
