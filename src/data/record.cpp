#include "data/record.hpp"

#include <numeric>

#include "data/messages.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

Record::Record(std::string_view text, const std::string& file, int64_t line)
    : where_(base::text(file, ":", line)),
      json_(text::parse_record(text, {file, line}, text::Numbers::exact)) {
  if (!json_.is_object()) fail("a line is " + text::kind_of(json_) + ", expected one JSON object");
}

void Record::fail(const std::string& problem) const {
  throw UserError(ExitCode::bad_data, where_ + ": " + problem);
}

const text::OrderedJson* Record::find(const std::string& key) const {
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

std::string Record::text(const std::string& key) const {
  const text::OrderedJson* value = find(key);
  if (value == nullptr)
    fail("no `" + key + "`: add it, or name the right key in the deck (data.*_key)");
  if (!value->is_string())
    fail("`" + key + "` is " + text::kind_of(*value) + ", expected a text: correct it");
  return value->get<std::string>();
}

std::optional<double> Record::number(const std::string& key) const {
  const text::OrderedJson* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_binary()) return std::stod(text::dump(*value));
  if (!value->is_number())
    fail("`" + key + "` is " + text::kind_of(*value) + ", expected a number: correct it");
  return value->get<double>();
}

std::vector<text::Message> Record::messages(const std::string& key) const {
  const text::OrderedJson* value = find(key);
  if (value == nullptr)
    fail("no `" + key + "`: add it, or name the right key in the deck (data.*_key)");
  return read_messages(*value, key, where_);
}

std::string Record::others(const std::set<std::string>& known) const {
  text::OrderedJson rest = text::OrderedJson::object();
  for (const auto& [key, value] : json_.items()) {
    if (!known.contains(key)) rest[key] = value;
  }
  return text::dump(rest);
}

std::vector<text::Message> with_system(std::vector<text::Message> messages,
                                       const SetOptions& options) {
  const bool has_one = !messages.empty() && messages.front().role == "system";
  if (!options.system_prompt.empty() && !has_one)
    messages.insert(messages.begin(), {"system", options.system_prompt, ""});
  return messages;
}

Prompt parse_prompt(const Record& record, const SetOptions& options) {
  const RecordKeys& keys = options.keys;
  const bool conversation = record.find(keys.messages) != nullptr;
  if (conversation && record.find(keys.prompt) != nullptr) {
    record.fail("both `" + keys.prompt + "` and `" + keys.messages + "`: remove one of the two");
  }
  if (!conversation && record.find(keys.prompt) == nullptr) {
    record.fail("neither `" + keys.prompt + "` nor `" + keys.messages +
                "`: add one, or name the right key in the deck (data.*_key)");
  }
  Prompt prompt;
  if (conversation) {
    prompt.messages = record.messages(keys.messages);
  } else if (options.prompt_form == PromptForm::user_turn) {
    prompt.messages.push_back({"user", record.text(keys.prompt), ""});
  } else {
    prompt.text = record.text(keys.prompt);
    return prompt;
  }
  prompt.messages = with_system(std::move(prompt.messages), options);
  return prompt;
}

Prompt read_prompt(const Record& record, const SetOptions& options,
                   const text::Tokenizer& tokenizer) {
  Prompt prompt = parse_prompt(record, options);
  if (prompt.messages.empty()) {
    prompt.ids = tokenizer.encode(prompt.text, text::SpecialTokens::added);
    return prompt;
  }
  try {
    prompt.text = tokenizer.render_chat(prompt.messages, text::GenerationPrompt::with);
  } catch (const UserError& error) {
    throw UserError(error.code(), record.where() + ": " + error.what());
  }
  prompt.ids = tokenizer.encode(prompt.text);
  return prompt;
}

Admission::Admission(const SetOptions& options, SetCounts& counts)
    : options_(options), counts_(counts) {}

bool Admission::admit(const Record& record, size_t tokens, const char* what) {
  if (tokens == 0) {
    if (options_.unusable == Unusable::stop)
      record.fail(base::text("the ", what, " gives no token: remove the record"));
    ++counts_.empty;
    return false;
  }
  if (options_.max_tokens < 0 || tokens <= static_cast<size_t>(options_.max_tokens)) return true;
  if (options_.unusable == Unusable::stop) {
    record.fail(base::text("the ", what, " has ", tokens, " tokens, the limit is ",
                           options_.max_tokens,
                           ": shorten it, raise the limit, or let such records be skipped"));
  }
  ++counts_.too_long;
  return false;
}

void append(std::vector<text::TokenId>& ids, const std::vector<text::TokenId>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

text::TokenId required_eos(const text::Tokenizer& tokenizer) {
  VALIDATE(
      tokenizer.eos_id().has_value(), ExitCode::bad_data,
      "the tokenizer names no eos_token, which ends a response: add it to tokenizer_config.json");
  return *tokenizer.eos_id();
}

void check_files(const SetOptions& options) {
  VALIDATE(!options.files.empty(), ExitCode::configuration,
           "no data file is named: set the deck's data files");
}

void check_rows(const SetOptions& options, const SetCounts& counts) {
  const int64_t rows = std::accumulate(counts.rows.begin(), counts.rows.end(), int64_t{0});
  VALIDATE(rows > 0, ExitCode::bad_data, options.files[0].string(),
           options.files.size() > 1 ? " and the other files" : "", ": no usable record (",
           counts.too_long, " longer than ", options.max_tokens, " tokens, ", counts.empty,
           " empty): raise the limit or give other data");
}

}  // namespace trireme::data
