#include "text/pre_tokenizer.hpp"

#include "trireme/base/error.hpp"

namespace trireme::text {

namespace {

constexpr const char* gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

bool flag(const Json& json, const char* key, bool otherwise, const std::string& where) {
  const auto found = json.find(key);
  if (found == json.end()) return otherwise;
  VALIDATE(found->is_boolean(), ExitCode::bad_data, where, ": pre_tokenizer.", key, " is ",
           kind_of(*found), ", expected true or false: the file is damaged");
  return found->get<bool>();
}

std::string word(const Json& json, const char* key, const std::string& where) {
  const auto found = json.find(key);
  VALIDATE(found != json.end() && found->is_string(), ExitCode::bad_data, where, ": pre_tokenizer.",
           key, " is missing or no text: the file is damaged");
  return found->get<std::string>();
}

Regex split_pattern(const Json& json, const std::string& where) {
  const std::string behavior = word(json, "behavior", where);
  VALIDATE(behavior == "Isolated", ExitCode::bad_data, where,
           ": pre_tokenizer Split with behavior \"", behavior,
           "\" is not known (known: Isolated): use a tokenizer without it");
  const auto pattern = json.find("pattern");
  VALIDATE(pattern != json.end() && pattern->is_object() &&
               (pattern->contains("Regex") || pattern->contains("String")),
           ExitCode::bad_data, where,
           ": pre_tokenizer Split has no pattern (Regex or String): the file is damaged");
  if (pattern->contains("Regex")) return Regex(word(*pattern, "Regex", where), where);
  const std::string text = word(*pattern, "String", where);
  VALIDATE(!text.empty(), ExitCode::bad_data, where,
           ": pre_tokenizer Split with an empty pattern: the file is damaged");
  return Regex::literal(text, where);
}

}  // namespace

PreTokenizer::PreTokenizer(const Json& json, const std::string& where) {
  VALIDATE(json.is_object(), ExitCode::bad_data, where, ": pre_tokenizer is ", kind_of(json),
           ", expected an object that ends in ByteLevel: only byte-level tokenizers are known");
  read(json, where);
  VALIDATE(byte_level_, ExitCode::bad_data, where,
           ": the pre_tokenizer has no ByteLevel: only byte-level tokenizers are known");
}

void PreTokenizer::read(const Json& json, const std::string& where) {
  VALIDATE(json.is_object(), ExitCode::bad_data, where, ": a part of pre_tokenizer is ",
           kind_of(json), ", expected an object");
  const std::string type = word(json, "type", where);
  if (type == "Sequence") {
    const auto parts = json.find("pretokenizers");
    VALIDATE(parts != json.end() && parts->is_array(), ExitCode::bad_data, where,
             ": pre_tokenizer Sequence without a list `pretokenizers`: the file is damaged");
    for (const Json& part : *parts) read(part, where);
    return;
  }
  VALIDATE(!byte_level_, ExitCode::bad_data, where, ": pre_tokenizer ", type,
           " behind ByteLevel is not known");
  if (type == "ByteLevel") {
    byte_level_ = true;
    if (flag(json, "add_prefix_space", true, where)) stages_.push_back({std::nullopt});
    if (flag(json, "use_regex", true, where)) stages_.push_back({Regex(gpt2_pattern, where)});
  } else if (type == "Digits") {
    stages_.push_back(
        {Regex(flag(json, "individual_digits", false, where) ? "\\p{N}" : "\\p{N}+", where)});
  } else if (type == "Split") {
    stages_.push_back({split_pattern(json, where)});
  } else {
    throw UserError(ExitCode::bad_data,
                    base::text(where, ": pre_tokenizer type \"", type,
                               "\" is not known (known: ByteLevel, Digits, Split, Sequence)"));
  }
}

void PreTokenizer::split(std::string_view text, Words& words) const {
  words.list.assign(1, text);
  words.storage.clear();
  for (const Stage& stage : stages_) run(stage, words);
}

void PreTokenizer::run(const Stage& stage, Words& words) const {
  if (!stage.pattern) {
    for (std::string_view& piece : words.list) {
      if (!piece.starts_with(' ')) piece = words.storage.emplace_back(" " + std::string(piece));
    }
    return;
  }
  std::vector<std::string_view> pieces;
  pieces.reserve(words.list.size());
  Regex::Cursor cursor;
  const auto keep = [&pieces](std::string_view piece) {
    if (!piece.empty()) pieces.push_back(piece);
  };
  for (const std::string_view piece : words.list) {
    size_t done = 0;
    size_t from = 0;
    size_t start = 0;
    size_t end = 0;
    while (from <= piece.size() && stage.pattern->find(piece, from, cursor, start, end)) {
      keep(piece.substr(done, start - done));
      keep(piece.substr(start, end - start));
      done = end;
      from = end;
      if (start == end) {  // an empty match: go on behind the next character
        ++from;
        while (from < piece.size() && (static_cast<unsigned char>(piece[from]) & 0xC0) == 0x80)
          ++from;
      }
    }
    keep(piece.substr(done));
  }
  words.list = std::move(pieces);
}

}  // namespace trireme::text
