// Rewards from a program of the user's: requests and answers as JSON lines over pipes. The protocol stands in reward.hpp.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <ctime>
#include <iterator>
#include <optional>
#include <utility>

#include "reward/asked.hpp"
#include "reward/child_process.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/reward/reward.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::reward {
namespace {

constexpr size_t longest_line = size_t{1} << 24;

// Why an attempt failed that a new child may do better.
struct ChildFailure {
  std::string what;
};

class PluginSource : public Source {
 public:
  PluginSource(const config::RewardSource& options, std::string name, const PluginEnvironment& environment)
      : options_(options), name_(std::move(name)), environment_(environment), fault_(environment.fault), asked_(name_) {
    VALIDATE(!options_.command.empty(), ExitCode::configuration, "reward source ", name_, ": command is missing: name the program to start");
    open_log();
    start();
  }

  const std::string& name() const override { return name_; }
  bool takes_time() const override { return true; }

  void ask(std::span<const Request> requests) override {
    if (requests.empty()) return;
    if (!child_ && !failed_) start();
    if (asked_.empty() && child_) refuse_unasked();
    outgoing_.erase(0, std::exchange(sent_, 0));
    for (const Request& request : requests) outgoing_ += asked_.add(request);
    if (child_) inject_before();
    poll();
  }

  // A child that has failed is for score() to restart, which counts the restarts.
  void poll() override {
    if (asked_.complete() || !child_) return;
    const BlockSigpipe no_sigpipe;
    try {
      for (int turn = 0; turn < 64 && move_on(0); ++turn) {  // a child that never falls silent must not keep us
      }
    } catch (const ChildFailure& failure) {
      failed_ = failure;
    }
  }

  Scores score(std::span<const Request> requests) override {
    trace::Region region{"reward plugin", trace::no_argument, trace::Category::wait};
    if (requests.empty()) return {};
    if (environment_.stop()) throw Stopped{};
    std::vector<Request> fresh;
    std::copy_if(requests.begin(), requests.end(), std::back_inserter(fresh), [this](const Request& request) { return !asked_.has(request); });
    ask(fresh);
    const BlockSigpipe no_sigpipe;
    for (int64_t attempt = 0;; ++attempt) {
      try {
        if (failed_) throw std::exchange(failed_, std::nullopt).value();
        if (!child_) start();
        wait_for(requests);
        return asked_.take(requests);
      } catch (const ChildFailure& failure) {
        child_.reset();
        VALIDATE(attempt < environment_.retries, ExitCode::unfit_environment, "reward plugin ", name_, " (", options_.command[0], "): ",
                 failure.what, ", after ", attempt, " restarts (reward.retries)", log_hint());
        log::warning(base::text("reward plugin ", name_, ": ", failure.what, "; restart ", attempt + 1, " of ", environment_.retries));
        pause(std::min(0.1 * static_cast<double>(int64_t{1} << std::min<int64_t>(attempt, 6)), 5.0));
      }
    }
  }

