// Programs that answer the policy's turns (docs/user/environments.md has the protocol).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/config/options.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/text/chat_template.hpp"

namespace trireme::environment {

// The start of an episode.
struct Reset {
  uint64_t episode = 0;  // unique among those that are open
  std::string prompt;
  std::vector<text::Message> messages;  // of the prompt; empty: it is a plain text
  std::string label;                    // empty: none
  std::string extra;                    // JSON object of the row's other columns, or empty
  uint64_t seed = 0;  // a function of run.seed and the episode; its last 53 bits are sent
  std::string where;  // "file:line" of the prompt, for messages; empty: not from a file
};
// The fields that come from the prompt.
Reset reset_for(const data::PromptSet& prompts, int64_t row);

// The policy has written a turn.
struct Step {
  uint64_t episode = 0;
  int64_t turn = 0;  // from 0
  // Without its end token. Special tokens that the turn has are in the text: <|python_tag|> marks a
  // call of Llama 3.
  std::string text;
  FinishReason finish_reason = FinishReason::stop;
  bool repeated = false;  // a turn of a checkpoint, which was answered before: it counts no calls
};

// The environment's answer to a reset or to a turn.
struct Reply {
  uint64_t episode = 0;
  int64_t turn = -1;  // that it answers; -1: the reset
  // The observation: messages, or a text that is appended as it is. After a reset it follows the
  // prompt, and both may be empty. After a turn both are empty if and only if the episode is
  // done.
  std::vector<text::Message> messages;
  std::string text;
  double reward = 0;  // of the turn; finite as a float; environment.broken_reward with an error
  bool done = false;  // the episode is over and forgotten here: no close()
  bool truncated = false;  // done because of environment.max_turns, not by the program's word
  std::map<std::string, float> metrics;
  std::string error;  // why the episode is broken, done is set; empty: it is not
};

// Calls of one tool in turns that the program answered.
struct ToolCount {
  int64_t calls = 0;
  int64_t failed = 0;  // as the program says
  ToolCount& operator+=(const ToolCount& other);
};

struct Counters {
  int64_t requests = 0;         // resets and steps
  int64_t retries = 0;          // requests that were asked again
  int64_t restarts = 0;         // of processes that failed or were late
  int64_t malformed_calls = 0;  // answered turns with a call that is none
  int64_t broken = 0;           // episodes
  double wait_seconds = 0;      // of all episodes together, for their answers
  // Of environment.tools, then of all other names; empty: there were no calls.
  std::vector<ToolCount> tools;
  static constexpr auto fields = std::tuple{
      &Counters::requests, &Counters::retries,      &Counters::restarts, &Counters::malformed_calls,
      &Counters::broken,   &Counters::wait_seconds, &Counters::tools};
  Counters& operator+=(const Counters& other);
};

// The programs of one generator rank. One thread uses it, and no call waits. Throws UserErrors like
// reward plugins, if environment.outage says so: unfit_environment for a program that has ended,
// bad_data for invalid answers.
class Environments {
 public:
  // Starts the programs: before any device is touched. Messages of the programs go to
  // environment-<rank>.log in `log_dir`; empty: kept for errors only.
  Environments(const config::Options& options, const std::filesystem::path& log_dir, int rank);
  virtual ~Environments();

  virtual void reset(const Reset& reset);
  virtual void step(const Step& step);  // of an episode whose last reply is there and not done
  // Abandons an episode, with or without a request in flight; its id may be used again.
  virtual void close(uint64_t episode);
  // Sends and receives without waiting, and restarts processes that are late or have ended. Returns
  // the new replies in the order of arrival.
  virtual std::vector<Reply> poll();
  virtual int64_t pending() const;  // episodes whose answer is awaited
  Counters take_counters();         // of the time since the last call

 protected:
  Environments();  // without programs: another kind answers

 private:
  class Episodes;
  std::unique_ptr<Episodes> episodes_;
};

// Compiles environment.tool_pattern. Throws UserError(configuration). Local.
void check_environment(const config::Options& options);
// Starts the program once and plays the first record of every data file up to an empty turn, within
// environment.timeout. Returns a line with the answer to each. Local. Throws the UserErrors of a
// run.
std::vector<std::string> try_environment(const config::Options& options,
                                         std::span<const data::PromptSet* const> sets);

}  // namespace trireme::environment
