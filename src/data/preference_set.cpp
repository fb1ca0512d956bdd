#include <algorithm>
#include <optional>
#include <tuple>

#include "data/chat_encoder.hpp"
#include "data/read_together.hpp"

namespace trireme::data {

namespace {

using Messages = std::vector<text::Message>;

class PairReader {
 public:
  PairReader(const Record& record, const SetOptions& options, const text::Tokenizer& tokenizer)
      : record_(record), options_(options), keys_(options.keys), tokenizer_(tokenizer) {}

  PreferencePair read() {
    PreferencePair pair;
    const bool has_pair =
        record_.find(keys_.chosen) != nullptr || record_.find(keys_.rejected) != nullptr;
    if (!has_pair && record_.find(keys_.completion) != nullptr)
      record_.fail("`" + keys_.completion + "` without `" + keys_.chosen + "` and `" +
                   keys_.rejected +
                   "` (this is a single answer, and pairs are learned from): give both answers, or "
                   "take algo.dpo.loss = \"kto\" or \"apo_zero_unpaired\"");
    if (!read_whole_chats(pair)) read_answers(pair);
    pair.margin = record_.number(keys_.margin).value_or(0);
    return pair;
  }

 private:
  // A chat, the prompt's turns among it; none: the column holds something else.
  std::optional<Messages> whole_chat(const std::string& key) const {
    if (record_.has_turns(key)) {
      Messages turns = record_.messages(key);
      return turns.front().role == "assistant" ? std::nullopt : std::optional(std::move(turns));
    }
    const text::OrderedJson* value = record_.find(key);
    const bool text = value != nullptr && value->is_string();
    const bool alone = chat_column(record_, keys_).empty() && record_.find(keys_.prompt) == nullptr;
    if (!text || !alone || !is_dialogue(value->get<std::string>())) return std::nullopt;
    Messages turns = read_dialogue(value->get<std::string>());
    while (turns.size() > 1 && turns.back().role != "assistant") turns.pop_back();  // a last remark
    return turns;
  }

  // Where both sides are whole chats, their common beginning is the prompt.
  bool read_whole_chats(PreferencePair& pair) {
    auto chosen = whole_chat(keys_.chosen), rejected = whole_chat(keys_.rejected);
    if (!chosen || !rejected) return false;
    const auto common =
        static_cast<size_t>(std::ranges::mismatch(*chosen, *rejected).in1 - chosen->begin());
    size_t prompt = std::min({common, chosen->size() - 1, rejected->size() - 1});
    // Where they part in a turn of the user, the assistant's turn before it is part of the answers.
    const auto is_answer = [](const text::Message& turn) { return turn.role == "assistant"; };
    while (prompt > 0 && !(is_answer((*chosen)[prompt]) && is_answer((*rejected)[prompt])))
      --prompt;
    Messages context(chosen->begin(), chosen->begin() + static_cast<int64_t>(prompt));
    chosen->erase(chosen->begin(), chosen->begin() + static_cast<int64_t>(prompt));
    rejected->erase(rejected->begin(), rejected->begin() + static_cast<int64_t>(prompt));
    if (prompt == 0) {
      record_.fail("`" + keys_.chosen + "` and `" + keys_.rejected +
                   "` are whole chats without a common prompt (turns before one of the assistant): "
                   "correct or remove the record");
    }
    if (tokenizer_.has_chat_template() || record_.has_turns(keys_.chosen)) {
      encode(with_system(std::move(context), options_), *chosen, *rejected, record_.variables(),
             pair);
    } else {
      encode_dialogue(pair);
    }
    return true;
  }

  // Answers to the record's prompt.
  void read_answers(PreferencePair& pair) {
    const bool whole = record_.has_turns(keys_.chosen) && whole_chat(keys_.chosen);
    if (whole != (record_.has_turns(keys_.rejected) && whole_chat(keys_.rejected)))
      record_.fail("one of `" + keys_.chosen + "` and `" + keys_.rejected +
                   "` is a whole chat and the other is not: give both in one form");
    const Prompt prompt = parse_prompt(record_, options_);
    for (const std::string& key : {keys_.chosen, keys_.rejected}) {
      if (prompt.messages.empty() && record_.has_turns(key))
        record_.fail("`" + key +
                     "` is a list of messages, but the prompt is a text: give both in one form");
    }
    if (!prompt.messages.empty())
      return encode(prompt.messages, answer(keys_.chosen), answer(keys_.rejected), prompt.variables,
                    pair);
    encode_texts(encode_prompt(tokenizer_, prompt.text, options_.special_tokens),
                 record_.text(keys_.chosen), record_.text(keys_.rejected), pair);
  }

