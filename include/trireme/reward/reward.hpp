// Where rewards come from: rules, plugins in a child process, reward models, judges; the deck's
// list of sources with weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/comm/progress.hpp"
#include "trireme/config/options.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/text/chat_template.hpp"

namespace trireme::reward {

// One sample to score. Texts are UTF-8.
struct Request {
  uint64_t id = 0;  // unique within a call
  std::string prompt;
  std::string response;
  std::vector<text::Message> messages;  // of the prompt; empty: it is a plain text
  std::string variables;                // of messages: JSON object for the chat template, or empty
  std::string answer_fields;  // JSON object of the answer's turn beside role and content, or empty
  std::string label;          // what data.label_key held; empty: none
  std::string label_json;     // the same as JSON where it is neither a text nor missing
  std::string extra;          // JSON object of the row's other columns, or empty
  FinishReason finish_reason = FinishReason::stop;
  int64_t iteration = 0;
  std::vector<int32_t> ids;  // prompt and response in the policy's tokenizer
  int64_t prompt_len = 0;    // tokens of the prompt
  bool encoded = false;      // the ids were made of the texts; false: the policy wrote them
  std::string where;         // "file:line" of its prompt; empty: not from a file
  int64_t answers = 1;       // to its prompt that are scored on this rank, this one among them
  // Of an episode: the environment's rewards for its turns, and the tokens of the policy's turns.
  float turn_rewards = 0;
  std::optional<int64_t> turn_tokens = {};
};
// The request in words, for messages: "the prompt of data.jsonl:7", or its number.
std::string described(const Request& request);
// The fields that a request takes from its prompt; add_label(): those that label_problem() reads.
Request request_for(const data::PromptSet& prompts, int64_t row);
void add_label(const data::PromptSet& prompts, int64_t row, Request& request);

struct Scores {
  std::vector<float> values = {};  // one per request, in their order; finite
  std::map<std::string, std::vector<float>> metrics =
      {};  // named parts, one per request; NaN where a request has none
  // Of a judge, one per request, where samples are saved: Samples::judgements.
  std::vector<std::string> judgements = {};
  std::vector<uint8_t> missing =
      {};             // 1: the source gave the request up, its value means nothing; empty: none
  bool left = false;  // the run stops before all answers are there: nothing of this counts
};

// What plugins did on this rank.
struct PluginCounters {
  int64_t requests = 0;
  int64_t retries = 0;         // requests that were asked again
  int64_t restarts = 0;        // of processes that failed or were late
  int64_t skipped_groups = 0;  // prompts that were left out for want of an answer
  double wait_seconds = 0;     // time that score() took
  PluginCounters& operator+=(const PluginCounters& other);
};

// What judges did on this rank.
struct JudgeCounters {
  int64_t votes = 0;
  int64_t without_score = 0;  // votes in whose text there is none
  int64_t too_long = 0;       // answers that were not judged: the question has too many tokens
  int64_t tokens = 0;         // written
  int64_t prompt_tokens = 0;  // computed
  int64_t shared_tokens = 0;  // of prompts, that others had computed
  double seconds = 0;         // in steps
  JudgeCounters& operator+=(const JudgeCounters& other);
};

class Source {
 public:
  virtual ~Source() = default;
  virtual const std::string& name() const = 0;
  // Collective over the reward role where the source is a model (every rank calls it, with any
  // number of requests); local for rules and plugins. Throws UserError: bad_data for answers that
  // make no sense, unfit_environment for a source that is gone.
  virtual Scores score(std::span<const Request> requests) = 0;
  // What collective sources are: their score() waits for the same call on the other ranks.
  virtual bool collective() const { return false; }
  // Why it cannot compare an answer with the label of this request, of which nothing else is read;
  // empty where it can, or compares with none. Where this is empty, score() takes every answer.
  virtual std::string label_problem(const Request&) const { return {}; }
  // A source that takes its time: it begins with what ask() names and goes on with it in poll(),
  // which does not wait; a later score() has to name all of it, in any number of calls, and waits
  // for what is missing. Its score() may be left on this rank alone (Scores::left). Local.
  virtual bool takes_time() const { return false; }
  virtual void ask(std::span<const Request>) {}
  virtual void poll() {}
  // Of the time since the last call.
  virtual PluginCounters take_counters() { return {}; }
  virtual JudgeCounters take_judge_counters() { return {}; }
  // Bytes of this rank that a judge may take for keys and values.
  virtual int64_t cache_bytes() const { return 0; }
  // Bytes of this rank that hold a model's weights.
  virtual int64_t weight_bytes() const { return 0; }
};

// Exact text, regular expression or number against the label, plus format and length parts; see
// rule.hpp.
std::unique_ptr<Source> make_rule(const config::RewardSource& options, std::string name);

// The environment's rewards of an episode, for runs with one: the last source, of weight 1.
std::unique_ptr<Source> make_environment_source();

// Child processes that answer JSON lines, options.processes of them. Started here: call it before
// the device is touched.
//   request
//   {"v":1,"id":"...","prompt","response","messages"?,"label","extra"?,"finish_reason","iteration"}
//   one line each answer   {"id","reward","metrics"?}   in any order; the id as it came. metrics:
//   numbers by name, true and false count as 1 and 0, null as left out
// With options.whole_groups a request has all answers to a prompt, as soon as they are there:
//   {"v":1,"id":"...","prompt","messages"?,"label","extra"?,"iteration",
//    "group":[{"response","finish_reason"},...]}   answer
//    {"id","rewards":[...],"metrics"?:[{},...]}
// A request goes to the process that has the fewest unanswered ones; one that has requests and
// gives no answer for options.timeout is late, of which the time in which this rank calls neither
// poll() nor score() does not count. Other lines (marked "stdout: ") and the processes' stderr go
// to the log file; the last of it is part of the errors. A reward or metric that is not a finite
// number, an answer without an id, with an unknown one or with one that
// was answered before, or an end of a process (exit code 0) that leaves requests unanswered is
// bad_data. After a crash or when it is late a process is started again and gets the requests that
// it has not answered; for one that has failed more than `retries` times `outage` says whether the
// source ends (unfit_environment), goes on, or gives that request up (Scores::missing). The
// processes, and what they start in their process groups, are killed when this process ends in
// whatever way.
struct PluginEnvironment {
  int64_t retries = 3;  // reward.retries, of each request
  config::PluginOutage outage = config::PluginOutage::stop;
  std::filesystem::path log_dir;  // plugin-<name>-<rank>.log; empty: kept for errors only
  int rank = 0;
  comm::Progress* progress = nullptr;  // of the rank that waits; null: nothing else makes progress
  std::string fault;  // fault.plugin_fault: crash | hang | nan | short | slow, on the first
                      // request; empty: none
};
std::unique_ptr<Source> make_plugin(const config::RewardSource& options, std::string name,
                                    const PluginEnvironment& environment);

// The sources of a deck and their weighted sum.
class Rewards {
 public:
  void add(std::unique_ptr<Source> source, double weight);
  size_t size() const { return sources_.size(); }
  const Source& source(size_t i) const { return *sources_[i].source; }

