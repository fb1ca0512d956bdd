#include "data/record.hpp"

#include <algorithm>
#include <numeric>

#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

// A list of objects, or the JSON text of one (as data sets hold it whose columns have one type
// each). An empty list is as none (Llama's templates speak of tools where there are none).
std::optional<text::OrderedJson> list_of_objects(const Record& record, const std::string& key) {
  const text::OrderedJson* value = record.find(key);
  if (value == nullptr) return std::nullopt;
  text::OrderedJson list = *value;
  if (value->is_string())
    list = text::parse_record(value->get<std::string>(), {record.where() + ": `" + key + "`", 1},
                              text::Numbers::exact);
  const bool fits =
      list.is_null() || (list.is_array() && std::ranges::all_of(list, [](const auto& entry) {
                           return entry.is_object();
                         }));
  if (!fits) {
    record.fail("`" + key + "`, which goes to the chat template, is " + text::kind_of(list) +
                (list.is_array() ? " with an entry that is none" : "") +
                ", expected a list of objects: correct it, or rename the column if it is "
                "something else");
  }
  return list.empty() ? std::nullopt : std::optional(std::move(list));
}

}  // namespace

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

bool Record::has_turns(const std::string& key) const {
  const text::OrderedJson* value = find(key);
  return value != nullptr && (value->is_array() || is_turn(*value));
}

std::string Record::variables() const {
  text::OrderedJson variables = text::OrderedJson::object();
  if (const text::OrderedJson* given = find("chat_template_kwargs")) {
    const std::string json = text::text_or_json(*given);
    const std::string name = where_ + ": `chat_template_kwargs`";
    text::check_template_variables(json, name, ExitCode::bad_data);
    variables = text::parse_record(json, {name, 1}, text::Numbers::exact);
  }
  for (const char* key : {"tools", "documents"}) {
    if (auto list = list_of_objects(*this, key)) variables[key] = *std::move(list);
  }
  return variables.empty() ? "" : text::dump(variables);
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

std::string chat_column(const Record& record, const RecordKeys& keys) {
  const bool has_prompt = record.find(keys.prompt) != nullptr;
  if (keys.messages != keys.prompt && record.find(keys.messages) != nullptr) {
    if (has_prompt)
      record.fail("both `" + keys.prompt + "` and `" + keys.messages +
                  "`, which may say different things: name the one to read in data.prompt_key or "
                  "data.messages_key and a column that is not there in the other, or remove one");
    return keys.messages;
  }
  if (keys.messages == keys.prompt || record.has_turns(keys.prompt))
    return has_prompt ? keys.prompt : "";
  return !has_prompt && record.has_turns("conversations") ? "conversations" : "";
}

std::vector<text::Message> read_chat(const Record& record, const RecordKeys& keys) {
  const std::string column = chat_column(record, keys);
  std::vector<text::Message> messages = record.messages(column);
  // ShareGPT has the system's turn in a column of its own.
  if (column == "conversations" && messages.front().role != "system" &&
      record.find("system") != nullptr && !record.text("system").empty())
    messages.insert(messages.begin(), {"system", record.text("system"), ""});
  return messages;
}

Prompt parse_prompt(const Record& record, const SetOptions& options) {
  const RecordKeys& keys = options.keys;
  Prompt prompt;
  if (!chat_column(record, keys).empty()) {
    prompt.messages = read_chat(record, keys);
  } else if (record.find(keys.prompt) == nullptr) {
    record.fail("neither `" + keys.prompt + "` nor `" + keys.messages +
                "`: add one, or name the right key in the deck (data.*_key)");
  } else if (options.prompt_form == PromptForm::user_turn) {
    prompt.messages.push_back({"user", record.text(keys.prompt), ""});
  } else {
    prompt.text = record.text(keys.prompt);
    return prompt;
  }
  prompt.messages = with_system(std::move(prompt.messages), options);
  prompt.variables = record.variables();
  return prompt;
}

Prompt read_prompt(const Record& record, const SetOptions& options,
                   const text::Tokenizer& tokenizer) {
  Prompt prompt = parse_prompt(record, options);
  if (prompt.messages.empty())
    return encode_prompt(tokenizer, std::move(prompt.text), options.special_tokens);
  try {
    return encode_prompt(tokenizer, std::move(prompt.messages), std::move(prompt.variables));
  } catch (const UserError& error) {
    throw UserError(error.code(), record.where() + ": " + error.what());
  }
}

std::vector<RemarkLine> describe_remarks(const SetCounts& counts, const SetOptions& options) {
  using text::SpecialTokens;
  std::vector<RemarkLine> lines;
  const auto add = [&](Remark kind, bool warning, const char* what, const char* effect) {
    const auto& remarked = counts.remarks[static_cast<size_t>(kind)];
    if (remarked.records == 0) return;
    lines.push_back(
        {base::text(remarked.records, what, " (first: ", remarked.first, "): ", effect), warning});
  };
  constexpr auto* special = " texts have special tokens of the tokenizer (BOS, EOS) already";
  if (options.special_tokens == SpecialTokens::once)
    add(Remark::special_tokens, false, special,
        "they are not added again (data.special_tokens = \"once\")");
  if (options.special_tokens == SpecialTokens::added)
    add(Remark::special_tokens, true, special,
        "they are added once more (data.special_tokens = \"always\"); \"once\" leaves them out");
  add(Remark::continued, false, " prompts end in a turn of the assistant",
      "the answer continues it");
  add(Remark::shorter_opening, false,
      " answers do not begin with what the template's generation prompt opens (<think>)",
      "they are learned as the template writes finished turns, without it");
  add(Remark::shortened_answer, true, " answers are not whole in the rendered chat",
      "the chat template leaves out a part, e.g. what stands before </think>, which is not "
      "learned; "
      "use a template for training that keeps it");
  return lines;
}

Admission::Admission(const SetOptions& options, SetCounts& counts)
    : options_(options), counts_(counts) {}

bool Admission::admit(const Record& record, size_t tokens, const char* what, Remarks remarks) {
  if (tokens == 0) {
    if (options_.unusable == Unusable::stop)
      record.fail(base::text("the ", what, " gives no token: remove the record"));
    ++counts_.empty;
    return false;
  }
  if (options_.max_tokens < 0 || tokens <= static_cast<size_t>(options_.max_tokens)) {
    for (size_t kind = 0; kind < remark_kinds; ++kind) {
      if ((remarks & bit(static_cast<Remark>(kind))) == 0) continue;
      if (counts_.remarks[kind].records++ == 0) counts_.remarks[kind].first = record.where();
    }
    return true;
  }
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
