#include "trireme/environment/environments.hpp"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "environment/answers.hpp"
#include "environment/tool_calls.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/plugin/programs.hpp"

namespace trireme::environment {
namespace {

// Longest pause between two calls of poll(), in seconds, that counts as an episode's wait: the rest
// is time in which this rank computed.
constexpr double longest_absence = 1;
// The number of all requests that need no answer; other numbers start at 1.
constexpr uint64_t no_answer = 0;

plugin::Program program_of(const config::EnvironmentOptions& options) {
  return {.kind = "environment",
          .name = "",
          .section = "environment",
          .key = "environment.command",
          .command = options.command};
}

plugin::Rules rules_of(const config::EnvironmentOptions& options,
                       const std::filesystem::path& log_dir, int rank) {
  plugin::Rules rules;
  rules.processes = options.processes;
  rules.timeout = options.timeout.seconds;
  rules.retries = options.retries;
  rules.outage = options.outage;
  rules.nonsense = options.outage == config::PluginOutage::skip ? plugin::Nonsense::is_failure
                                                                : plugin::Nonsense::ends_run;
  if (!log_dir.empty()) rules.log_file = log_dir / base::text("environment-", rank, ".log");
  return rules;
}

}  // namespace

ToolCount& ToolCount::operator+=(const ToolCount& other) {
  calls += other.calls;
  failed += other.failed;
  return *this;
}

Counters& Counters::operator+=(const Counters& other) {
  requests += other.requests;
  retries += other.retries;
  restarts += other.restarts;
  malformed_calls += other.malformed_calls;
  broken += other.broken;
  wait_seconds += other.wait_seconds;
  tools.resize(std::max(tools.size(), other.tools.size()));
  for (size_t i = 0; i < other.tools.size(); ++i) tools[i] += other.tools[i];
  return *this;
}

Reset reset_for(const data::PromptSet& prompts, int64_t row) {
  const data::PromptRecord& prompt = prompts[row];
  Reset reset;
  reset.prompt = prompt.prompt;
  reset.messages = prompt.messages;
  reset.label = prompt.label;
  reset.extra = prompt.extra;
  reset.where = prompts.where(row);
  return reset;
}

// An episode belongs to a process, which has at most one request of it in flight. All requests of
// an episode are kept: a new process in this place gets them again before the episode continues,
// and has to answer as the process before it.
class Environments::Episodes : private plugin::Requests {
 public:
  Episodes(const config::Options& options, const std::filesystem::path& log_dir, int rank)
      : options_(options.environment),
        calls_(options_),
        answers_("environment"),
        programs_(program_of(options_), rules_of(options_, log_dir, rank), *this),
        episodes_of_(programs_.size(), 0) {}

  void reset(const Reset& reset) {
    const auto [place, fresh] = episodes_.try_emplace(reset.episode);
    VALIDATE(fresh, ExitCode::internal, "environment: two open episodes have the id ",
             reset.episode);
    Episode& episode = place->second;
    episode.id = reset.episode;
    episode.prompt = reset.where;
    episode.chat = !reset.messages.empty();
    const auto least = std::ranges::min_element(episodes_of_);
    episode.process = static_cast<size_t>(least - episodes_of_.begin());
    ++*least;
    episode.life = programs_.life(episode.process);
    say(episode, {.text = reset_text(reset, options_.max_turns)});
  }

  void step(const Step& step) {
    Episode& episode = episodes_.at(step.episode);
    const bool looks = options_.tool_calls != config::ToolCalls::none;
    const ToolCalls calls = calls_.read(step.text);
    Request request{.text = step_text(step, looks ? &calls : nullptr),
                    .malformed = !calls.error.empty(),
                    .counts = !step.repeated};
    for (const ToolCall& call : calls.calls) request.tools.push_back(place_of(call.name));
    say(episode, std::move(request));
  }

  void close(uint64_t id) {
    const auto found = episodes_.find(id);
    if (found != episodes_.end()) forget(found->second, Tell::close);
  }

  std::vector<Reply> poll() {
    programs_.poll();
    end_late_ones();
    return std::exchange(replies_, {});
  }

  int64_t pending() const { return std::ssize(asked_); }
  Counters take_counters() {
    const plugin::Counters of_programs = programs_.take_counters();
    counters_.retries += of_programs.retries;
    counters_.restarts += of_programs.restarts;
    return std::exchange(counters_, {});
  }

