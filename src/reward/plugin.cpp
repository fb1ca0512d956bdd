// Rewards from a program of the user's: requests and answers as JSON lines over pipes. The protocol stands in reward.hpp.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <ctime>
#include <limits>
#include <optional>
#include <unordered_map>

#include "reward/child_process.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/data/jsonl.hpp"
#include "trireme/reward/reward.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::reward {
namespace {

constexpr size_t longest_line = size_t{1} << 24;

std::string request_line(const Request& r) {
  data::JsonObject line;
  line.add("v", 1).add("id", std::to_string(r.id)).add("prompt", r.prompt).add("response", r.response);
  if (!r.messages.empty()) line.add_json("messages", r.messages);
  line.add("label", r.label);
  if (!r.extra.empty()) line.add_json("extra", r.extra);
  line.add("finish_reason", to_string(r.finish_reason)).add("iteration", r.iteration);
  return line.str() + "\n";
}

std::string excerpt(std::string_view line) { return std::string(line.substr(0, 200)) + (line.size() > 200 ? "..." : ""); }

// Why an attempt failed that a new child may do better.
struct ChildFailure {
  std::string what;
};

// The answers to one batch as they come in.
class Answers {
 public:
  Answers(std::span<const Request> requests, std::string source) : source_(std::move(source)), answered_(requests.size(), false) {
    scores_.values.resize(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) place_[std::to_string(requests[i].id)] = i;
    VALIDATE(place_.size() == requests.size(), ExitCode::internal, "reward source ", source_, ": two requests have one id");
  }

  bool complete() const { return count_ == answered_.size(); }
  bool has(size_t i) const { return answered_[i]; }
  size_t count() const { return count_; }
  size_t size() const { return answered_.size(); }
  Scores take() { return std::move(scores_); }

  // False when the line is no answer but something the plugin printed.
  bool accept(std::string_view line) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_discarded()) {
      // Python's json writes NaN, which is no JSON; a line that tries to be an answer must not pass for noise.
      const bool answer = line.starts_with('{') && line.find("\"reward\"") != std::string_view::npos;
      VALIDATE(!answer, ExitCode::bad_data, "reward plugin ", source_, ": this answer is no JSON (NaN and Infinity are none either): ",
               excerpt(line));
      return false;
    }
    if (!json.is_object() || (!json.contains("reward") && !json.contains("id"))) return false;
    const size_t i = place_of(json, line);
    scores_.values[i] = reward_of(json, line);
    if (json.contains("metrics")) add_metrics(json["metrics"], i, line);
    answered_[i] = true;
    ++count_;
    return true;
  }

 private:
  size_t place_of(const nlohmann::json& json, std::string_view line) const {
    const auto id = json.find("id");
    VALIDATE(id != json.end(), ExitCode::bad_data, "reward plugin ", source_, ": an answer without an id (which request is it for?): ",
             excerpt(line));
    VALIDATE(id->is_string() || id->is_number_integer(), ExitCode::bad_data, "reward plugin ", source_,
             ": the id of an answer is neither a text nor a whole number: ", excerpt(line));
    const std::string text = id->is_string() ? id->get<std::string>() : id->dump();
    const auto found = place_.find(text);
    VALIDATE(found != place_.end(), ExitCode::bad_data, "reward plugin ", source_, ": an answer for id ", text,
             ", which was not asked for: send the id of the request back as it came");
    VALIDATE(!answered_[found->second], ExitCode::bad_data, "reward plugin ", source_, ": a second answer for id ", text);
    return found->second;
  }

  float reward_of(const nlohmann::json& json, std::string_view line) const {
    const auto reward = json.find("reward");
    const double value = reward != json.end() && reward->is_number() ? reward->get<double>() : std::numeric_limits<double>::quiet_NaN();
    VALIDATE(std::isfinite(value) && std::isfinite(static_cast<float>(value)), ExitCode::bad_data, "reward plugin ", source_,
             ": the reward is no finite number: ", excerpt(line));
    return static_cast<float>(value);
  }

  void add_metrics(const nlohmann::json& metrics, size_t i, std::string_view line) {
    VALIDATE(metrics.is_object(), ExitCode::bad_data, "reward plugin ", source_, ": metrics must be an object of numbers: ", excerpt(line));
    for (const auto& [key, value] : metrics.items()) {
      VALIDATE(value.is_number(), ExitCode::bad_data, "reward plugin ", source_, ": the metric \"", key, "\" is no number: ", excerpt(line));
      auto& column = scores_.metrics[key];
      column.resize(answered_.size(), std::numeric_limits<float>::quiet_NaN());
      column[i] = value.get<float>();
    }
  }

  std::string source_;
  std::unordered_map<std::string, size_t> place_;
  std::vector<bool> answered_;
  size_t count_ = 0;
  Scores scores_;
};

