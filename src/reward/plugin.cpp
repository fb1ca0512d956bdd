// Rewards from a program of the user's: requests and answers as JSON lines over pipes. The protocol
// stands in reward.hpp.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <ctime>
#include <iterator>
#include <optional>
#include <utility>

#include "reward/asked.hpp"
#include "reward/plugin_child.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/reward/reward.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::reward {
namespace {

// A rank that computes for longer than this, in seconds, or for half of a plugin's deadline, has
// not listened: what plugins said meanwhile was not late, and they may have had nothing to read.
constexpr double longest_absence = 1;

// Before the start of a process whose requests have failed so often; longer ones where an outage is
// waited for.
double pause_after(int64_t failures, int64_t retries) {
  const double pause = 0.1 * static_cast<double>(int64_t{1} << std::min<int64_t>(failures - 1, 9));
  return std::min(pause, failures <= retries ? 5.0 : 30.0);
}

void sleep_for(double seconds) {
  const timespec time{static_cast<time_t>(seconds),
                      static_cast<long>((seconds - std::floor(seconds)) * 1e9)};
  ::nanosleep(&time, nullptr);
}

class PluginSource : public Source {
 public:
  PluginSource(const config::RewardSource& options, std::string name,
               const PluginEnvironment& environment)
      : options_(options),
        name_(std::move(name)),
        environment_(environment),
        progress_(environment.progress ? *environment.progress : own_progress_),
        fault_(environment.fault),
        asked_(name_) {
    VALIDATE(!options_.command.empty(), ExitCode::configuration, "reward source ", name_,
             ": command is missing: name the program to start");
    open_log();
    setup_ = {.name = name_,
              .command = options_.command,
              .timeout = options_.timeout.seconds,
              .log_file = log_file_,
              .log = log_.get(),
              .log_hint = environment_.log_dir.empty() ? "" : log_file_.string(),
              .take = [this](std::string_view line) { return take(line); },
              .where = [this](uint64_t id) { return asked_.where(id); }};
    for (int64_t i = 0; i < options_.processes; ++i)
      children_.push_back(std::make_unique<PluginChild>(setup_));
  }

  const std::string& name() const override { return name_; }
  bool takes_time() const override { return true; }
  PluginCounters take_counters() override { return std::exchange(counters_, {}); }

  void ask(std::span<const Request> requests) override {
    if (requests.empty()) return;
    for (const Request& request : requests) least_busy().ask(request.id, asked_.add(request));
    counters_.requests += std::ssize(requests);
    inject_before();
    poll();
  }

  void poll() override {
    if (std::ranges::all_of(children_, [](const auto& child) { return child->unanswered() == 0; }))
      return;
    const BlockSigpipe no_sigpipe;
    for (int turn = 0; turn < 64 && attend();
         ++turn) {  // a process that never falls silent must not keep us
    }
  }

  Scores score(std::span<const Request> requests) override {
    trace::Region region{"reward plugin", trace::no_argument, trace::Category::wait};
    if (requests.empty()) return {};
    if (progress_.some(comm::May::leave) == comm::Then::leave) return {.left = true};
    const base::Stopwatch watch;
    std::vector<Request> fresh;
    std::copy_if(requests.begin(), requests.end(), std::back_inserter(fresh),
                 [this](const Request& request) { return !asked_.has(request); });
    ask(fresh);
    const comm::Then then = wait_for(requests);
    counters_.wait_seconds += watch.seconds();
    if (then == comm::Then::leave) return {.left = true};
    return asked_.take(requests);
  }

