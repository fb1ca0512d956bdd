#include <algorithm>

#include "data/read_together.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

// What both answers continue.
struct Context {
  std::vector<text::Message> messages;  // empty: plain text, or no prompt at all
  std::string text;
  std::vector<text::TokenId> ids;
};

class PairReader {
 public:
  PairReader(const Record& record, const SetOptions& options, const text::Tokenizer& tokenizer)
      : record_(record), options_(options), tokenizer_(tokenizer) {}

  PreferencePair read() {
    const RecordKeys& keys = options_.keys;
    PreferencePair pair;
    const bool has_prompt =
        record_.find(keys.prompt) != nullptr || record_.find(keys.messages) != nullptr;
    if (has_prompt) {
      const Prompt prompt = read_prompt(record_, options_, tokenizer_);
      context_ = {prompt.messages, prompt.text, prompt.ids};
      pair.chosen = answer(keys.chosen);
      pair.rejected = answer(keys.rejected);
    } else {
      whole_conversations(pair);
    }
    pair.prompt_length = static_cast<int32_t>(context_.ids.size());
    pair.margin = record_.number(keys.margin).value_or(0);
    return pair;
  }

 private:
  std::vector<text::TokenId> answer(const std::string& key) {
    const text::OrderedJson* value = record_.find(key);
    if (value != nullptr && value->is_array()) {
      if (context_.messages.empty())
        record_.fail("`" + key +
                     "` is a list of messages, but the prompt is a text: give both in one form");
      return continue_chat(record_.messages(key), key);
    }
    const std::string text = record_.text(key);
    if (!context_.messages.empty()) return continue_chat({{"assistant", text, ""}}, key);
    std::vector<text::TokenId> ids = context_.ids;
    append(ids, tokenizer_.encode(text));
    const text::TokenId eos = required_eos(tokenizer_);
    if (ids.size() == context_.ids.size() || ids.back() != eos) ids.push_back(eos);
    return ids;
  }

  std::vector<text::TokenId> continue_chat(const std::vector<text::Message>& more,
                                           const std::string& key) {
    if (more.back().role != "assistant")
      record_.fail("`" + key + "` ends with a turn of \"" + more.back().role +
                   "\", expected assistant");
    std::vector<text::Message> messages = context_.messages;
    messages.insert(messages.end(), more.begin(), more.end());
    const std::string text = tokenizer_.render_chat(messages, text::GenerationPrompt::without);
    if (!text.starts_with(context_.text)) {
      record_.fail("the chat template renders the prompt differently once `" + key +
                   "` follows, so its length is unknown");
    }
    std::vector<text::TokenId> ids = context_.ids;
    append(ids, tokenizer_.encode(text.substr(context_.text.size())));
    return without_tail(std::move(ids));
  }

  // The last token that a rollout has is the one that ends the turn; the reward is read there.
  std::vector<text::TokenId> without_tail(std::vector<text::TokenId> ids) const {
    const auto eos_ids = tokenizer_.eos_ids();
    const auto ends = [&](text::TokenId id) {
      return std::find(eos_ids.begin(), eos_ids.end(), id) != eos_ids.end();
    };
    const auto last =
        std::find_if(ids.rbegin(), ids.rend() - static_cast<int64_t>(context_.ids.size()), ends);
    const bool ended = last != ids.rend() - static_cast<int64_t>(context_.ids.size());
    if (ended) ids.erase(last.base(), ids.end());
    return ids;
  }

  // Both sides are whole conversations: everything but the last turn is the prompt.
  void whole_conversations(PreferencePair& pair) {
    const auto chosen = record_.messages(options_.keys.chosen);
    const auto rejected = record_.messages(options_.keys.rejected);
    const auto same = [](const text::Message& a, const text::Message& b) {
      return a.role == b.role && a.content == b.content && a.extra == b.extra;
    };
    const bool differ_in_last =
        chosen.size() == rejected.size() && chosen.size() > 1 &&
        std::equal(chosen.begin(), chosen.end() - 1, rejected.begin(), same);
    if (!differ_in_last)
      record_.fail(
          "without a prompt, `chosen` and `rejected` must be conversations that differ in the last "
          "turn only");
    context_.messages.assign(chosen.begin(), chosen.end() - 1);
    context_.text = tokenizer_.render_chat(context_.messages, text::GenerationPrompt::with);
    context_.ids = tokenizer_.encode(context_.text);
    pair.chosen = continue_chat({chosen.back()}, options_.keys.chosen);
    pair.rejected = continue_chat({rejected.back()}, options_.keys.rejected);
  }

  const Record& record_;
  const SetOptions& options_;
  const text::Tokenizer& tokenizer_;
  Context context_;
};

}  // namespace

PreferenceSet PreferenceSet::load(const SetOptions& options, const text::Tokenizer& tokenizer,
                                  const EncodingTeam& team) {
  PreferenceSet set;
  Admission admission(options, set.counts_);
  const auto encode = [&](const Record& record) {
    return PairReader(record, options, tokenizer).read();
  };
  read_together<PreferencePair>(
      options, set.counts_, team, encode,
      [&](const Record& record, Origin origin, PreferencePair pair) {
        pair.origin = origin;
        const size_t longest = std::max(pair.chosen.size(), pair.rejected.size());
        if (!admission.admit(record, pair.prompt_length > 0 ? longest : 0, "sequence"))
          return false;
        set.pairs_.push_back(std::move(pair));
        return true;
      });
  return set;
}

}  // namespace trireme::data
