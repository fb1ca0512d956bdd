#include "text/character_map.hpp"

#include <utf8proc.h>

#include "trireme/base/error.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text {

namespace {

[[noreturn]] void refuse_map(const std::string& where, const char* problem) {
  throw UserError(ExitCode::bad_data,
                  base::text(where, ": normalizer Precompiled: its ", "precompiled_charsmap ",
                             problem, ": the file is damaged"));
}

std::string from_base64(std::string_view text, const std::string& where) {
  constexpr std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const size_t digit = digits.find(c);
    if (digit == std::string_view::npos) refuse_map(where, "is not base64");
    bits = (bits << 6) | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>((bits >> count) & 0xFF);
  }
  return out;
}

uint32_t little_endian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

// Units of the trie (a double array, as in darts-clone).
bool has_leaf(uint32_t unit) { return ((unit >> 8) & 1) != 0; }
uint32_t value_of(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t label_of(uint32_t unit) { return unit & 0x800000FF; }
uint32_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

}  // namespace

CharacterMap::CharacterMap(std::string_view base64, const std::string& where) {
  const std::string bytes = from_base64(base64, where);
  if (bytes.size() < 4) refuse_map(where, "is too short");
  const uint32_t size = little_endian(bytes);
  if (size % 4 != 0 || size == 0 || size > bytes.size() - 4) refuse_map(where, "has no trie");
  for (size_t at = 4; at < 4 + size_t{size}; at += 4)
    trie_.push_back(little_endian(std::string_view(bytes).substr(at, 4)));
  texts_ = bytes.substr(4 + size_t{size});
  if (first_invalid_utf8(texts_) != std::string::npos)
    refuse_map(where, "has texts that are not UTF-8");
}

std::optional<std::string_view> CharacterMap::find(std::string_view part) const {
  uint32_t node = offset_of(trie_[0]);
  for (const char c : part) {
    const auto byte = static_cast<uint8_t>(c);
    node ^= byte;
    if (byte == 0 || node >= trie_.size() || label_of(trie_[node]) != byte) return std::nullopt;
    const uint32_t unit = trie_[node];
    node ^= offset_of(unit);
    if (!has_leaf(unit)) continue;
    const uint32_t at = node < trie_.size() ? value_of(trie_[node]) : UINT32_MAX;
    if (at >= texts_.size()) return std::nullopt;
    const std::string_view rest = std::string_view(texts_).substr(at);
    return rest.substr(0, rest.find('\0'));
  }
  return std::nullopt;
}

// A grapheme cluster of less than six bytes is looked up as a whole, else its characters are.
void CharacterMap::append(std::string_view cluster, std::string& out) const {
  if (cluster.size() < 6) {
    if (const auto found = find(cluster)) {
      out += *found;
      return;
    }
  }
  for (size_t length; !cluster.empty(); cluster.remove_prefix(length)) {
    length = utf8_step(cluster).length;
    const std::string_view character = cluster.substr(0, length);
    out += find(character).value_or(character);
  }
}

std::string CharacterMap::run(std::string_view text) const {
  std::string out;
  utf8proc_int32_t state = 0, before = -1;
  size_t start = 0;
  for (size_t at = 0, length; at < text.size(); at += length) {
    const Utf8Step step = utf8_step(text.substr(at));
    length = step.length;
    const auto character = static_cast<utf8proc_int32_t>(step.character);
    if (before >= 0 && utf8proc_grapheme_break_stateful(before, character, &state)) {
      append(text.substr(start, at - start), out);
      start = at;
    }
    before = character;
  }
  if (start < text.size()) append(text.substr(start), out);
  return out;
}

}  // namespace trireme::text
