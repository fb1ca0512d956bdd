// The text of an episode. The policy's tokens stay as they were sampled; an observation is added as
// the difference that it makes to the chat template's text (F50).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::rollout {

class Conversation {
 public:
  using Messages = std::span<const text::Message>;

  // Keeps references. `end_ids`: tokens that end a turn of the policy. `where`: the prompt, for
  // messages of errors.
  Conversation(const text::Tokenizer& tokenizer, const std::vector<int32_t>& end_ids,
               const data::PromptRecord& prompt, std::string where);

  // The following throw UserError(bad_data) if the observation cannot be a part of the text:
  // messages after a plain prompt, or messages that the chat template refuses.

  // The tokens of the prompt and of the environment's observation after the reset, if any.
  std::vector<text::TokenId> open(Messages messages, const std::string& text);
  // The policy has written a turn; its text, without the token that ended it.
  std::string add_turn(std::span<const text::TokenId> ids, FinishReason reason);
  // The tokens of the observation after the last turn and of the next turn's opening: the text of
  // the template with the observation, from after the token that ends the last turn. The template
  // may render earlier turns differently with an observation after them.
  std::vector<text::TokenId> observe(Messages messages, const std::string& text);
  // Whether the template renders the whole conversation to `ids`, which end with the last turn's
  // end token. Also true if that is unknown: without a template, or with texts that it did not
  // render.
  bool is_rendered_alike(std::span<const text::TokenId> ids) const;

 private:
  struct Mark {  // an end token in a rendered text
    size_t begin, end;
  };
  std::vector<Mark> end_tokens(const std::string& rendered) const;
  std::string render(text::GenerationPrompt prompt) const;
  std::string suffix_of(Messages observation);
  void require_template(Messages messages) const;

  const text::Tokenizer* tokenizer_;
  const std::vector<int32_t>* end_ids_;
  const data::PromptRecord* prompt_;
  std::string where_;
  std::vector<text::Message> messages_;
  FinishReason last_ = FinishReason::stop;  // of the last turn
  bool rendered_ = true;                    // all observations are messages
};

}  // namespace trireme::rollout
