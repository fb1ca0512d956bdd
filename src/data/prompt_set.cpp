#include "trireme/data/prompt_set.hpp"

#include <algorithm>
#include <limits>

#include "data/messages.hpp"
#include "data/record.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/hash.hpp"

namespace trireme::data {

namespace {

std::vector<text::TokenId> token_ids(const Record& record, const std::string& key) {
  const text::OrderedJson& json = *record.find(key);
  if (!json.is_array()) record.fail("`" + key + "` is no list of token ids: correct it");
  std::vector<text::TokenId> ids;
  for (const text::OrderedJson& id : json) {
    const bool fits = id.is_number_unsigned() && id.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<text::TokenId>::max());
    if (!fits) record.fail("`" + key + "` holds " + id.dump() + ", expected a token id (0 to 2^31-1): correct it");
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
    if (!found.empty()) record.fail("both `" + found + "` and `" + key + "`: remove one of the two");
    found = key;
  }
  if (found.empty()) record.fail("none of `prompt`, `text`, `messages`, `input_ids`, `ids`: add one");
  if (found == "messages") {
    input.messages = record.messages(found);
  } else if (found == "prompt" || found == "text") {
    input.text = record.text(found);
  } else {
    input.ids = token_ids(record, found);
  }
  if (const text::OrderedJson* flag = record.find("add_generation_prompt")) {
    if (!flag->is_boolean()) record.fail("`add_generation_prompt` is " + text::kind_of(*flag) + ", expected true or false: correct it");
    input.add_generation_prompt = flag->get<bool>();
  }
  return input;
}

constexpr int64_t records_of_block = 8192;

struct Line {
  Record record;
  Origin origin;
  uint64_t source;  // as in EncodedPrompt
  Prompt prompt;
};

// Records that are parsed, then encoded together.
class Block {
 public:
  Block(const SetOptions& options, size_t file) : options_(options), file_(file) {}

  // The next lines, `room` at most; false: the file has no more, or there is no room.
  bool read(JsonlReader& reader, int64_t room) {
    lines.clear();
    while (std::ssize(lines) < room) {
      const auto text = reader.next();
      if (!text) return false;
      Record record(*text, options_.files[file_].string(), reader.line());
      Prompt prompt = parse_prompt(record, options_);
      lines.push_back({std::move(record), {static_cast<int32_t>(file_), reader.line()}, base::fnv1a(*text), std::move(prompt)});
    }
    return room > 0;
  }

  // Whether a process of the team has more lines than these; `more`: this one has.
  bool encode(const text::Tokenizer& tokenizer, const EncodingTeam& team, bool more) {
    const auto size = static_cast<size_t>(team.size);
    std::vector<EncodedShare> all(size);
    if (team.gather) all = team.gather(share(tokenizer, static_cast<size_t>(team.rank), size, more));
    for (size_t i = 0; i < lines.size(); ++i) {
      Line& line = lines[i];
      std::vector<EncodedPrompt>& theirs = all[i % size].prompts;
      if (i / size < theirs.size() && theirs[i / size].source == line.source) {
        line.prompt.text = std::move(theirs[i / size].text);
        line.prompt.ids = std::move(theirs[i / size].ids);
      } else {
        encode_prompt(line.prompt, line.record, tokenizer);
      }
    }
    return team.gather ? std::ranges::any_of(all, &EncodedShare::more) : more;
  }

  std::vector<Line> lines;

 private:
  EncodedShare share(const text::Tokenizer& tokenizer, size_t rank, size_t size, bool more) const {
    EncodedShare out{more, {}};
    for (size_t i = rank; i < lines.size(); i += size) {
      Prompt prompt = lines[i].prompt;
      try {
        encode_prompt(prompt, lines[i].record, tokenizer);
        out.prompts.push_back({lines[i].source, std::move(prompt.text), std::move(prompt.ids)});
      } catch (const UserError&) {
        out.prompts.emplace_back();  // every process says it when it comes to this line
      }
    }
    return out;
  }

  const SetOptions& options_;
  size_t file_;
};

PromptRecord made_of(Line line, const SetOptions& options, const std::set<std::string>& known) {
  PromptRecord made;
  made.origin = line.origin;
  made.prompt = std::move(line.prompt.text);
  made.messages = std::move(line.prompt.messages);
  made.ids = std::move(line.prompt.ids);
  if (const text::OrderedJson* label = line.record.find(options.keys.label)) {
    made.label_json = label->dump();
    made.label = label->is_string() ? label->get<std::string>() : made.label_json;
  }
  made.extra = line.record.others(known);
  return made;
}

}  // namespace

PromptSet PromptSet::load(const SetOptions& options, const text::Tokenizer& tokenizer, const EncodingTeam& team) {
  PromptSet set;
  Admission admission(options, set.counts_);
  const std::set<std::string> known{options.keys.prompt, options.keys.messages, options.keys.label};
  check_files(options);
  for (size_t file = 0; file < options.files.size(); ++file) {
    JsonlReader reader(options.files[file]);
    int64_t& rows = set.counts_.rows.emplace_back(0);
    Block block(options, file);
    for (bool mine = true, any = true; any;) {
      const int64_t room = options.max_samples < 0 ? records_of_block : std::min(records_of_block, options.max_samples - rows);
      mine = block.read(reader, mine ? room : 0);
      any = block.encode(tokenizer, team, mine);
      for (Line& line : block.lines) {
        if (!admission.admit(line.record, line.prompt.ids.size(), "prompt")) continue;
        set.records_.push_back(made_of(std::move(line), options, known));
        ++rows;
      }
    }
  }
  check_rows(options, set.counts_);
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

InputRecord InputReader::record() const { return read_input(Record(line_.value(), file_, lines_.line())); }

std::vector<text::TokenId> InputRecord::encode(const text::Tokenizer& tokenizer) const {
  try {
    if (ids) {
      for (const text::TokenId id : *ids) {
        VALIDATE(id < tokenizer.vocab_size(), ExitCode::bad_data, "token id ", id, " is outside the vocabulary of ", tokenizer.vocab_size(),
                 ": correct it");
      }
      return *ids;
    }
    if (text) return tokenizer.encode(*text, text::SpecialTokens::added);
    return tokenizer.encode_chat(messages, add_generation_prompt ? text::GenerationPrompt::with : text::GenerationPrompt::without);
  } catch (const UserError& error) {
    throw UserError(error.code(), where + ": " + error.what());
  }
}

}  // namespace trireme::data
