// Rewards from a program of the user's: requests and answers as JSON lines over pipes. The protocol
// stands in reward.hpp.
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "reward/asked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/plugin/programs.hpp"
#include "trireme/reward/reward.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::reward {
namespace {

void sleep_for(double seconds) {
  const timespec time{static_cast<time_t>(seconds),
                      static_cast<long>((seconds - std::floor(seconds)) * 1e9)};
  ::nanosleep(&time, nullptr);
}

plugin::Rules rules_of(const config::RewardSource& options, const std::string& name,
                       const char* mark, const PluginEnvironment& environment) {
  plugin::Rules rules;
  rules.processes = options.processes;
  rules.timeout = options.timeout.seconds;
  rules.retries = environment.retries;
  rules.outage = environment.outage;
  rules.answer_mark = mark;
  if (!environment.log_dir.empty())
    rules.log_file =
        environment.log_dir / base::text("plugin-", name, "-", environment.rank, ".log");
  return rules;
}

class PluginSource : public Source, private plugin::Requests {
 public:
  PluginSource(const config::RewardSource& options, std::string name,
               const PluginEnvironment& environment)
      : name_(std::move(name)),
        timeout_(options.timeout.seconds),
        progress_(environment.progress ? *environment.progress : own_progress_),
        fault_(environment.fault),
        whole_groups_(options.whole_groups),
        asked_(name_, whole_groups_),
        programs_({.kind = "reward plugin",
                   .name = name_,
                   .section = "reward",
                   .key = "reward.source.command",
                   .command = options.command},
                  rules_of(options, name_, asked_.answer_mark(), environment), *this) {}

  const std::string& name() const override { return name_; }
  bool takes_time() const override { return true; }
  PluginCounters take_counters() override {
    const plugin::Counters of_programs = programs_.take_counters();
    counters_.retries += of_programs.retries;
    counters_.restarts += of_programs.restarts;
    return std::exchange(counters_, {});
  }

  void ask(std::span<const Request> requests) override {
    if (requests.empty()) return;
    for (const Request& request : requests) {
      if (!whole_groups_) {
        send({&request, 1});
        continue;
      }
      std::vector<Request>& group = begun_[asked_.line_of(request.id)];
      group.push_back(request);
      if (std::ssize(group) == request.answers) send_group(request);
    }
    inject_before();
    poll();
  }

  void poll() override { programs_.poll(); }

  Scores score(std::span<const Request> requests) override {
    trace::Region region{"reward plugin", trace::no_argument, trace::Category::wait};
    if (requests.empty()) return {};
    if (progress_.some(comm::May::leave) == comm::Then::leave) return {.left = true};
    const base::Stopwatch watch;
    std::vector<Request> fresh;
    std::copy_if(
        requests.begin(), requests.end(), std::back_inserter(fresh),
        [this](const Request& request) { return !asked_.has(request) && !begun(request); });
    ask(fresh);
    for (const Request& request : requests) {
      if (begun(request)) send_group(request);  // there are no more on this rank
    }
    const comm::Then then = wait_for(requests);
    counters_.wait_seconds += watch.seconds();
    if (then == comm::Then::leave) return {.left = true};
    return asked_.take(requests);
  }

 private:
  void send(std::span<const Request> requests) {
    programs_.ask(programs_.least_busy(), asked_.line_of(requests.front().id),
                  asked_.add(requests));
    ++counters_.requests;
  }
  // The answers of its group on this rank, in the order of samples.
  void send_group(const Request& one) {
    std::vector<Request> group = std::move(begun_.extract(asked_.line_of(one.id)).mapped());
    std::ranges::sort(group, {}, &Request::id);
    send(group);
  }
  // Whether it waits for the rest of its group.
  bool begun(const Request& request) const {
    const auto group = begun_.find(asked_.line_of(request.id));
    return group != begun_.end() &&
           std::ranges::find(group->second, request.id, &Request::id) != group->second.end();
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

  std::optional<uint64_t> take(std::string_view line) override {
    const bool answer = line.find(asked_.answer_mark()) != std::string_view::npos;
    if (answer && fault_ == "nan") {
      fault_.clear();
      return asked_.accept(base::text("{\"id\":\"0\",", asked_.answer_mark(), ":NaN}"));
    }
    if (answer && fault_ == "short") {
      fault_.clear();
      return std::nullopt;
    }
    return asked_.accept(line);
  }
  std::string where(uint64_t id) const override { return asked_.where(id); }
  int64_t count_failure(uint64_t id) override { return asked_.count_failure(id); }
  void give_up(uint64_t id, const std::string&) override { asked_.give_up(id); }
  void ask_again(size_t process, uint64_t id) override {
    programs_.ask(process, id, asked_.line(id));
  }

  // Faults that the first process is made to have, once.
  void inject_before() {
    const auto pid = programs_.pid(0);
    if (fault_ == "crash" && pid) ::kill(*pid, SIGKILL);
    if (fault_ == "hang" && pid) ::kill(*pid, SIGSTOP);
    if (fault_ == "slow") sleep_for(timeout_ / 2);
    if (fault_ == "crash" || fault_ == "hang" || fault_ == "slow") fault_.clear();
  }

  std::string name_;
  double timeout_;
  comm::Progress own_progress_;
  comm::Progress& progress_;
  std::string fault_;
  bool whole_groups_;
  std::map<uint64_t, std::vector<Request>> begun_;  // groups that are not whole yet
  Asked asked_;
  plugin::Programs programs_;
  PluginCounters counters_;
};

}  // namespace

std::unique_ptr<Source> make_plugin(const config::RewardSource& options, std::string name,
                                    const PluginEnvironment& environment) {
  return std::make_unique<PluginSource>(options, std::move(name), environment);
}

}  // namespace trireme::reward
