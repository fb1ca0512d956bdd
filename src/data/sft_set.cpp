#include <algorithm>

#include "data/read_together.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

void extend(SftExample& example, const std::vector<text::TokenId>& ids, uint8_t mask) {
  append(example.ids, ids);
  example.loss_mask.resize(example.ids.size(), mask);
}

// The target of an assistant's turn: up to and including the token that ends it. What templates put
// behind (a newline) is never generated.
void extend_turn(SftExample& example, const std::vector<text::TokenId>& ids,
                 const text::Tokenizer& tokenizer) {
  const auto eos_ids = tokenizer.eos_ids();
  const auto ends = [&](text::TokenId id) {
    return std::find(eos_ids.begin(), eos_ids.end(), id) != eos_ids.end();
  };
  const auto eos = std::find_if(ids.begin(), ids.end(), ends);
  const auto behind = eos == ids.end() ? eos : eos + 1;
  extend(example, {ids.begin(), behind}, 1);
  extend(example, {behind, ids.end()}, 0);
}

// Renders the conversation turn by turn: the text that turn i adds is what its rendering has beyond
// the one up to the assistant's opening. The parts are encoded one by one, so that the ids in front
// of a response are those of a rollout.
class Conversation {
 public:
  Conversation(const Record& record, const text::Tokenizer& tokenizer)
      : record_(record), tokenizer_(tokenizer) {}

  void encode(const std::vector<text::Message>& messages, SftExample& example) {
    bool any = false;
    for (size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].role != "assistant") continue;
      any = true;
      const std::span<const text::Message> all(messages);
      extend(example, tokenizer_.encode(advance(all.first(i), text::GenerationPrompt::with, i)), 0);
      extend_turn(example,
                  tokenizer_.encode(advance(all.first(i + 1), text::GenerationPrompt::without, i)),
                  tokenizer_);
    }
    if (!any) record_.fail("the conversation has no assistant turn to learn from: add one");
  }

 private:
  // The text beyond what was rendered so far.
  std::string advance(std::span<const text::Message> messages, text::GenerationPrompt prompt,
                      size_t turn) {
    const std::string text = tokenizer_.render_chat(messages, prompt);
    if (!text.starts_with(done_)) {
      record_.fail(base::text("the chat template renders earlier turns differently once message ",
                              turn,
                              " follows: the loss mask would be wrong; split the conversation into "
                              "one record per response"));
    }
    std::string added = text.substr(done_.size());
    done_ = text;
    return added;
  }

  const Record& record_;
  const text::Tokenizer& tokenizer_;
  std::string done_;
};

SftExample read_example(const Record& record, const SetOptions& options,
                        const text::Tokenizer& tokenizer) {
  SftExample example;
  Conversation conversation(record, tokenizer);
  if (record.find(options.keys.messages) != nullptr) {
    conversation.encode(with_system(record.messages(options.keys.messages), options), example);
    return example;
  }
  if (record.find(options.keys.prompt) == nullptr && record.find(options.keys.text) != nullptr) {
    extend(example, tokenizer.encode(record.text(options.keys.text), text::SpecialTokens::added),
           1);
    return example;
  }
  const std::string response = record.text(options.keys.response);
  if (options.prompt_form == PromptForm::user_turn) {
    conversation.encode(
        with_system({{"user", record.text(options.keys.prompt), ""}, {"assistant", response, ""}},
                    options),
        example);
    return example;
  }
  extend(example, tokenizer.encode(record.text(options.keys.prompt), text::SpecialTokens::added),
         0);
  std::vector<text::TokenId> answer = tokenizer.encode(response);
  const text::TokenId eos = required_eos(tokenizer);
  if (answer.empty() || answer.back() != eos) answer.push_back(eos);
  extend(example, answer, 1);
  return example;
}

}  // namespace

SftSet SftSet::load(const SetOptions& options, const text::Tokenizer& tokenizer,
                    const EncodingTeam& team) {
  SftSet set;
  Admission admission(options, set.counts_);
  const auto encode = [&](const Record& record) {
    return read_example(record, options, tokenizer);
  };
  read_together<SftExample>(options, set.counts_, team, encode,
                            [&](const Record& record, Origin origin, SftExample example) {
                              example.origin = origin;
                              if (!admission.admit(record, example.ids.size(), "sequence"))
                                return false;
                              set.examples_.push_back(std::move(example));
                              return true;
                            });
  return set;
}

}  // namespace trireme::data