class PluginSource : public Source {
 public:
  PluginSource(const config::RewardSource& options, std::string name, const PluginEnvironment& environment)
      : options_(options), name_(std::move(name)), environment_(environment), fault_(environment.fault) {
    VALIDATE(!options_.command.empty(), ExitCode::configuration, "reward source ", name_, ": command is missing: name the program to start");
    open_log();
    start();
  }

  const std::string& name() const override { return name_; }
  bool may_stop() const override { return true; }

  Scores score(std::span<const Request> requests) override {
    trace::Region region{"reward plugin", trace::no_argument, trace::Category::wait};
    if (requests.empty()) return {};
    const BlockSigpipe no_sigpipe;
    Answers answers(requests, name_);  // those of a child that fails are kept
    for (int64_t attempt = 0;; ++attempt) {
      try {
        if (!child_) start();
        converse(requests, answers);
        return answers.take();
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

  void start() {
    partial_.clear();
    child_ = std::make_unique<ChildProcess>(options_.command, log_file_);
  }

  static void pause(double seconds) {
    const timespec time{static_cast<time_t>(seconds), static_cast<long>((seconds - std::floor(seconds)) * 1e9)};
    ::nanosleep(&time, nullptr);
  }

  // Asks for what is not answered yet. Writes and reads at the same time: a child that answers as it goes would otherwise block both
  // pipes. The deadline starts anew at every answer, so it need not grow with the batch.
  void converse(std::span<const Request> requests, Answers& answers) {
    std::string outgoing;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (!answers.has(i)) outgoing += request_line(requests[i]);
    }
    refuse_unasked();
    inject_before();
    size_t sent = 0;
    size_t count = answers.count();
    base::Stopwatch since_answer;
    while (!answers.complete()) {
      if (environment_.stop()) throw Stopped{};
      base::tick();  // waiting within the plugin's own deadline is no hang
      if (answers.count() > count) since_answer.restart();
      count = answers.count();
      const double left = options_.timeout.seconds - since_answer.seconds();
      if (left <= 0) throw ChildFailure{base::text("no answer within ", base::human_seconds(options_.timeout.seconds), ", with ", count, " of ",
                                                   answers.size(), " requests answered")};
      const bool sending = sent < outgoing.size();
      pollfd ends[2] = {{child_->output(), POLLIN, 0}, {child_->input(), POLLOUT, 0}};
      const int ready = ::poll(ends, sending ? 2 : 1, static_cast<int>(std::min(left, 1.0) * 1000) + 1);
      if (ready < 0 && errno != EINTR) base::throw_errno(errno, "cannot wait for the reward plugin", options_.command[0]);
      if (ready <= 0) continue;
      if (sending && ends[1].revents != 0) sent += write_some(std::string_view(outgoing).substr(sent));
      if (ends[0].revents != 0) read_some(answers);
    }
  }

  // What came since the last batch: an answer there would otherwise be taken for one to a request with the same id.
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

  void read_some(Answers& answers) {
    char buffer[65536];
    const ssize_t n = ::read(child_->output(), buffer, sizeof buffer);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n < 0) base::throw_errno(errno, "cannot read from the reward plugin", options_.command[0]);
    if (n == 0) return ended(answers);
    const size_t before = partial_.size();  // no line ends in there
    partial_.append(buffer, static_cast<size_t>(n));
    size_t begin = 0;
    for (size_t end; (end = partial_.find('\n', std::max(begin, before))) != std::string::npos; begin = end + 1) {
      take_line(std::string_view(partial_).substr(begin, end - begin), answers);
    }
    partial_.erase(0, begin);
    VALIDATE(partial_.size() <= longest_line, ExitCode::bad_data, "reward plugin ", name_, ": a line longer than ", longest_line,
             " bytes: write one JSON object per line");
  }

  void take_line(std::string_view line, Answers& answers) {
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
    if (!line.empty() && !answers.accept(line)) note(line);
  }

  // Its output is closed. All answers may be there already; else it left on purpose (code 0) or crashed.
  void ended(Answers& answers) {
    if (!partial_.empty()) take_line(partial_, answers);
    partial_.clear();
    const Exit exit = child_->wait(1.0);
    child_.reset();
    if (answers.complete()) return;
    VALIDATE(exit.by_signal || exit.code != 0, ExitCode::bad_data, "reward plugin ", name_, ": it ended after ", answers.count(), " of ",
             answers.size(), " answers (", exit.text(), "): answer every request, and read until the end of the input", log_hint());
    throw ChildFailure{base::text("it ended after ", answers.count(), " of ", answers.size(), " answers (", exit.text(), ")")};
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
  std::string partial_;  // the start of a line whose end has not come yet
};

}  // namespace

std::unique_ptr<Source> make_plugin(const config::RewardSource& options, std::string name, const PluginEnvironment& environment) {
  return std::make_unique<PluginSource>(options, std::move(name), environment);
}

}  // namespace trireme::reward
