// Which replica writes the answers to which prompt. Arithmetic only: ranks that have the same
// numbers come to the same result without a message. Answers do not depend on it (engine.hpp), only
// how long the slowest replica takes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trireme::generate {

// How long answers were, for each row of the prompt set and for all; the latest count
// most.
class AnswerLengths {
 public:
  // So many answers to the prompt of `row` have so many tokens together.
  void add(int64_t row, int64_t answers, int64_t tokens);
  // Tokens that an answer is expected to have, at least 1: the mean of its prompt's answers, of all
  // answers to a prompt that was not answered yet.
  int64_t expected(int64_t row) const;
  // The same for prompts of another set.
  int64_t expected() const { return all_.mean(); }

  // In the order of the rows. from_bytes throws UserError(bad_data).
  std::string to_bytes() const;
  static AnswerLengths from_bytes(std::string_view bytes);

 private:
  struct Sum {
    int64_t answers = 0;
    int64_t tokens = 0;
    void add(int64_t more_answers, int64_t more_tokens, int64_t memory);
    int64_t mean() const;
  };
  struct Row {
    int64_t row = 0;
    Sum sum;
  };

  Sum all_;
  std::unordered_map<int64_t, Sum> rows_;
};

// Tokens that a prompt takes: its own, and those of all its answers together as far as they are
// expected.
struct PromptWork {
  static constexpr int32_t anywhere = -1;

  int64_t prompt = 0;
  int64_t answers = 0;
  int32_t replica = anywhere;  // where it has to go
};

struct Assignment {
  std::vector<int32_t> replica;  // of each prompt
  std::vector<size_t>
      order;  // the prompts, longest answers first: replicas begin theirs in this order
};

// Each prompt to the replica with the fewest outstanding tokens, longest answers first; of equals
// the earlier prompt and the lower replica. `outstanding`: tokens that each replica has to write
// already.
Assignment assign(std::span<const PromptWork> prompts, std::span<const int64_t> outstanding);

}  // namespace trireme::generate
