#include "text/normalizer.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "trireme/base/error.hpp"
#include "trireme/text/tokenizer_parts.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text {

namespace {

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

std::string unicode_form(const std::string& text, unsigned options) {
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &out,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | options));
  if (length < 0) throw InternalError(base::text("utf8proc: ", utf8proc_errmsg(length)));
  std::string normal(reinterpret_cast<const char*>(out), static_cast<size_t>(length));
  std::free(out);
  return normal;
}

template <class Append>
std::string by_characters(std::string_view text, const Append& append) {
  std::string out;
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    append(out, step.character, text.substr(0, step.length));
    text.remove_prefix(step.length);
  }
  return out;
}

// Character by character, as Rust's char::to_lowercase: of those that become two there is one.
std::string lowercase(std::string_view text) {
  constexpr char32_t capital_i_with_dot = 0x130;
  return by_characters(text, [](std::string& out, char32_t c, std::string_view) {
    if (c == capital_i_with_dot) {
      out += "i\u0307";
    } else {
      append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  });
}

bool is_mark(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
         category == UTF8PROC_CATEGORY_ME;
}

std::string without_marks(std::string_view text) {
  return by_characters(text, [](std::string& out, char32_t c, std::string_view bytes) {
    if (!is_mark(c)) out += bytes;
  });
}

const Json& normalizer_part(const Json& json, const char* key, const std::string& where) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  VALIDATE(found != json.end(), ExitCode::bad_data, where, ": normalizer.", key,
           " is missing: the file is damaged");
  return *found;
}

std::string normalizer_text(const Json& json, const char* key, const std::string& where) {
  const Json& part = normalizer_part(json, key, where);
  VALIDATE(part.is_string(), ExitCode::bad_data, where, ": normalizer.", key, " is ", kind_of(part),
           ", expected a text: the file is damaged");
  return part.get<std::string>();
}

bool normalizer_flag(const Json& json, const char* key, const std::string& where) {
  const Json& part = normalizer_part(json, key, where);
  VALIDATE(part.is_boolean(), ExitCode::bad_data, where, ": normalizer.", key, " is ",
           kind_of(part), ", expected true or false: the file is damaged");
  return part.get<bool>();
}

}  // namespace

Regex read_pattern(const Json& json, const std::string& name, const std::string& where) {
  const auto found = json.find("pattern");
  const bool known = found != json.end() && found->is_object() && found->size() == 1 &&
                     (found->contains("Regex") || found->contains("String")) &&
                     found->begin()->is_string();
  VALIDATE(known, ExitCode::bad_data, where, ": ", name,
           " has no pattern (Regex or String): the file is damaged");
  const auto& text = found->begin()->get_ref<const std::string&>();
  if (found->contains("Regex")) return {text, where};
  VALIDATE(!text.empty(), ExitCode::bad_data, where, ": ", name,
           " with an empty pattern: the file is damaged");
  return Regex::literal(text, where);
}

std::string replace_matches(std::string_view text, const Regex& pattern, std::string_view by) {
  std::string out;
  Regex::Cursor cursor;
  size_t done = 0, from = 0, start = 0, end = 0;
  while (from <= text.size() && pattern.find(text, from, cursor, start, end)) {
    out.append(text.substr(done, start - done)).append(by);
    done = from = end;
    if (start == end && from < text.size()) from += utf8_step(text.substr(from)).length;
    if (start == end && end == text.size()) break;
  }
  return out.append(text.substr(done));
}

Normalizer::Normalizer(const Json& json, const std::string& where) {
  if (!json.is_null()) read(json, where);
}

void Normalizer::read(const Json& json, const std::string& where) {
  const std::string type = normalizer_text(json, "type", where);
  const std::pair<const char*, Unicode> unicode[] = {{"NFC", Unicode::nfc},
                                                     {"NFD", Unicode::nfd},
                                                     {"NFKC", Unicode::nfkc},
                                                     {"NFKD", Unicode::nfkd},
                                                     {"Lowercase", Unicode::lowercase},
                                                     {"StripAccents", Unicode::strip_accents}};
  const auto* const found =
      std::ranges::find_if(unicode, [&](const auto& known) { return type == known.first; });
  if (found != std::end(unicode)) {
    steps_.emplace_back(found->second);
  } else if (type == "Prepend") {
    steps_.emplace_back(Prepend{normalizer_text(json, "prepend", where)});
  } else if (type == "Replace") {
    steps_.emplace_back(Replace{read_pattern(json, "normalizer Replace", where),
                                normalizer_text(json, "content", where)});
  } else if (type == "Strip") {
    steps_.emplace_back(Strip{normalizer_flag(json, "strip_left", where),
                              normalizer_flag(json, "strip_right", where)});
  } else if (type == "Precompiled") {
    steps_.emplace_back(CharacterMap(normalizer_text(json, "precompiled_charsmap", where), where));
  } else if (type == "Sequence") {
    for (const Json& part : normalizer_part(json, "normalizers", where)) read(part, where);
  } else {
    throw UserError(ExitCode::bad_data,
                    base::text(where, ": normalizer type \"", type,
                               "\" is not known (known: ", list_of(known_normalizers), ")"));
  }
}

std::string Normalizer::change(Unicode form, std::string text) {
  if (form == Unicode::lowercase) return lowercase(text);
  if (is_ascii(text)) return text;
  switch (form) {
    case Unicode::lowercase: break;
    case Unicode::strip_accents: return without_marks(text);
    case Unicode::nfc: return unicode_form(text, UTF8PROC_COMPOSE);
    case Unicode::nfd: return unicode_form(text, UTF8PROC_DECOMPOSE);
    case Unicode::nfkc: return unicode_form(text, UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    case Unicode::nfkd: return unicode_form(text, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
  }
  return text;
}

std::string Normalizer::run(const Step& step, std::string text, bool& starts) {
  if (const auto* prepend = std::get_if<Prepend>(&step))
    return text.empty() ? text : prepend->text + text;
  if (const auto* replace = std::get_if<Replace>(&step)) {
    Regex::Cursor cursor;
    size_t start = 0, end = 0;
    if (starts && replace->by.empty() && replace->pattern.find(text, 0, cursor, start, end))
      starts = start > 0 || end == 0;
    return replace_matches(text, replace->pattern, replace->by);
  }
  if (const auto* map = std::get_if<CharacterMap>(&step)) return map->run(text);
  if (const auto* strip = std::get_if<Strip>(&step)) {
    const size_t blanks = strip->left ? leading_space(text, is_white_space) : 0;
    starts = starts && blanks == 0;
    text.erase(0, blanks);
    if (strip->right) text.resize(text.size() - trailing_space(text, is_white_space));
    return text;
  }
  const Unicode form = std::get<Unicode>(step);
  if (form == Unicode::strip_accents && !text.empty() && is_mark(utf8_step(text).character))
    starts = false;
  return change(form, std::move(text));
}

std::string Normalizer::run(std::string_view text, bool& starts) const {
  std::string normal(text);
  for (const Step& step : steps_) normal = run(step, std::move(normal), starts);
  return normal;
}

}  // namespace trireme::text
