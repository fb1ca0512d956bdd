#include "text/pre_tokenizer.hpp"

#include <algorithm>

#include "text/byte_alphabet.hpp"
#include "text/normalizer.hpp"
#include "text/scripts.hpp"
#include "trireme/base/error.hpp"
#include "trireme/text/tokenizer_parts.hpp"
#include "trireme/text/utf8.hpp"

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

constexpr const char* punctuation = R"([\p{P}$+<=>^`|~])";
// Rust's \w, which knows more than PCRE2's: marks, letter numbers, joiners.
constexpr const char* words_and_others = R"([\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}]+|)"
                                         R"([^\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}\s]+)";

}  // namespace

PreTokenizer::Behavior PreTokenizer::behavior_of(const Json& json, const std::string& otherwise,
                                                 const std::string& where) {
  const std::string name = json.contains("behavior") ? word(json, "behavior", where) : otherwise;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "Removed") return Behavior::removed;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  throw UserError(ExitCode::bad_data,
                  base::text(where, ": pre_tokenizer behavior \"", name,
                             "\" is not known (known: ", list_of(known_split_behaviors), ")"));
}

PreTokenizer::PreTokenizer(const Json& json, const std::string& where) {
  if (!json.is_null()) read(json, where);
  if (!in_alphabet_) return;
  const bool last = stages_.back().kind == Kind::alphabet;
  if (last) stages_.pop_back();  // words leave as bytes at once
  in_alphabet_ = !last;
}

void PreTokenizer::read_sequence(const Json& json, const std::string& where) {
  const auto parts = json.find("pretokenizers");
  VALIDATE(parts != json.end() && parts->is_array(), ExitCode::bad_data, where,
           ": pre_tokenizer Sequence without a list `pretokenizers`: the file is damaged");
  for (const Json& part : *parts) read(part, where);
}

void PreTokenizer::add_split(const char* pattern, Behavior behavior, const std::string& where) {
  Stage stage;
  stage.pattern.emplace(pattern, where);
  stage.behavior = behavior;
  stages_.push_back(std::move(stage));
}

void PreTokenizer::read_byte_level(const Json& json, const std::string& where) {
  VALIDATE(!byte_level_, ExitCode::bad_data, where,
           ": pre_tokenizer ByteLevel behind ByteLevel is not known");
  byte_level_ = in_alphabet_ = true;
  if (flag(json, "add_prefix_space", true, where)) stages_.push_back({.kind = Kind::space_first});
  if (flag(json, "use_regex", true, where)) add_split(gpt2_pattern, Behavior::isolated, where);
  stages_.push_back({.kind = Kind::alphabet});
}

void PreTokenizer::read_metaspace(const Json& json, const std::string& where) {
  Stage stage{.kind = Kind::metaspace};
  stage.mark = word(json, "replacement", where);
  VALIDATE(!stage.mark.empty() && utf8_step(stage.mark).length == stage.mark.size(),
           ExitCode::bad_data, where, ": pre_tokenizer Metaspace with replacement \"", stage.mark,
           "\", expected one character: the file is damaged");
  // Files of older versions say add_prefix_space.
  const bool legacy = flag(json, "add_prefix_space", true, where);
  const std::string scheme = json.contains("prepend_scheme") ? word(json, "prepend_scheme", where)
                             : legacy                        ? "always"
                                                             : "never";
  VALIDATE(scheme == "always" || scheme == "first" || scheme == "never", ExitCode::bad_data, where,
           ": pre_tokenizer Metaspace with prepend_scheme \"", scheme,
           "\" is not known (known: ", list_of(known_prepend_schemes), ")");
  stage.prepend = scheme == "always"  ? Prepend::always
                  : scheme == "first" ? Prepend::first
                                      : Prepend::never;
  const std::string mark = stage.mark;
  stages_.push_back(std::move(stage));
  if (!flag(json, "split", true, where)) return;
  Stage cut_at_marks{.behavior = Behavior::merged_with_next};
  cut_at_marks.pattern = Regex::literal(mark, where);
  stages_.push_back(std::move(cut_at_marks));
}

void PreTokenizer::read(const Json& json, const std::string& where) {
  VALIDATE(json.is_object(), ExitCode::bad_data, where, ": a part of pre_tokenizer is ",
           kind_of(json), ", expected an object");
  const std::string type = word(json, "type", where);
  if (type == "Sequence") {
    read_sequence(json, where);
  } else if (type == "ByteLevel") {
    read_byte_level(json, where);
  } else if (type == "Metaspace") {
    read_metaspace(json, where);
  } else if (type == "Digits") {
    add_split(flag(json, "individual_digits", false, where) ? "\\p{N}" : "\\p{N}+",
              Behavior::isolated, where);
  } else if (type == "Punctuation") {
    add_split(punctuation, behavior_of(json, "Isolated", where), where);
  } else if (type == "Whitespace") {
    add_split(words_and_others, Behavior::removed, where);
    stages_.back().invert = true;
  } else if (type == "UnicodeScripts") {
    add_split(script_runs_pattern().c_str(), Behavior::removed, where);
    stages_.back().invert = true;
  } else if (type == "WhitespaceSplit") {
    add_split("\\s", Behavior::removed, where);
  } else if (type == "CharDelimiterSplit") {
    stages_.push_back({.behavior = Behavior::removed});
    stages_.back().pattern = Regex::literal(word(json, "delimiter", where), where);
  } else if (type == "Split") {
    stages_.push_back(
        {.behavior = behavior_of(json, "", where), .invert = flag(json, "invert", false, where)});
    stages_.back().pattern = read_pattern(json, "pre_tokenizer Split", where);
  } else {
    throw UserError(ExitCode::bad_data,
                    base::text(where, ": pre_tokenizer type \"", type,
                               "\" is not known (known: ", list_of(known_pre_tokenizers), ")"));
  }
}

