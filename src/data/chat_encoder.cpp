#include "data/chat_encoder.hpp"

#include <algorithm>

#include "trireme/base/error.hpp"
#include "trireme/data/messages.hpp"

namespace trireme::data {
namespace {

std::string without_space(std::string_view text) {
  std::string out;
  std::ranges::copy_if(text, std::back_inserter(out),
                       [](char c) { return static_cast<uint8_t>(c) > ' '; });
  return out;
}

// An answer up to and including the token that ends it is learned.
void add_answer(EncodedChat& chat, const std::vector<text::TokenId>& ids,
                const text::Tokenizer& tokenizer) {
  append(chat.ids, ids);
  chat.mask.resize(chat.mask.size() + until_end(tokenizer, ids, 0).size(), 1);
  chat.mask.resize(chat.ids.size(), 0);
}

}  // namespace

ChatEncoder::ChatEncoder(const Record& record, const text::Tokenizer& tokenizer,
                         const std::vector<text::Message>& prompt,
                         std::span<const text::Message> answer, std::string variables)
    : record_(record),
      tokenizer_(tokenizer),
      variables_(std::move(variables)),
      messages_(with_answer(prompt, answer)) {
  const bool continues = messages_.size() < prompt.size() + answer.size();
  try {
    for (size_t i = prompt.size() - continues; i < messages_.size(); ++i) {
      const bool rest = continues && i + 1 == prompt.size();
      if (messages_[i].role != "assistant") continue;
      if (!is_learned(rest ? answer.front() : messages_[i], record.where())) continue;
      add_turn(i, rest ? prompt
                       : std::vector<text::Message>(messages_.begin(),
                                                    messages_.begin() + static_cast<int64_t>(i)));
    }
  } catch (const UserError& error) {
    const std::string what = error.what();
    if (what.starts_with(record.where())) throw;
    throw UserError(error.code(), record.where() + ": " + what);
  }
  if (turns_.empty()) record.fail("the conversation has no assistant turn to learn from: add one");
}

void ChatEncoder::add_turn(size_t message, std::vector<text::Message> before) {
  Prompt prompt;
  prompt.text = before.empty()
                    ? tokenizer_.render_chat(before, text::GenerationPrompt::with, variables_)
                    : render_prompt(tokenizer_, before, variables_);
  prompt.messages = std::move(before);
  prompt.variables = variables_;
  Turn turn{message, prompt.text,
            tokenizer_.render_chat(std::span(messages_).first(message + 1),
                                   text::GenerationPrompt::without, variables_)};
  const auto opening = opening_length(tokenizer_, prompt, turn.after);
  if (!opening) fail_at(message);
  turn.opening = *opening;
  turns_.push_back(std::move(turn));
}

void ChatEncoder::fail_at(size_t message) const {
  record_.fail(base::text("the chat template renders earlier turns differently once message ",
                          message,
                          " follows: the loss mask would be wrong; split the conversation into one "
                          "record per response"));
}

bool ChatEncoder::has_whole_answer(const Turn& turn, size_t begin) const {
  const std::string answer = without_space(text::content_text(messages_[turn.message]));
  return without_space(std::string_view(turn.after).substr(begin)).find(answer) !=
         std::string::npos;
}

EncodedChat ChatEncoder::encode(size_t prompt_bytes) const {
  EncodedChat chat;
  std::string done;  // rendered, and encoded
  for (size_t i = 0; i < turns_.size(); ++i) {
    const Turn& turn = turns_[i];
    const size_t begin = i == 0 ? prompt_bytes : turn.opening;
    if (begin < done.size() || !turn.after.starts_with(done)) fail_at(turn.message);
    if (begin < turn.before.size()) chat.remarks |= bit(Remark::shorter_opening);
    if (!has_whole_answer(turn, done.size())) chat.remarks |= bit(Remark::shortened_answer);
    append(chat.ids, tokenizer_.encode(turn.after.substr(done.size(), begin - done.size())));
    chat.mask.resize(chat.ids.size(), 0);
    add_answer(chat, tokenizer_.encode(turn.after.substr(begin)), tokenizer_);
    done = turn.after;
  }
  return chat;
}

}  // namespace trireme::data
