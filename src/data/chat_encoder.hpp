// A conversation in tokens, with the answers in it that are learned from.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "data/record.hpp"

namespace trireme::data {

struct EncodedChat {
  std::vector<text::TokenId> ids;
  std::vector<uint8_t> mask;  // same length; 1: an assistant's turn, up to the token that ends it
  Remarks remarks = 0;
};

// Renders a conversation turn by turn: what turn i adds is its rendering beyond the one before. The
// parts are encoded one by one, so that the ids before an answer are those of a rollout.
class ChatEncoder {
 public:
  // The turns of the assistant in `answer` are learned from, not those in `prompt`. A turn of the
  // assistant that ends the prompt is continued. Throws UserError(bad_data) when the answer has
  // no turn of the assistant, here as in encode() when the template does not render the turns one
  // after the other.
  ChatEncoder(const Record& record, const text::Tokenizer& tokenizer,
              const std::vector<text::Message>& prompt, std::span<const text::Message> answer,
              std::string variables);

  // Bytes of the rendered text before the first turn that is learned from (opening_length()).
  size_t prompt_bytes() const { return turns_.front().opening; }
  // `prompt_bytes`: at most the number above, where two answers share a prompt.
  EncodedChat encode(size_t prompt_bytes) const;

 private:
  struct Turn {
    size_t message = 0;
    std::string before;  // rendered, with the opening of the turn
    std::string after;   // rendered, with the turn
    size_t opening = 0;  // bytes of `after` before what is learned
  };
  void add_turn(size_t message, std::vector<text::Message> before);
  [[noreturn]] void fail_at(size_t message) const;
  bool has_whole_answer(const Turn& turn, size_t begin) const;

  const Record& record_;
  const text::Tokenizer& tokenizer_;
  std::string variables_;
  std::vector<text::Message> messages_;
  std::vector<Turn> turns_;
};

}  // namespace trireme::data
