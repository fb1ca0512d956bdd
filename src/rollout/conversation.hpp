// The text of an episode. What the policy writes stays as it was sampled; what the environment says
// is added as the difference that it makes to the chat template's text (F50).
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

  // All that follows throws UserError(bad_data) where the observation cannot be a part of the text:
  // messages after a plain prompt, or those that the chat template refuses.

  // The tokens of the prompt and of what the environment says before the first turn, if it does.
  std::vector<text::TokenId> open(Messages messages, const std::string& text);
  // The policy has written a turn; its text, without the token that ended it.
  std::string add_turn(std::span<const text::TokenId> ids, FinishReason reason);
  // The tokens of what the environment says to the last turn, and of the next turn's opening:
  // the template's text with the observation from after the token that ends the last turn there.
  // Earlier turns may be rendered in another way than without the observation.
  std::vector<text::TokenId> observe(Messages messages, const std::string& text);
  // Whether `ids`, which end with the last turn's end token, are those that the template gives of
  // the whole conversation. Also true where it cannot say: no template, or texts that it did not
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
