#include "trireme/comm/stop.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <ctime>

#include "trireme/base/stopwatch.hpp"

namespace trireme::comm {
namespace {

// Set by handlers only; one flag per wish, so that a later signal never hides an earlier one.
volatile std::sig_atomic_t save_wanted = 0;
volatile std::sig_atomic_t warned = 0;
volatile std::sig_atomic_t terminated = 0;
volatile std::sig_atomic_t interrupted = 0;
volatile std::time_t interrupted_at = 0;

void on_signal(int signal) {
  switch (signal) {
    case SIGUSR1: warned = 1; break;
    case SIGUSR2: save_wanted = 1; break;
    case SIGTERM: terminated = 1; break;
    case SIGINT: {
      const std::time_t now = std::time(nullptr);
      if (interrupted && now - interrupted_at < 5) _exit(130);  // a person who means it
      interrupted = 1;
      interrupted_at = now;
      break;
    }
    default: break;
  }
}

// The moment this process began, for walltimes counted from the start.
const double process_start = base::monotonic_seconds();

}  // namespace

std::string to_string(StopReason reason) {
  switch (reason) {
    case StopReason::none: return "none";
    case StopReason::save_and_go_on: return "SIGUSR2 (save and go on)";
    case StopReason::warning_signal: return "SIGUSR1 (time is nearly up)";
    case StopReason::terminate_signal: return "SIGTERM";
    case StopReason::interrupt: return "SIGINT";
    case StopReason::stop_file: return "the file `stop` in the run folder";
    case StopReason::walltime: return "the walltime";
  }
  return "unknown";
}

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGUSR1, SIGUSR2, SIGTERM, SIGINT}) sigaction(signal, &action, nullptr);
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
}

StopReason pending_signal() {
  if (interrupted) return StopReason::interrupt;
  if (terminated) return StopReason::terminate_signal;
  if (warned) return StopReason::warning_signal;
  if (save_wanted) return StopReason::save_and_go_on;
  return StopReason::none;
}

void clear_save_request() { save_wanted = 0; }

Walltime::Walltime(std::optional<double> limit_seconds, double margin_seconds) : margin_(margin_seconds) {
  if (limit_seconds) deadline_ = process_start + *limit_seconds;
}

void Walltime::phase_took(double seconds) { longest_phase_ = std::max(longest_phase_, seconds); }
void Walltime::save_took(double seconds) { last_save_ = seconds; }

std::optional<double> Walltime::remaining() const {
  if (!deadline_) return std::nullopt;
  return *deadline_ - base::monotonic_seconds();
}

double Walltime::needed() const { return 1.3 * longest_phase_ + 1.5 * last_save_ + margin_; }

bool Walltime::must_stop() const {
  const auto left = remaining();
  return left && *left < needed();
}

StopReason agree_to_stop(const CommView& world, const std::filesystem::path& stop_file, const Walltime& walltime) {
  StopReason wish = pending_signal();
  if (world.rank() == 0 && wish <= StopReason::save_and_go_on) {
    std::error_code ignored;
    if (std::filesystem::exists(stop_file, ignored)) {
      wish = StopReason::stop_file;
    } else if (walltime.must_stop()) {
      wish = StopReason::walltime;
    }
  }
  return static_cast<StopReason>(world.max(static_cast<int32_t>(wish)));
}

}  // namespace trireme::comm
