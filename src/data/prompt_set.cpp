#include "trireme/data/prompt_set.hpp"

#include <limits>

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

bool flag(const Record& record, const std::string& key) {
  const text::OrderedJson* value = record.find(key);
  if (value == nullptr) return false;
  if (!value->is_boolean())
    record.fail("`" + key + "` is " + text::kind_of(*value) +
                ", expected true or false: correct it");
  return value->get<bool>();
}

text::GenerationPrompt asked_opening(const Record& record,
                                     const std::vector<text::Message>& messages) {
  const bool open = flag(record, "add_generation_prompt"),
             continued = flag(record, "continue_final_message");
  if (open && continued)
    record.fail(
        "both `add_generation_prompt` and `continue_final_message` are true: a turn is opened or "
        "continued, keep one");
  if (continued) return text::GenerationPrompt::continued;
  if (open) return text::GenerationPrompt::with;
  const bool closed = record.find("add_generation_prompt") != nullptr;
  return closed ? text::GenerationPrompt::without : opening_after(messages);
}

// Fields that the encoding of a prompt adds to its record.
struct EncodedPrompt {
  std::string text;  // PromptRecord::prompt
  std::vector<text::TokenId> ids;
  Remarks remarks = 0;
  static constexpr auto fields =
      std::tuple{&EncodedPrompt::text, &EncodedPrompt::ids, &EncodedPrompt::remarks};
};

PromptRecord made_of(const Record& record, Origin origin, EncodedPrompt encoded,
                     const SetOptions& options, const std::set<std::string>& known) {
  PromptRecord made;
  made.origin = origin;
  made.prompt = std::move(encoded.text);
  Prompt prompt = parse_prompt(record, options);
  made.messages = std::move(prompt.messages);
  made.variables = std::move(prompt.variables);
  made.ids = std::move(encoded.ids);
  if (const text::OrderedJson* label = record.find(options.keys.label)) {
    made.label_json = text::dump(*label);
    made.label = text::text_or_json(*label);
  }
  made.extra = record.others(known);
  return made;
}

}  // namespace

InputRecord read_input(const Record& record) {
  InputRecord input;
  input.where = record.where();
  std::string found;
  for (const char* key : {"prompt", "text", "messages", "conversations", "input_ids", "ids"}) {
    if (record.find(key) == nullptr) continue;
    if (!found.empty())
      record.fail("both `" + found + "` and `" + key + "`: remove one of the two");
    found = key;
  }
  if (found.empty())
    record.fail("none of `prompt`, `text`, `messages`, `input_ids`, `ids`: add one");
  if (found == "messages" || found == "conversations" ||
      (found == "prompt" && record.has_turns(found))) {
    input.messages = read_chat(record, {});
    input.variables = record.variables();
  } else if (found == "prompt" || found == "text") {
    input.text = record.text(found);
  } else {
    input.ids = token_ids(record, found);
  }
  if (const text::OrderedJson* adapter = record.find("adapter"))
    input.adapter = text::text_or_json(*adapter);
  input.opening = asked_opening(record, input.messages);
  return input;
}

PromptSet PromptSet::load(const SetOptions& options, const text::Tokenizer& tokenizer,
                          const EncodingTeam& team) {
  PromptSet set;
  for (const auto& file : options.files) set.files_.push_back(file.string());
  Admission admission(options, set.counts_);
  const std::set<std::string> known{options.keys.prompt, options.keys.messages, options.keys.label};
  const auto encode = [&](const Record& record) {
    Prompt prompt = read_prompt(record, options, tokenizer);
    return EncodedPrompt{std::move(prompt.text), std::move(prompt.ids), prompt.remarks};
  };
  read_together<EncodedPrompt>(
      options, set.counts_, team, encode,
      [&](const Record& record, Origin origin, EncodedPrompt encoded) {
        if (!admission.admit(record, encoded.ids.size(), "prompt", encoded.remarks)) return false;
        set.records_.push_back(made_of(record, origin, std::move(encoded), options, known));
        return true;
      });
  return set;
}

std::string PromptSet::where(int64_t row) const {
  const Origin& origin = (*this)[row].origin;
  return base::text(file(origin.file), ":", origin.line);
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

std::string InputRecord::render(const text::Tokenizer& tokenizer) const {
  try {
    return tokenizer.render_chat(messages, opening, variables);
  } catch (const UserError& error) { throw UserError(error.code(), where + ": " + error.what()); }
}

std::vector<text::TokenId> InputRecord::encode(const text::Tokenizer& tokenizer,
                                               text::SpecialTokens special) const {
  try {
    if (!messages.empty()) return tokenizer.encode_chat(messages, opening, variables);
    return text ? tokenizer.encode(*text, special) : *ids;
  } catch (const UserError& error) { throw UserError(error.code(), where + ": " + error.what()); }
}

}  // namespace trireme::data