  Messages answer(const std::string& key) const {
    return record_.has_turns(key) ? record_.messages(key)
                                  : Messages{{"assistant", record_.text(key), ""}};
  }

  void encode(const Messages& prompt, const Messages& chosen, const Messages& rejected,
              const std::string& variables, PreferencePair& pair) {
    require_answer(chosen, keys_.chosen);
    require_answer(rejected, keys_.rejected);
    const ChatEncoder a(record_, tokenizer_, prompt, chosen, variables),
        b(record_, tokenizer_, prompt, rejected, variables);
    const size_t bytes = std::min(a.prompt_bytes(), b.prompt_bytes());
    for (const auto& [encoder, ids, mask] : {std::tuple{&a, &pair.chosen, &pair.chosen_mask},
                                             std::tuple{&b, &pair.rejected, &pair.rejected_mask}}) {
      EncodedChat chat = encoder->encode(bytes);
      // The last token that a rollout has is the one that ends the turn; the reward is read there.
      const auto last = std::find(chat.mask.rbegin(), chat.mask.rend(), 1).base();
      chat.ids.resize(static_cast<size_t>(last - chat.mask.begin()));
      chat.mask.resize(chat.ids.size());
      *ids = std::move(chat.ids);
      *mask = std::move(chat.mask);
      pair.remarks |= chat.remarks;
    }
    const auto answer = std::find(pair.chosen_mask.begin(), pair.chosen_mask.end(), 1);
    if (!pair.rejected.empty())  // else nothing is to be learned
      pair.prompt_length = static_cast<int32_t>(answer - pair.chosen_mask.begin());
  }

  void require_answer(const Messages& turns, const std::string& key) const {
    for (const text::Message& turn : {turns.front(), turns.back()}) {
      if (turn.role != "assistant")
        record_.fail("`" + key + "` begins or ends with a turn of \"" + turn.role +
                     "\", expected assistant: correct it");
    }
  }

  void encode_texts(const Prompt& prompt, const std::string& chosen, const std::string& rejected,
                    PreferencePair& pair) {
    for (const auto& [text, ids, mask] :
         {std::tuple{&chosen, &pair.chosen, &pair.chosen_mask},
          std::tuple{&rejected, &pair.rejected, &pair.rejected_mask}}) {
      *ids = answer_text(tokenizer_, prompt, *text, AnswerEnd::ended).ids;
      mask->assign(prompt.ids.size(), 0);
      mask->resize(ids->size(), 1);
    }
    pair.prompt_length = static_cast<int32_t>(prompt.ids.size());
    pair.remarks = prompt.remarks;
  }

  // Anthropic HH for a model without a chat template: the texts as they are, up to the last turn.
  void encode_dialogue(PreferencePair& pair) {
    const std::string chosen = record_.text(keys_.chosen), rejected = record_.text(keys_.rejected);
    const size_t prompt = end_of_dialogue_prompt(chosen);
    if (prompt != end_of_dialogue_prompt(rejected) ||
        chosen.compare(0, prompt, rejected, 0, prompt) != 0) {
      record_.fail(
          "`" + keys_.chosen + "` and `" + keys_.rejected +
          "` differ before the last turn, which needs a model with a chat template: remove "
          "the record");
    }
    encode_texts(encode_prompt(tokenizer_, chosen.substr(0, prompt), options_.special_tokens),
                 chosen.substr(prompt), rejected.substr(prompt), pair);
  }

  const Record& record_;
  const SetOptions& options_;
  const RecordKeys& keys_;
  const text::Tokenizer& tokenizer_;
};

}  // namespace

PreferenceSet PreferenceSet::load(const SetOptions& options, const text::Tokenizer& tokenizer,
                                  const EncodingTeam& team) {
  PreferenceSet set;
  Admission admission(options, set.counts_);
  const auto encode = [&](const Record& record) {
    return PairReader(record, options, tokenizer).read();
  };
  read_together<PreferencePair>(options, set.counts_, team, encode,
                                [&](const Record& record, Origin origin, PreferencePair pair) {
                                  pair.origin = origin;
                                  const size_t longest =
                                      std::max(pair.chosen.size(), pair.rejected.size());
                                  if (!admission.admit(record, pair.prompt_length > 0 ? longest : 0,
                                                       "sequence", pair.remarks))
                                    return false;
                                  set.pairs_.push_back(std::move(pair));
                                  return true;
                                });
  return set;
}

}  // namespace trireme::data
