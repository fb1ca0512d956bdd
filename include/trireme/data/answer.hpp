// A prompt and its answer as one sequence of tokens: what `rm` and `dpo` learn from, and what a
// reward model and `score` read. All of them call these functions, so that a model is asked about
// sequences like those that it was trained on. Local; nothing here is collective.
//
// An answer that came to its end has one end token: after a plain prompt the tokenizer's
// eos_token, in a chat the last end token (Tokenizer::eos_ids) that the chat template writes.
// Text that a template writes after it (a newline) is never generated, nor read. An answer that was
// cut at a length limit has no end token.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/text/tokenizer.hpp"

namespace trireme::data {

// Remarks on records that are used.
enum class Remark : uint8_t {
  special_tokens,   // a text begins or ends with the tokenizer's special tokens
  continued,        // a prompt ends in a turn of the assistant, which answers continue
  shorter_opening,  // the finished turn does not begin with the generation prompt
  shortened_answer  // the chat template leaves out a part of an answer
};
inline constexpr size_t remark_kinds = 4;
using Remarks = uint8_t;  // a bit each
constexpr Remarks bit(Remark remark) {
  return static_cast<Remarks>(1U << static_cast<unsigned>(remark));
}

// A prompt, encoded as a rollout begins with it.
struct Prompt {
  std::vector<text::Message> messages;  // empty: plain text
  std::string variables;                // of messages: JSON object for the chat template, or ""
  std::string text;  // to encode; of messages the rendered text with the generation prompt
  std::vector<text::TokenId> ids;
  Remarks remarks = 0;
};
Prompt encode_prompt(const text::Tokenizer& tokenizer, std::string text,
                     text::SpecialTokens special = text::SpecialTokens::once);
// How a prompt ends that is to be answered: a last turn of the assistant is continued, after any
// other one the assistant's turn is opened (as TRL does).
text::GenerationPrompt opening_after(std::span<const text::Message> prompt);
// Throw UserError(bad_data) where the tokenizer has no chat template or the template refuses.
std::string render_prompt(const text::Tokenizer& tokenizer, std::span<const text::Message> messages,
                          const std::string& variables = "");
Prompt encode_prompt(const text::Tokenizer& tokenizer, std::vector<text::Message> messages,
                     std::string variables = "");

enum class AnswerEnd { ended, cut };

// The ids of a prompt and its answer.
struct AnsweredPrompt {
  std::vector<text::TokenId> ids;
  int64_t prompt_length = 0;  // tokens of the prompt at the start
};

// A plain prompt. An answer that ends with the end token's text does not get a second one. Throws
// UserError(bad_data) for an ended answer where the tokenizer has no eos_token.
AnsweredPrompt answer_text(const text::Tokenizer& tokenizer, const Prompt& prompt,
                           std::string_view response, AnswerEnd end);

// The conversation with the answer's turns. An answer to a prompt that ends in an assistant's turn
// continues that turn.
std::vector<text::Message> with_answer(std::vector<text::Message> messages,
                                       std::span<const text::Message> answer);
// The text of a chat with its answer, as the template renders it.
std::string render_answered(const text::Tokenizer& tokenizer,
                            std::span<const text::Message> messages,
                            std::span<const text::Message> answer,
                            const std::string& variables = "");
// The same without what the template writes after the answer's text; nullopt: it writes another
// text in its place.
std::optional<std::string> render_cut(const text::Tokenizer& tokenizer,
                                      std::span<const text::Message> messages,
                                      const text::Message& answer,
                                      const std::string& variables = "");
// Bytes of a chat with the answer, rendered, before what the policy writes: its prompt's text, or
// as much of it as the finished turn begins with. A template whose generation prompt opens a
// thought (DeepSeek R1's "<think>") may write finished turns without it; as in TRL, learning begins
// where the two part. nullopt: earlier turns are rendered differently once an answer follows. Of
// `prompt` messages, variables and text are read.
std::optional<size_t> opening_length(const text::Tokenizer& tokenizer, const Prompt& prompt,
                                     std::string_view rendered);
// Of that text: the ids, ended. nullopt as above.
std::optional<AnsweredPrompt> answer_chat(const text::Tokenizer& tokenizer, const Prompt& prompt,
                                          std::string_view rendered);
// Ids up to the last end token from `first` on, and of several in a row the first, where a rollout
// stops; all ids where there is none.
std::vector<text::TokenId> until_end(const text::Tokenizer& tokenizer,
                                     std::vector<text::TokenId> ids, size_t first);

bool is_end_token(const text::Tokenizer& tokenizer, text::TokenId id);
// The tokenizer's eos; throws UserError(bad_data) when it has none.
text::TokenId required_eos(const text::Tokenizer& tokenizer);

}  // namespace trireme::data