void PreTokenizer::split(std::string_view text, bool at_start, Words& words) const {
  words.list.assign(1, text);
  words.storage.clear();
  words.starts = at_start;
  for (const Stage& stage : stages_) run(stage, words);
  if (!in_alphabet_) return;
  for (std::string_view& piece : words.list)
    piece = words.storage.emplace_back(token_to_bytes(piece));
}

namespace {

std::string in_alphabet(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) append_utf8(out, byte_to_char(static_cast<uint8_t>(byte)));
  return out;
}

}  // namespace

void PreTokenizer::run(const Stage& stage, Words& words) {
  if (stage.kind == Kind::split) {
    std::vector<std::string_view> pieces;
    pieces.reserve(words.list.size());
    std::vector<Span> spans;
    Regex::Cursor cursor;
    for (const std::string_view piece : words.list) {
      cut(stage, piece, cursor, spans);
      join(stage.behavior, spans, pieces);
    }
    words.starts = words.starts && !pieces.empty() && !words.list.empty() &&
                   pieces.front().data() == words.list.front().data();
    words.list = std::move(pieces);
    return;
  }
  bool first = words.starts;
  for (std::string_view& piece : words.list) {
    if (stage.kind == Kind::alphabet) {
      piece = words.storage.emplace_back(in_alphabet(piece));
    } else if (stage.kind == Kind::space_first) {
      if (!piece.starts_with(' ')) piece = words.storage.emplace_back(" " + std::string(piece));
    } else {
      std::string marked;
      for (const char c : piece) marked += c == ' ' ? stage.mark : std::string(1, c);
      const bool wanted =
          stage.prepend == Prepend::always || (stage.prepend == Prepend::first && first);
      if (wanted && !marked.starts_with(stage.mark)) marked.insert(0, stage.mark);
      piece = words.storage.emplace_back(std::move(marked));
    }
    first = false;
  }
}

void PreTokenizer::cut(const Stage& stage, std::string_view piece, Regex::Cursor& cursor,
                       std::vector<Span>& spans) {
  spans.clear();
  size_t done = 0, from = 0, start = 0, end = 0;
  while (from <= piece.size() && stage.pattern->find(piece, from, cursor, start, end)) {
    if (done < start) spans.push_back({piece.substr(done, start - done), stage.invert});
    spans.push_back({piece.substr(start, end - start), !stage.invert});
    done = from = end;
    if (start == end) {  // an empty match: the search continues after the next character
      ++from;
      while (from < piece.size() && (static_cast<unsigned char>(piece[from]) & 0xC0) == 0x80)
        ++from;
    }
  }
  if (done < piece.size()) spans.push_back({piece.substr(done), stage.invert});
}

namespace {

// Two spans that follow each other, as one.
std::string_view together(std::string_view left, std::string_view right) {
  return {left.data(), static_cast<size_t>(right.data() + right.size() - left.data())};
}

}  // namespace

// As NormalizedString::split of `tokenizers`.
void PreTokenizer::join(Behavior behavior, const std::vector<Span>& spans,
                        std::vector<std::string_view>& pieces) {
  std::vector<std::string_view> joined;
  bool match_before = false;
  const auto add = [&](const Span& span, bool merge) {
    const bool follows = merge && !joined.empty();
    const bool backwards = behavior == Behavior::merged_with_next;
    if (follows) {
      joined.back() =
          backwards ? together(span.text, joined.back()) : together(joined.back(), span.text);
    } else {
      joined.push_back(span.text);
    }
    match_before = span.match;
  };
  switch (behavior) {
    case Behavior::isolated:
      for (const Span& span : spans) add(span, false);
      break;
    case Behavior::removed:
      for (const Span& span : spans) {
        if (!span.match) add(span, false);
      }
      break;
    case Behavior::contiguous:
      for (const Span& span : spans) add(span, span.match == match_before);
      break;
    case Behavior::merged_with_previous:
      for (const Span& span : spans) add(span, span.match && !match_before);
      break;
    case Behavior::merged_with_next:
      for (auto span = spans.rbegin(); span != spans.rend(); ++span)
        add(*span, span->match && !match_before);
      std::ranges::reverse(joined);
      break;
  }
  for (const std::string_view piece : joined) {
    if (!piece.empty()) pieces.push_back(piece);
  }
}

}  // namespace trireme::text
