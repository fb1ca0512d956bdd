#include "trireme/job/signals.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>

#include "trireme/base/error.hpp"
#include "trireme/job/stop_conditions.hpp"
#include "trireme/job/verdict.hpp"

namespace trireme::job {
namespace {

// Set by handlers only; one flag per wish, so that a later signal never hides an earlier one.
volatile std::sig_atomic_t save_wanted = 0;
volatile std::sig_atomic_t warned = 0;
volatile std::sig_atomic_t terminated = 0;
volatile std::sig_atomic_t interrupted = 0;
volatile std::sig_atomic_t leaving = 0;
volatile std::sig_atomic_t stop_requests = 0;
// Nanoseconds on the monotonic clock; 0: never. Lock-free, so handlers may use them.
std::atomic<int64_t> interrupted_at{0};
std::atomic<int64_t> terminate_at{0};
std::atomic<int64_t> counted_at{0};
static_assert(std::atomic<int64_t>::is_always_lock_free);
// The message of the first signal; written once, before any signal that reads it.
std::array<char, 512> stop_words{};
std::atomic<size_t> stop_words_size{0};

constexpr int64_t second = 1'000'000'000;
constexpr int interrupted_code = 130;

int64_t now_nanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);  // async-signal-safe
  return int64_t{now.tv_sec} * second + now.tv_nsec;
}

[[noreturn]] void leave(int exit_code) {
  record_verdict(exit_code);
  _exit(exit_code);
}

void first_time(std::atomic<int64_t>& moment, int64_t now) {
  int64_t never = 0;
  moment.compare_exchange_strong(never, now);
}

// Counts a TERM or INT unless it belongs to the burst of the one before; the third during the last
// save is meant.
void count_stop(int64_t now) {
  if (stop_requests > 0 && now - counted_at.load() < 2 * second) return;
  counted_at = now;
  stop_requests = stop_requests + 1;
  if (leaving && stop_requests >= 3) leave(static_cast<int>(ExitCode::stopped_without_checkpoint));
}

void on_interrupt(int64_t now) {
  const int64_t since = now - interrupted_at.load();
  // Not the same key press, passed on twice by a launcher: a person who means it.
  if (interrupted && since > second / 10 && since < 5 * second) leave(interrupted_code);
  interrupted = 1;
  interrupted_at = now;
}

// Once; a handler may write, and nothing else speaks before the run comes to where it can be left.
void say_stop() {
  const int error = errno;
  if (const size_t size = stop_words_size.exchange(0); size > 0) [[maybe_unused]]
    const ssize_t written = ::write(STDERR_FILENO, stop_words.data(), size);
  errno = error;
}

void on_signal(int signal) {
  if (signal == SIGUSR2) {
    save_wanted = 1;
    return;
  }
  say_stop();
  if (signal ==
      SIGUSR1) {  // batch scripts repeat it until the program is gone, so it must never end a save
    warned = 1;
    return;
  }
  const int64_t now = now_nanoseconds();
  if (signal == SIGTERM) terminated = 1;
  if (signal == SIGINT) on_interrupt(now);
  first_time(terminate_at, now);
  count_stop(now);
}

}  // namespace

std::string to_string(StopReason reason) {
  switch (reason) {
    case StopReason::none: return "none";
    case StopReason::save_and_go_on: return "save and go on (SIGUSR2, or the file `save`)";
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
  for (const int signal : {SIGUSR1, SIGUSR2, SIGTERM, SIGINT}) sigaddset(&action.sa_mask, signal);
  for (const int signal : {SIGUSR1, SIGUSR2, SIGTERM, SIGINT}) sigaction(signal, &action, nullptr);
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
}

void say_at_stop(const std::filesystem::path& stop_file) {
  const std::string words = base::text(
      "a signal asks for a stop: the run saves at the next place where it can be left (exit code "
      "75). After Ctrl-C mpirun waits 2 s for that: touch ",
      stop_file.string(), " gives it all the time it needs");
  const std::string line = words.substr(0, stop_words.size() - 1) + "\n";
  std::ranges::copy(line, stop_words.begin());
  stop_words_size = line.size();
}

StopReason pending_signal() {
  if (interrupted) return StopReason::interrupt;
  if (terminated) return StopReason::terminate_signal;
  if (warned) return StopReason::warning_signal;
  if (save_wanted) return StopReason::save_and_go_on;
  return StopReason::none;
}

void clear_save_request() { save_wanted = 0; }

void forget_requests() {
  save_wanted = 0;
  warned = 0;
}

std::optional<double> seconds_since_terminate() {
  const int64_t moment = terminate_at.load();
  if (moment == 0) return std::nullopt;
  return 1e-9 * static_cast<double>(now_nanoseconds() - moment);
}

void leaving_with_checkpoint() { leaving = 1; }

}  // namespace trireme::job