  // Whether some source begins with a request before score_locally() names it.
  bool takes_time() const;
  bool has_models() const;
  // Of the sources that take their time. Local.
  void ask(std::span<const Request> requests);
  void poll();
  // Sums over the sources, of the time since the last call.
  PluginCounters take_counters();
  JudgeCounters take_judge_counters();

  // [sources][requests], unweighted.
  using Parts = std::vector<std::vector<float>>;
  struct LocalScores {
    Parts parts;
    std::vector<uint8_t> missing;  // 1: some source gave the request up; empty: none
    // Samples::reward_metrics, of plugins: "source/name".
    std::map<std::string, std::vector<float>> metrics;
    std::map<std::string, std::vector<std::string>> judgements;  // by source
  };
  // Asks rules and plugins, in their order; the parts of models are zeros. nullopt: a source was
  // left early. `any_stopped` tells whether that was so on any rank, this one's answer given; it is
  // called behind every source that may stop.
  std::optional<LocalScores> score_locally(
      std::span<const Request> requests,
      const std::function<bool(bool)>& any_stopped = [](bool mine) { return mine; });
  // Fills in the parts of models; leave: a pass was left. Collective over the reward role.
  comm::Then score_with_models(std::span<const Request> requests, Parts& parts);
  // Of each request the sum over sources of weight * part.
  std::vector<float> sum(const Parts& parts) const;

 private:
  struct Entry {
    std::unique_ptr<Source> source;
    double weight;
  };
  std::vector<Entry> sources_;
};

std::vector<std::string> source_names(
    const config::Options& options);  // of all sources of the deck
// The rule at place `index` of the deck, which names the column of its labels.
std::unique_ptr<Source> make_rule_of(const config::Options& options, size_t index);

}  // namespace trireme::reward