 private:
  void open_log() {
    if (environment_.log_dir.empty()) return;
    log_file_ = environment_.log_dir / base::text("plugin-", name_, "-", environment_.rank, ".log");
    log_ = base::FileDescriptor(::open(log_file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!log_.valid()) base::throw_errno(errno, "cannot write", log_file_);
  }

  std::string log_hint() const { return log_file_.empty() ? std::string() : base::text(": its messages are in ", log_file_.string()); }

  // It is asked for all that is not answered yet.
  void start() {
    partial_.clear();
    outgoing_ = asked_.missing();
    sent_ = 0;
    child_ = std::make_unique<ChildProcess>(options_.command, log_file_);
  }

  static void pause(double seconds) {
    const timespec time{static_cast<time_t>(seconds), static_cast<long>((seconds - std::floor(seconds)) * 1e9)};
    ::nanosleep(&time, nullptr);
  }

  // The deadline starts anew at every answer, so it need not grow with the number of requests.
  void wait_for(std::span<const Request> requests) {
    base::Stopwatch since_answer;
    size_t count = asked_.answered();
    for (size_t next = 0;;) {
      while (next < requests.size() && asked_.answered(requests[next])) ++next;
      if (next == requests.size()) return;
      if (environment_.stop()) throw Stopped{};
      base::tick();  // waiting within the plugin's own deadline is no hang
      if (asked_.answered() > count) since_answer.restart();
      count = asked_.answered();
      const double left = options_.timeout.seconds - since_answer.seconds();
      if (left <= 0) throw ChildFailure{base::text("no answer within ", base::human_seconds(options_.timeout.seconds), ", with ", count, " of ",
                                                   asked_.size(), " requests answered")};
      move_on(std::min(left, 1.0));
    }
  }

  // Writes and reads at the same time: a child that answers as it goes would otherwise block both pipes. False: nothing could be done for so long.
  bool move_on(double seconds) {
    if (!child_ || asked_.complete()) return false;
    const bool sending = sent_ < outgoing_.size();
    pollfd ends[2] = {{child_->output(), POLLIN, 0}, {child_->input(), POLLOUT, 0}};
    const int ready = ::poll(ends, sending ? 2 : 1, seconds > 0 ? static_cast<int>(seconds * 1000) + 1 : 0);
    if (ready < 0 && errno != EINTR) base::throw_errno(errno, "cannot wait for the reward plugin", options_.command[0]);
    if (ready <= 0) return false;
    if (sending && ends[1].revents != 0) sent_ += write_some(std::string_view(outgoing_).substr(sent_));
    if (ends[0].revents != 0) read_some();
    return true;
  }

  // What came while nothing was asked for: an answer there would otherwise be taken for one to a request with the same id.
  void refuse_unasked() {
    char buffer[4096];
    ssize_t n = 0;
    while ((n = ::read(child_->output(), buffer, sizeof buffer)) > 0) partial_.append(buffer, static_cast<size_t>(n));
    VALIDATE(partial_.find("\"reward\"") == std::string::npos, ExitCode::bad_data, "reward plugin ", name_,
             ": an answer that nobody asked for: ", excerpt(partial_));
    if (!partial_.empty()) note(partial_);
    partial_.clear();
  }

  size_t write_some(std::string_view text) {
    const ssize_t n = ::write(child_->input(), text.data(), std::min<size_t>(text.size(), 65536));
    if (n >= 0) return static_cast<size_t>(n);
    if (errno == EAGAIN || errno == EINTR) return 0;
    if (errno == EPIPE) return text.size();  // it reads no more: what it still answers, or its end, comes by the other pipe
    base::throw_errno(errno, "cannot write to the reward plugin", options_.command[0]);
  }

  void read_some() {
    char buffer[65536];
    const ssize_t n = ::read(child_->output(), buffer, sizeof buffer);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n < 0) base::throw_errno(errno, "cannot read from the reward plugin", options_.command[0]);
    if (n == 0) return ended();
    const size_t before = partial_.size();  // no line ends in there
    partial_.append(buffer, static_cast<size_t>(n));
    size_t begin = 0;
    for (size_t end; (end = partial_.find('\n', std::max(begin, before))) != std::string::npos; begin = end + 1) {
      take_line(std::string_view(partial_).substr(begin, end - begin));
    }
    partial_.erase(0, begin);
    VALIDATE(partial_.size() <= longest_line, ExitCode::bad_data, "reward plugin ", name_, ": a line longer than ", longest_line,
             " bytes: write one JSON object per line");
  }

  void take_line(std::string_view line) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    std::string changed;
    if (fault_ == "nan" && line.find("\"reward\"") != std::string_view::npos) {
      fault_.clear();
      changed = R"({"id":"0","reward":NaN})";
      line = changed;
    } else if (fault_ == "short" && line.find("\"reward\"") != std::string_view::npos) {
      fault_.clear();
      return;
    }
    if (!line.empty() && !asked_.accept(line)) note(line);
  }

  // Its output is closed. All answers may be there already; else it left on purpose (code 0) or crashed.
  void ended() {
    if (!partial_.empty()) take_line(partial_);
    partial_.clear();
    const Exit exit = child_->wait(1.0);
    child_.reset();
    if (asked_.complete()) return;
    VALIDATE(exit.by_signal || exit.code != 0, ExitCode::bad_data, "reward plugin ", name_, ": it ended after ", asked_.answered(), " of ",
             asked_.size(), " answers (", exit.text(), "): answer every request, and read until the end of the input", log_hint());
    throw ChildFailure{base::text("it ended after ", asked_.answered(), " of ", asked_.size(), " answers (", exit.text(), ")")};
  }

  void note(std::string_view line) {
    if (!log_.valid()) return;
    base::write_all(log_.get(), std::string(line) + "\n", log_file_);
  }

  // Faults that the child is made to have, once.
  void inject_before() {
    if (fault_ == "crash") ::kill(child_->pid(), SIGKILL);
    if (fault_ == "hang") ::kill(child_->pid(), SIGSTOP);
    if (fault_ == "slow") pause(options_.timeout.seconds / 2);
    if (fault_ == "crash" || fault_ == "hang" || fault_ == "slow") fault_.clear();
  }

  config::RewardSource options_;
  std::string name_;
  PluginEnvironment environment_;
  std::string fault_;
  std::filesystem::path log_file_;
  base::FileDescriptor log_;
  std::unique_ptr<ChildProcess> child_;
  std::optional<ChildFailure> failed_;  // of the child, seen by poll()
  Asked asked_;
  std::string outgoing_;  // requests for the child
  size_t sent_ = 0;       // bytes of them that it has taken
  std::string partial_;  // the start of a line whose end has not come yet
};

}  // namespace

std::unique_ptr<Source> make_plugin(const config::RewardSource& options, std::string name, const PluginEnvironment& environment) {
  return std::make_unique<PluginSource>(options, std::move(name), environment);
}

}  // namespace trireme::reward