 private:
  void open_log() {
    if (environment_.log_dir.empty()) {  // a file of this process and its children, without a name
      log_ = base::FileDescriptor(::memfd_create("plugin log", MFD_CLOEXEC));
      const bool made = log_.valid() && ::fcntl(log_.get(), F_SETFL, O_APPEND) == 0;
      if (!made) base::throw_errno(errno, "make a log for the reward plugin", name_);
      log_file_ = base::text("/proc/self/fd/", log_.get());
      return;
    }
    log_file_ = environment_.log_dir / base::text("plugin-", name_, "-", environment_.rank, ".log");
    log_ = base::FileDescriptor(
        ::open(log_file_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!log_.valid()) base::throw_errno(errno, "write", log_file_);
  }

  // Those that wait for a new start come behind those that run.
  PluginChild& least_busy() {
    return **std::ranges::min_element(children_, {}, [](const auto& child) {
      return std::pair(!child->running(), child->unanswered());
    });
  }

  comm::Then wait_for(std::span<const Request> requests) {
    size_t next = 0;
    return progress_.until(
        "answers of a reward plugin",
        [&] {
          base::tick();  // waiting within the plugin's own deadline, or for its return, is no hang
          poll();
          while (next < requests.size() && asked_.settled(requests[next])) ++next;
          return next == requests.size();
        },
        comm::May::leave);
  }

  // Sends and receives what it can, and looks after processes that are late or gone. False: nothing
  // came or went.
  bool attend() {
    if (since_attended_.seconds() > std::min(longest_absence, options_.timeout.seconds / 2)) {
      for (const auto& child : children_) child->pardon();
    }
    std::vector<pollfd> ends(2 * children_.size());
    for (size_t i = 0; i < children_.size(); ++i) {
      children_[i]->start_when_due();
      children_[i]->watch(&ends[2 * i]);
    }
    const int ready = ::poll(ends.data(), ends.size(), 0);
    since_attended_.restart();
    if (ready < 0 && errno != EINTR)
      base::throw_errno(errno, "wait for the reward plugin", options_.command[0]);
    for (size_t i = 0; i < children_.size(); ++i) {
      try {
        if (ready > 0) children_[i]->move_on(&ends[2 * i]);
        children_[i]->check_deadline();
      } catch (const ChildFailure& failure) { failed(*children_[i], failure); }
    }
    return ready > 0;
  }

  // Its next process is asked for the rest; requests that failed too often are dealt with as the
  // deck says.
  void failed(PluginChild& child, const ChildFailure& failure) {
    std::vector<uint64_t> missing = child.stop();
    // It may have failed at the one that it had longest: the others are asked before that, and do
    // not fail with it again.
    std::rotate(missing.begin(), missing.begin() + 1, missing.end());
    int64_t failures = 0;
    for (const uint64_t id : missing) failures = std::max(failures, asked_.count_failure(id));
    const bool exhausted = failures > environment_.retries;
    VALIDATE(!exhausted || environment_.outage != config::PluginOutage::stop,
             ExitCode::unfit_environment, "reward plugin ", name_, " (", options_.command[0],
             "): ", failure.what,
             environment_.retries > 0
                 ? base::text(", after ", environment_.retries, " restarts (reward.retries)")
                 : "",
             messages_text(failure.messages, setup_.log_hint));
    const size_t given_up =
        environment_.outage == config::PluginOutage::skip ? give_up(missing) : 0;
    warn(failure, failures, given_up);
    if (missing.empty()) return;  // a new process is started for the next request
    child.start_in(pause_after(given_up > 0 ? 1 : failures, environment_.retries));
    for (const uint64_t id : missing) child.ask(id, asked_.line(id));
    ++counters_.restarts;
    counters_.retries += std::ssize(missing);
  }

  // Those that have failed too often, and takes them out of `missing`.
  size_t give_up(std::vector<uint64_t>& missing) {
    return std::erase_if(missing, [this](uint64_t id) {
      if (asked_.failures(id) <= environment_.retries) return false;
      asked_.give_up(id);
      return true;
    });
  }

  // Of a long outage now and then: at 4, 8, 16 ... failures.
  void warn(const ChildFailure& failure, int64_t failures, size_t given_up) const {
    const bool often = failures > environment_.retries;
    if (often && given_up == 0 && !std::has_single_bit(static_cast<uint64_t>(failures))) return;
    const std::string then =
        given_up > 0 ? base::text(given_up, " of its requests are given up after ",
                                  environment_.retries, " restarts (reward.outage = \"skip\")")
        : often ? base::text("asked again for the ", failures, ". time (reward.outage = \"wait\")")
                : base::text("restart ", failures, " of ", environment_.retries);
    log::warning(base::text("reward plugin ", name_, ": ", failure.what, "; ", then,
                            messages_text(failure.messages, setup_.log_hint)));
  }

  std::optional<uint64_t> take(std::string_view line) {
    const bool answer = line.find("\"reward\"") != std::string_view::npos;
    if (answer && fault_ == "nan") {
      fault_.clear();
      return asked_.accept(R"({"id":"0","reward":NaN})");
    }
    if (answer && fault_ == "short") {
      fault_.clear();
      return std::nullopt;
    }
    return asked_.accept(line);
  }

  // Faults that the first process is made to have, once.
  void inject_before() {
    const PluginChild& child = *children_.front();
    if (fault_ == "crash" && child.running()) ::kill(child.pid(), SIGKILL);
    if (fault_ == "hang" && child.running()) ::kill(child.pid(), SIGSTOP);
    if (fault_ == "slow") sleep_for(options_.timeout.seconds / 2);
    if (fault_ == "crash" || fault_ == "hang" || fault_ == "slow") fault_.clear();
  }

  config::RewardSource options_;
  std::string name_;
  PluginEnvironment environment_;
  comm::Progress own_progress_;
  comm::Progress& progress_;
  std::string fault_;
  std::filesystem::path log_file_;
  base::FileDescriptor log_;
  PluginChild::Setup setup_;
  Asked asked_;
  std::vector<std::unique_ptr<PluginChild>> children_;
  base::Stopwatch since_attended_;
  PluginCounters counters_;
};

}  // namespace

std::unique_ptr<Source> make_plugin(const config::RewardSource& options, std::string name,
                                    const PluginEnvironment& environment) {
  return std::make_unique<PluginSource>(options, std::move(name), environment);
}

}  // namespace trireme::reward
