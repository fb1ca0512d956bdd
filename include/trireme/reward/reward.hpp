// Where rewards come from: rules, plugins in a child process, reward models; the deck's list of sources with weights.
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
#include "trireme/config/options.hpp"

namespace trireme::reward {

// One sample to score. Texts are UTF-8.
struct Request {
  uint64_t id = 0;  // unique within a call
  std::string prompt;
  std::string response;
  std::string messages;  // JSON array of the conversation, or empty
  std::string label;     // what data.label_key held; empty: none
  std::string extra;     // JSON object of the row's other columns, or empty
  FinishReason finish_reason = FinishReason::stop;
  int64_t iteration = 0;
  std::vector<int32_t> ids;  // prompt and response in the policy's tokenizer
  int64_t prompt_len = 0;    // tokens of the prompt
};

struct Scores {
  std::vector<float> values;                          // one per request, in their order; finite
  std::map<std::string, std::vector<float>> metrics;  // named parts, one per request; NaN where a request has none
};

// score() was left early, as asked.
struct Stopped {};

class Source {
 public:
  virtual ~Source() = default;
  virtual const std::string& name() const = 0;
  // Collective over the reward role where the source is a model (every rank calls it, with any number of requests); local for
  // rules and plugins. Throws UserError: bad_data for answers that make no sense, unfit_environment for a source that is gone.
  virtual Scores score(std::span<const Request> requests) = 0;
  // What collective sources are: their score() waits for the same call on the other ranks.
  virtual bool collective() const { return false; }
  // A source that takes its time: it begins with what ask() names and goes on with it in poll(), which does not wait; a later score() has to
  // name all of it, in any number of calls, and waits for what is missing. Its score() may end early on this rank alone (Stopped). Local.
  virtual bool takes_time() const { return false; }
  virtual void ask(std::span<const Request>) {}
  virtual void poll() {}
  // Bytes of this rank that hold a model's weights.
  virtual int64_t weight_bytes() const { return 0; }
};

// Exact text, regular expression or number against the label, plus format and length parts; see rule.hpp.
std::unique_ptr<Source> make_rule(const config::RewardSource& options, std::string name);

// A child process that answers JSON lines. Started here: call it before the device is touched.
//   request  {"v":1,"id":"...","prompt","response","messages"?,"label","extra"?,"finish_reason","iteration"}   one line each
//   answer   {"id","reward","metrics"?}   in any order; the id as it came
// Other lines and the child's stderr go to its log file. A reward that is not a finite number, an answer without an id, with an
// unknown one or with one that was answered before, or an end of the child (exit code 0) that leaves requests unanswered is bad_data.
// The time that score() waits for the next answer is limited. A crash or a passed deadline restarts the child with
// the requests that are not answered yet; after `retries` restarts it is unfit_environment. The child, and what it starts in its process
// group, is killed when this process ends in whatever way.
struct PluginEnvironment {
  int64_t retries = 3;            // reward.retries, per call of score()
  std::filesystem::path log_dir;  // plugin-<name>-<rank>.log; empty: the child's messages are dropped
  int rank = 0;
  std::function<bool()> stop = [] { return false; };  // asked while it waits; true: score() throws Stopped
  std::string fault;  // fault.plugin_fault: crash | hang | nan | short | slow, on the first request; empty: none
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

  // [sources][requests], unweighted.
  using Parts = std::vector<std::vector<float>>;
  // Asks rules and plugins, in their order; the parts of models are zeros. nullopt: a source was left early. `any_stopped` tells whether that was so
  // on any rank, this one's answer given; it is called behind every source that may stop.
  std::optional<Parts> score_locally(std::span<const Request> requests, const std::function<bool(bool)>& any_stopped = [](bool mine) { return mine; });
  // Fills in the parts of models. Collective over the reward role.
  void score_with_models(std::span<const Request> requests, Parts& parts);
  // Of each request the sum over sources of weight * part.
  std::vector<float> sum(const Parts& parts) const;

 private:
  struct Entry {
    std::unique_ptr<Source> source;
    double weight;
  };
  std::vector<Entry> sources_;
};

// The name of source `index`: its own, else kind and index.
std::string source_name(const config::RewardSource& options, size_t index);
std::vector<std::string> source_names(const config::Options& options);  // of all sources of the deck

}  // namespace trireme::reward
