#include <algorithm>

#include "data/chat_encoder.hpp"
#include "data/read_together.hpp"

namespace trireme::data {

namespace {

void require_columns(const Record& record, const RecordKeys& keys) {
  for (const std::string& key : {keys.chosen, keys.rejected}) {
    if (record.find(key) != nullptr && record.find(keys.completion) == nullptr)
      record.fail("`" + key +
                  "` is a column of pairs, and algo.dpo.loss learns from single answers: "
                  "give `" +
                  keys.prompt + "`, `" + keys.completion + "` and `" + keys.label +
                  "` (true or false), or take a loss on pairs");
  }
}

bool read_label(const Record& record, const std::string& key) {
  const text::OrderedJson* value = record.find(key);
  if (value == nullptr)
    record.fail("no `" + key +
                "` (true: a wanted answer, false: an unwanted one): add it, or name "
                "the right key in data.label_key");
  if (!value->is_boolean())
    record.fail("`" + key + "` is " + text::kind_of(*value) +
                ", expected true or false: correct it");
  return value->get<bool>();
}

LabelledAnswer read_labelled(const Record& record, const SetOptions& options,
                             const text::Tokenizer& tokenizer) {
  const RecordKeys& keys = options.keys;
  require_columns(record, keys);
  LabelledAnswer out;
  out.wanted = read_label(record, keys.label);
  const Prompt prompt = parse_prompt(record, options);
  if (prompt.messages.empty()) {
    if (record.has_turns(keys.completion))
      record.fail("`" + keys.completion +
                  "` is a list of messages, but the prompt is a text: give both in one form");
    const Prompt encoded = encode_prompt(tokenizer, prompt.text, options.special_tokens);
    out.ids = answer_text(tokenizer, encoded, record.text(keys.completion), AnswerEnd::ended).ids;
    out.mask.assign(encoded.ids.size(), 0);
    out.mask.resize(out.ids.size(), 1);
    out.prompt_length = static_cast<int32_t>(encoded.ids.size());
    out.remarks = encoded.remarks;
    return out;
  }
  const auto answer =
      record.has_turns(keys.completion)
          ? record.messages(keys.completion)
          : std::vector<text::Message>{{"assistant", record.text(keys.completion), ""}};
  for (const text::Message& turn : {answer.front(), answer.back()}) {
    if (turn.role != "assistant")
      record.fail("`" + keys.completion + "` begins or ends with a turn of \"" + turn.role +
                  "\", expected assistant: correct it");
  }
  const ChatEncoder encoder(record, tokenizer, prompt.messages, answer, prompt.variables);
  EncodedChat chat = encoder.encode(encoder.prompt_bytes());
  // The last token is the one that ends the turn, as in a rollout.
  const auto last = std::find(chat.mask.rbegin(), chat.mask.rend(), 1).base();
  chat.ids.resize(static_cast<size_t>(last - chat.mask.begin()));
  chat.mask.resize(chat.ids.size());
  out.ids = std::move(chat.ids);
  out.mask = std::move(chat.mask);
  out.prompt_length =
      static_cast<int32_t>(std::find(out.mask.begin(), out.mask.end(), 1) - out.mask.begin());
  out.remarks = chat.remarks;
  return out;
}

}  // namespace

LabelledSet LabelledSet::load(const SetOptions& options, const text::Tokenizer& tokenizer,
                              const EncodingTeam& team) {
  LabelledSet set;
  Admission admission(options, set.counts_);
  const auto encode = [&](const Record& record) {
    return read_labelled(record, options, tokenizer);
  };
  read_together<LabelledAnswer>(
      options, set.counts_, team, encode,
      [&](const Record& record, Origin origin, LabelledAnswer answer) {
        answer.origin = origin;
        const size_t tokens = answer.prompt_length > 0 ? answer.ids.size() : 0;
        if (!admission.admit(record, tokens, "sequence", answer.remarks)) return false;
        set.longest_ = std::max(set.longest_, static_cast<int64_t>(tokens));
        set.answers_.push_back(std::move(answer));
        return true;
      });
  return set;
}

}  // namespace trireme::data
