// One input line of `score`: a text, token ids, or a prompt with its answer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/data/answer.hpp"
#include "trireme/data/prompt_set.hpp"

namespace trireme::data {

// The tokens that a language model reads.
struct ScoredTokens {
  std::vector<text::TokenId> ids;
  int64_t first = 1;       // the first token whose log-prob is asked for
  std::string prompt;      // the text of the prompt, rendered; empty without an answer
  int64_t prompt_len = 0;  // its tokens; 0 where they cannot be told from the answer's
};

// Exactly one of these:
//   `text`                    as it stands
//   `input_ids` or `ids`      as they stand
//   `prompt`, `response`      the response's log-probs, given the prompt
//   `messages`, `response`    the same; the response is the assistant's next turn
//   `messages`                a chat that ends with the assistant's turn: log-probs of all tokens
// An answer is read as answer.hpp says, ended unless `finish_reason` is "length".
struct ScoreInput {
  std::string where;  // "file:line"
  // Without an answer.
  std::optional<std::string> text;
  std::optional<std::vector<text::TokenId>> ids;
  // The prompt's turns, or its text; and the answer.
  std::vector<text::Message> messages;
  std::string variables;  // of messages: JSON object for the chat template, or ""
  std::string prompt;
  std::optional<text::Message> answer;
  bool whole_chat = false;  // the answer was the last of `messages`
  FinishReason finish_reason = FinishReason::stop;

  // Throws UserError(bad_data) with `where`.
  ScoredTokens tokens(const text::Tokenizer& tokenizer,
                      text::SpecialTokens special = text::SpecialTokens::once) const;
};

// Throws UserError(bad_data) with file:line for a combination of fields that is none of the above.
std::vector<ScoreInput> read_score_inputs(const std::filesystem::path& file);

}  // namespace trireme::data