 private:
  struct Request {
    std::string text;                // without its number
    std::vector<size_t> tools = {};  // that its calls name, by place in Counters::tools
    bool malformed = false;          // has a call that is none
    bool counts = true;
  };
  struct Episode {
    uint64_t id = 0;
    std::string prompt;  // "file:line"
    bool chat = false;
    size_t process = 0;
    int64_t life = 0;               // of the process that knows the episode
    std::vector<Request> said;      // reset and steps
    std::vector<size_t> digests;    // of the answers to them
    size_t next = 0;                // of `said`, that is asked
    std::optional<uint64_t> asked;  // its number
    int64_t failures = 0;           // of the request that is asked
    base::Stopwatch since;          // it was asked first
    double waited = 0;              // seconds, as far as this rank has listened
    int64_t turn() const { return std::ssize(said) - 2; }  // -1: the reset
  };
  enum class Tell { close, nothing };

  // Asks for the answer to a new request.
  void say(Episode& episode, Request request) {
    VALIDATE(!episode.asked, ExitCode::internal, "environment: episode ", episode.id,
             " is asked before it has answered");
    episode.said.push_back(std::move(request));
    episode.since.restart();
    episode.failures = 0;
    ++counters_.requests;
    const int64_t life = programs_.life(episode.process);
    const bool known = std::exchange(episode.life, life) == life;
    ask(episode, known ? episode.said.size() - 1 : 0);
  }

  void ask(Episode& episode, size_t which) {
    episode.next = which;
    episode.asked = ++requests_;
    asked_.emplace(requests_, episode.id);
    programs_.ask(episode.process, requests_, line_of(requests_, episode.said[which].text));
  }

  // The episode's request needs no answer any more.
  void drop(Episode& episode) {
    if (!episode.asked) return;
    asked_.erase(*episode.asked);
    dropped_.insert(*episode.asked);
  }

  // The last place is that of all names that the deck does not have.
  size_t place_of(const std::string& tool) const {
    return static_cast<size_t>(std::ranges::find(options_.tools, tool) - options_.tools.begin());
  }

  // `failed`: positions of calls.
  void count_calls(const Request& request, const std::vector<size_t>& failed) {
    if (!request.counts) return;
    counters_.malformed_calls += request.malformed;
    if (request.tools.empty()) return;
    counters_.tools.resize(options_.tools.size() + 1);
    for (const size_t tool : request.tools) ++counters_.tools[tool].calls;
    for (const size_t call : failed) ++counters_.tools[request.tools[call]].failed;
  }

  // Removes it here. Tell::close: also tells its process, if that still knows it.
  void forget(Episode& episode, Tell tell) {
    drop(episode);
    if (tell == Tell::close && episode.life == programs_.life(episode.process))
      programs_.tell(episode.process, line_of(no_answer, close_text(episode.id)));
    --episodes_of_[episode.process];
    episodes_.erase(episode.id);
  }

  // Ends it with what it has.
  void break_off(Episode& episode, const std::string& why) {
    if (std::has_single_bit(static_cast<uint64_t>(++broken_)))
      log::warning(base::text("environment: ", described(episode),
                              " ends with the turns that it "
                              "has: ",
                              why, " (", broken_, broken_ == 1 ? " episode" : " episodes",
                              " so far)"));
    ++counters_.broken;
    Reply reply;
    reply.episode = episode.id;
    reply.turn = episode.turn();
    reply.reward = options_.broken_reward;
    reply.done = true;
    reply.error = why;
    replies_.push_back(std::move(reply));
    forget(episode, Tell::close);
  }

  std::string described(const Episode& episode) const {
    const std::string what = episode.turn() < 0 ? "the reset" : base::text("turn ", episode.turn());
    return base::text(what, " of ",
                      episode.prompt.empty() ? base::text("episode ", episode.id)
                                             : "an episode of " + episode.prompt);
  }

  // plugin::Requests
  std::optional<uint64_t> take(std::string_view line) override {
    if (!looks_like_answer(line)) return std::nullopt;
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_discarded() && !json.contains("id")) return std::nullopt;
    const auto id = json.is_discarded() ? plugin::id_near(line) : plugin::id_of(json, line, who_);
    if (id == no_answer) return std::nullopt;
    if (id && dropped_.erase(*id) > 0) return id;
    const auto found = id ? asked_.find(*id) : asked_.end();
    VALIDATE(found != asked_.end(), ExitCode::bad_data, who_, ": an answer for an id that ",
             id && *id <= requests_ ? "has its answer" : "was not asked for",
             ", or that cannot be read: send the id of the request back as it came, once: ",
             plugin::excerpt(line));
    answered(episodes_.at(found->second), line);
    return id;
  }

