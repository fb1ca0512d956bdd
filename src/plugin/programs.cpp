#include "trireme/plugin/programs.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "plugin/process.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"

namespace trireme::plugin {
namespace {

// A rank that computes for longer than this, in seconds, or for half of a program's deadline, did
// not listen: answers in that time were not late, and programs may have had no request to read.
constexpr double longest_absence = 1;
// Lines of a process that never stops writing must not keep this rank in poll().
constexpr int most_rounds = 64;

// Before the start of a process whose requests have failed so often; longer ones where an outage is
// waited for.
double pause_after(int64_t failures, int64_t retries) {
  const double pause = 0.1 * static_cast<double>(int64_t{1} << std::min<int64_t>(failures - 1, 9));
  return std::min(pause, failures <= retries ? 5.0 : 30.0);
}

}  // namespace

Programs::Programs(Program program, Rules rules, Requests& requests)
    : program_(std::move(program)), rules_(std::move(rules)), requests_(requests) {
  VALIDATE(!program_.command.empty(), ExitCode::configuration, program_.who(), ": ", program_.key,
           " is missing: name the program to start");
  open_log();
  const std::filesystem::path log_file =
      rules_.log_file.empty() ? std::filesystem::path(base::text("/proc/self/fd/", log_.get()))
                              : rules_.log_file;
  const Process::Setup setup{program_, rules_, requests_, log_file, log_.get()};
  for (int64_t i = 0; i < rules_.processes; ++i)
    processes_.push_back(std::make_unique<Process>(setup));
}

Programs::~Programs() = default;

void Programs::open_log() {
  if (rules_.log_file.empty()) {  // a file of this process and its children, without a name
    log_ = base::FileDescriptor(::memfd_create("program log", MFD_CLOEXEC));
    const bool made = log_.valid() && ::fcntl(log_.get(), F_SETFL, O_APPEND) == 0;
    if (!made) base::throw_errno(errno, "make a log for the " + program_.kind, program_.name);
    return;
  }
  log_ = base::FileDescriptor(
      ::open(rules_.log_file.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!log_.valid()) base::throw_errno(errno, "write", rules_.log_file);
}

size_t Programs::least_busy() const {
  const auto place = std::ranges::min_element(processes_, {}, [](const auto& process) {
    return std::pair(!process->running(), process->unanswered());
  });
  return static_cast<size_t>(place - processes_.begin());
}

void Programs::ask(size_t process, uint64_t id, std::string_view line) {
  processes_[process]->ask(id, line);
}

void Programs::tell(size_t process, std::string_view line) { processes_[process]->tell(line); }

int64_t Programs::life(size_t process) const { return processes_[process]->life(); }

std::optional<pid_t> Programs::pid(size_t process) const {
  if (!processes_[process]->running()) return std::nullopt;
  return processes_[process]->pid();
}

Counters Programs::take_counters() { return std::exchange(counters_, {}); }

void Programs::poll() {
  if (std::ranges::none_of(processes_, [](const auto& process) { return process->busy(); })) return;
  const BlockSigpipe no_sigpipe;
  for (int round = 0; round < most_rounds && attend(); ++round) {}
}

// Returns whether any byte was sent or received.
bool Programs::attend() {
  if (since_attended_.seconds() > std::min(longest_absence, rules_.timeout / 2)) {
    for (const auto& process : processes_) process->pardon();
  }
  std::vector<pollfd> ends(2 * processes_.size());
  for (size_t i = 0; i < processes_.size(); ++i) {
    processes_[i]->start_when_due();
    processes_[i]->watch(&ends[2 * i]);
  }
  const int ready = ::poll(ends.data(), ends.size(), 0);
  since_attended_.restart();
  if (ready < 0 && errno != EINTR)
    base::throw_errno(errno, "wait for the " + program_.kind, program_.command[0]);
  for (size_t i = 0; i < processes_.size(); ++i) {
    try {
      if (ready > 0) processes_[i]->move_on(&ends[2 * i]);
      processes_[i]->check_deadline();
    } catch (const ProcessFailure& failure) { failed(i, failure); } catch (const UserError& error) {
      if (error.code() != ExitCode::bad_data || rules_.nonsense == Nonsense::ends_run) throw;
      std::string what = error.what();
      if (what.starts_with(program_.who() + ": ")) what.erase(0, program_.who().size() + 2);
      failed(i, {what, processes_[i]->last_messages()});
    }
  }
  return ready > 0;
}

// Sends the remaining requests to the next process; the deck decides on requests that failed too
// often.
void Programs::failed(size_t process, const ProcessFailure& failure) {
  std::vector<uint64_t> missing = processes_[process]->stop();
  // It may have failed at its oldest request: the others are sent before that one, and do not fail
  // with it again.
  if (!missing.empty()) std::rotate(missing.begin(), missing.begin() + 1, missing.end());
  std::vector<uint64_t> again, exhausted;
  int64_t failures = 0;
  for (const uint64_t id : missing) {
    const int64_t of_it = requests_.count_failure(id);
    if (of_it == 0) continue;
    failures = std::max(failures, of_it);
    const bool gives_up = of_it > rules_.retries && rules_.outage == config::PluginOutage::skip;
    (gives_up ? exhausted : again).push_back(id);
  }
  const std::string tried =
      rules_.retries > 0
          ? base::text(", after ", rules_.retries, " restarts (", program_.section, ".retries)")
          : "";
  VALIDATE(failures <= rules_.retries || rules_.outage != config::PluginOutage::stop,
           ExitCode::unfit_environment, program_.who(), " (", program_.command[0],
           "): ", failure.what, tried, messages_text(failure.messages, rules_));
  warn(failure, failures, exhausted.size());
  for (const uint64_t id : exhausted) requests_.give_up(id, failure.what + tried);
  if (again.empty()) return;  // a new process is started for the next request
  processes_[process]->start_in(pause_after(exhausted.empty() ? failures : 1, rules_.retries));
  for (const uint64_t id : again) requests_.ask_again(process, id);
  ++counters_.restarts;
  counters_.retries += std::ssize(again);
}

// Whether to log a long outage again: at 4, 8, 16 ... failures.
void Programs::warn(const ProcessFailure& failure, int64_t failures, size_t given_up) const {
  const bool often = failures > rules_.retries;
  if (often && given_up == 0 && !std::has_single_bit(static_cast<uint64_t>(failures))) return;
  const std::string then =
      given_up > 0 ? base::text(given_up, " of its requests are given up after ", rules_.retries,
                                " restarts (", program_.section, ".outage = \"skip\")")
      : often      ? base::text("asked again for the ", failures, ". time (", program_.section,
                                ".outage = \"wait\")")
                   : base::text("restart ", failures, " of ", rules_.retries);
  log::warning(base::text(program_.who(), ": ", failure.what, "; ", then,
                          messages_text(failure.messages, rules_)));
}

}  // namespace trireme::plugin
