// The lines of an environment: requests without their number, and what answers mean.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "environment/tool_calls.hpp"
#include "trireme/environment/environments.hpp"
#include "trireme/plugin/answers.hpp"

namespace trireme::environment {

// The members of a request after its id, with the brace that ends it.
std::string reset_text(const Reset& reset, int64_t max_turns);
std::string step_text(const Step& step, const ToolCalls* calls);  // null: calls are not looked for
std::string close_text(uint64_t episode);
// A whole line.
std::string line_of(uint64_t id, const std::string& text);

// Whether the program means the line as an answer; else it has printed it.
bool looks_like_answer(std::string_view line);

// Reads the answers of the programs.
class AnswerReader {
 public:
  struct Answer {
    Reply reply;                 // without episode and turn
    size_t digest = 0;           // of all that it says; equal answers have equal ones
    std::vector<size_t> failed;  // positions of calls
  };
  struct Asked {
    std::string where;   // the request in words
    bool reset = false;  // false: it was a turn
    bool chat = false;   // the prompt is a conversation
    size_t calls = 0;    // that the turn has
  };

  // `who`: the program, for messages.
  explicit AnswerReader(const std::string& who) : who_(who), metrics_(who) {}
  // Throws UserError(bad_data) for an answer that makes no sense.
  Answer read(std::string_view line, const Asked& asked);

 private:
  std::string who_;
  plugin::MetricReader metrics_;
};

}  // namespace trireme::environment
