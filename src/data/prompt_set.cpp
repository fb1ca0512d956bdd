#include "trireme/data/prompt_set.hpp"

#include <limits>

#include "data/messages.hpp"
#include "data/read_together.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

std::vector<text::TokenId> token_ids(const Record& record, const std::string& key) {
  const text::OrderedJson& json = *record.find(key);
  if (!json.is_array()) record.fail("`" + key + "` is no list of token ids: correct it");
  std::vector<text::TokenId> ids;
  for (const text::OrderedJson& id : json) {
    const bool fits =
        id.is_number_unsigned() &&
        id.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<text::TokenId>::max());
    if (!fits)
      record.fail("`" + key + "` holds " + text::dump(id) +
                  ", expected a token id (0 to 2^31-1): correct it");
    ids.push_back(id.get<text::TokenId>());
  }
  return ids;
}

InputRecord read_input(const Record& record) {
  InputRecord input;
  input.where = record.where();
  std::string found;
  for (const char* key : {"prompt", "text", "messages", "input_ids", "ids"}) {
    if (record.find(key) == nullptr) continue;
    if (!found.empty())
      record.fail("both `" + found + "` and `" + key + "`: remove one of the two");
    found = key;
  }
  if (found.empty())
    record.fail("none of `prompt`, `text`, `messages`, `input_ids`, `ids`: add one");
  if (found == "messages") {
    input.messages = record.messages(found);
  } else if (found == "prompt" || found == "text") {
    input.text = record.text(found);
  } else {
    input.ids = token_ids(record, found);
  }
  if (const text::OrderedJson* flag = record.find("add_generation_prompt")) {
    if (!flag->is_boolean())
      record.fail("`add_generation_prompt` is " + text::kind_of(*flag) +
                  ", expected true or false: correct it");
    input.add_generation_prompt = flag->get<bool>();
  }
  return input;
}

// What the encoding of a prompt adds to its record.
struct EncodedPrompt {
  std::string text;  // PromptRecord::prompt
  std::vector<text::TokenId> ids;
  static constexpr auto fields = std::tuple{&EncodedPrompt::text, &EncodedPrompt::ids};
};

PromptRecord made_of(const Record& record, Origin origin, EncodedPrompt encoded,
                     const SetOptions& options, const std::set<std::string>& known) {
  PromptRecord made;
  made.origin = origin;
  made.prompt = std::move(encoded.text);
  made.messages = parse_prompt(record, options).messages;
  made.ids = std::move(encoded.ids);
  if (const text::OrderedJson* label = record.find(options.keys.label)) {
    made.label_json = text::dump(*label);
    made.label = text::text_or_json(*label);
  }
  made.extra = record.others(known);
  return made;
}

}  // namespace

PromptSet PromptSet::load(const SetOptions& options, const text::Tokenizer& tokenizer,
                          const EncodingTeam& team) {
  PromptSet set;
  Admission admission(options, set.counts_);
  const std::set<std::string> known{options.keys.prompt, options.keys.messages, options.keys.label};
  const auto encode = [&](const Record& record) {
    Prompt prompt = read_prompt(record, options, tokenizer);
    return EncodedPrompt{std::move(prompt.text), std::move(prompt.ids)};
  };
  read_together<EncodedPrompt>(
      options, set.counts_, team, encode,
      [&](const Record& record, Origin origin, EncodedPrompt encoded) {
        if (!admission.admit(record, encoded.ids.size(), "prompt")) return false;
        set.records_.push_back(made_of(record, origin, std::move(encoded), options, known));
        return true;
      });
  return set;
}

std::vector<InputRecord> read_inputs(const std::filesystem::path& file) {
  std::vector<InputRecord> inputs;
  InputReader reader(file);
  while (reader.advance()) inputs.push_back(reader.record());
  return inputs;
}

bool InputReader::advance() {
  line_ = lines_.next();
  return line_.has_value();
}

InputRecord InputReader::record() const {
  return read_input(Record(line_.value(), file_, lines_.line()));
}

std::vector<text::TokenId> InputRecord::encode(const text::Tokenizer& tokenizer) const {
  try {
    if (ids) {
      for (const text::TokenId id : *ids) {
        VALIDATE(id < tokenizer.vocab_size(), ExitCode::bad_data, "token id ", id,
                 " is outside the vocabulary of ", tokenizer.vocab_size(), ": correct it");
      }
      return *ids;
    }
    if (text) return tokenizer.encode(*text, text::SpecialTokens::added);
    return tokenizer.encode_chat(messages, add_generation_prompt ? text::GenerationPrompt::with
                                                                 : text::GenerationPrompt::without);
  } catch (const UserError& error) { throw UserError(error.code(), where + ": " + error.what()); }
}

}  // namespace trireme::data
