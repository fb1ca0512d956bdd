#include <algorithm>

#include "data/chat_encoder.hpp"
#include "data/read_together.hpp"

namespace trireme::data {

namespace {

SftExample example_of(const ChatEncoder& encoder) {
  EncodedChat chat = encoder.encode(encoder.prompt_bytes());
  SftExample example;
  example.ids = std::move(chat.ids);
  example.loss_mask = std::move(chat.mask);
  example.remarks = chat.remarks;
  return example;
}

// Every turn of the assistant is learned from.
SftExample read_conversation(const Record& record, std::vector<text::Message> messages,
                             const SetOptions& options, const text::Tokenizer& tokenizer) {
  messages = with_system(std::move(messages), options);
  return example_of(ChatEncoder(record, tokenizer, {}, messages, record.variables()));
}

// The turns of the column `answer` are learned from.
SftExample read_answer(const Record& record, const std::vector<text::Message>& prompt,
                       const std::string& answer, const text::Tokenizer& tokenizer) {
  const auto turns = record.has_turns(answer)
                         ? record.messages(answer)
                         : std::vector<text::Message>{{"assistant", record.text(answer), ""}};
  return example_of(ChatEncoder(record, tokenizer, prompt, turns, record.variables()));
}

// A text and the answer to it, with the tokens of the post-processor and an end.
SftExample read_texts(const Record& record, const std::string& answer, const SetOptions& options,
                      const text::Tokenizer& tokenizer) {
  const Prompt prompt =
      encode_prompt(tokenizer, record.text(options.keys.prompt), options.special_tokens);
  SftExample example;
  example.ids = answer_text(tokenizer, prompt, record.text(answer), AnswerEnd::ended).ids;
  example.loss_mask.assign(prompt.ids.size(), 0);
  example.loss_mask.resize(example.ids.size(), 1);
  example.remarks = prompt.remarks;
  return example;
}

SftExample read_example(const Record& record, const SetOptions& options,
                        const text::Tokenizer& tokenizer) {
  const RecordKeys& keys = options.keys;
  const bool response = record.find(keys.response) != nullptr;
  const bool answered = response || record.find(keys.completion) != nullptr;
  const std::string& answer = response || !answered ? keys.response : keys.completion;
  const bool apart = keys.messages != keys.prompt && record.find(keys.messages) != nullptr;
  if (const std::string column = apart ? keys.messages : chat_column(record, keys);
      !column.empty()) {
    auto chat = apart ? record.messages(column) : read_chat(record, keys);
    const bool complete = column != keys.prompt && chat.back().role == "assistant";
    if (complete || !answered)
      return read_conversation(record, std::move(chat), options, tokenizer);
    return read_answer(record, with_system(std::move(chat), options), answer, tokenizer);
  }
  if (record.find(keys.prompt) == nullptr && record.find(keys.text) != nullptr) {
    Prompt text = encode_prompt(tokenizer, record.text(keys.text), options.special_tokens);
    SftExample example;
    example.ids = std::move(text.ids);
    example.loss_mask.assign(example.ids.size(), 1);
    example.remarks = text.remarks;
    return example;
  }
  const Prompt prompt = parse_prompt(record, options);
  if (prompt.messages.empty()) return read_texts(record, answer, options, tokenizer);
  return read_answer(record, prompt.messages, answer, tokenizer);
}

}  // namespace

SftSet SftSet::load(const SetOptions& options, const text::Tokenizer& tokenizer,
                    const EncodingTeam& team) {
  SftSet set;
  Admission admission(options, set.counts_);
  const auto encode = [&](const Record& record) {
    return read_example(record, options, tokenizer);
  };
  read_together<SftExample>(
      options, set.counts_, team, encode,
      [&](const Record& record, Origin origin, SftExample example) {
        example.origin = origin;
        // Without a token to learn it is as empty: a template may leave out answers.
        const bool learned = std::ranges::count(example.loss_mask, 1) > 0;
        if (!admission.admit(record, learned ? example.ids.size() : 0, "sequence", example.remarks))
          return false;
        set.examples_.push_back(std::move(example));
        return true;
      });
  return set;
}

}  // namespace trireme::data