  void answered(Episode& episode, std::string_view line) {
    AnswerReader::Answer answer;
    try {
      answer = answers_.read(line, {described(episode), episode.turn() < 0, episode.chat,
                                    episode.said[episode.next].tools.size()});
      check_again(episode, answer.digest);
    } catch (const UserError& error) {
      if (options_.outage != config::PluginOutage::skip) throw;
      asked_.erase(*std::exchange(episode.asked, std::nullopt));
      return break_off(episode, error.what());
    }
    asked_.erase(*std::exchange(episode.asked, std::nullopt));
    if (episode.next + 1 < episode.said.size()) return ask(episode, episode.next + 1);
    episode.digests.push_back(answer.digest);
    counters_.wait_seconds += episode.since.seconds();
    count_calls(episode.said.back(), answer.failed);
    hand_over(episode, std::move(answer.reply));
  }

  // A new process must answer as the one that was told this before.
  void check_again(const Episode& episode, size_t digest) const {
    if (episode.next + 1 == episode.said.size()) return;
    VALIDATE(digest == episode.digests[episode.next], ExitCode::bad_data, who_, ", ",
             described(episode), ": after a restart the program answers request ", episode.next + 1,
             " of the episode otherwise than before (so that it cannot go on): its answers may "
             "depend on the seed and the turns alone");
  }

  void hand_over(Episode& episode, Reply reply) {
    reply.episode = episode.id;
    reply.turn = episode.turn();
    const bool by_program = reply.done;
    reply.truncated = !by_program && reply.turn + 1 >= options_.max_turns;
    reply.done = by_program || reply.truncated;
    if (reply.done) {
      reply.messages.clear();  // no turn answers it
      reply.text.clear();
      forget(episode, by_program ? Tell::nothing : Tell::close);
    }
    replies_.push_back(std::move(reply));
  }

  std::string where(uint64_t id) const override {
    const auto found = asked_.find(id);
    return found == asked_.end() ? base::text("request ", id)
                                 : described(episodes_.at(found->second));
  }

  int64_t count_failure(uint64_t id) override {
    if (dropped_.erase(id) > 0) return 0;
    return ++episodes_.at(asked_.at(id)).failures;
  }

  void give_up(uint64_t id, const std::string& why) override {
    Episode& episode = episodes_.at(asked_.at(id));
    asked_.erase(*std::exchange(episode.asked, std::nullopt));
    break_off(episode, why);
  }

  void ask_again(size_t process, uint64_t id) override {
    Episode& episode = episodes_.at(asked_.at(id));
    asked_.erase(id);
    episode.life = programs_.life(process);
    ask(episode, 0);
  }

  // environment.max_time
  void end_late_ones() {
    const double passed = std::min(since_poll_.seconds(), longest_absence);
    since_poll_.restart();
    const double limit = options_.max_time.seconds;
    if (limit == 0) return;
    std::vector<uint64_t> late;
    for (const auto& [request, id] : asked_) {
      Episode& episode = episodes_.at(id);
      episode.waited += passed;
      if (episode.waited > limit) late.push_back(id);
    }
    std::ranges::sort(late);
    for (const uint64_t id : late) {
      break_off(episodes_.at(id),
                base::text("it has waited for more than ", base::human_seconds(limit),
                           " (environment.max_time)"));
    }
  }

  const std::string who_ = "environment";
  config::EnvironmentOptions options_;
  CallReader calls_;
  AnswerReader answers_;
  uint64_t requests_ = 0;  // numbers that were given away
  int64_t broken_ = 0;
  std::unordered_map<uint64_t, Episode> episodes_;
  std::unordered_map<uint64_t, uint64_t> asked_;  // requests, and their episodes
  std::unordered_set<uint64_t> dropped_;          // requests whose answers are not needed any more
  std::vector<Reply> replies_;
  Counters counters_;
  base::Stopwatch since_poll_;
  plugin::Programs programs_;
  std::vector<int64_t> episodes_of_;  // by process
};

Environments::Environments(const config::Options& options, const std::filesystem::path& log_dir,
                           int rank)
    : episodes_(std::make_unique<Episodes>(options, log_dir, rank)) {}
Environments::Environments() = default;
Environments::~Environments() = default;
void Environments::reset(const Reset& reset) { episodes_->reset(reset); }
void Environments::step(const Step& step) { episodes_->step(step); }
void Environments::close(uint64_t episode) { episodes_->close(episode); }
std::vector<Reply> Environments::poll() { return episodes_->poll(); }
int64_t Environments::pending() const { return episodes_->pending(); }
Counters Environments::take_counters() { return episodes_->take_counters(); }

}  // namespace trireme::environment
