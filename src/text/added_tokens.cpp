#include "text/added_tokens.hpp"

#include <utf8proc.h>

#include <algorithm>

#include "trireme/base/error.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text {

namespace {

// Rust's `\w`: Alphabetic, marks, decimal digits, connector punctuation, Join_Control. utf8proc has
// no property Alphabetic; outside the categories below it only adds the circled letters.
bool is_word(char32_t c) {
  if (c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9)) return true;
  if ((c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
      (c >= 0x1F170 && c <= 0x1F189))
    return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
  }
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && is_word(utf8_step(text).character);
}

bool ends_with_word(std::string_view text) {
  if (text.empty()) return false;
  size_t start = text.size() - 1;
  while (start > 0 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) --start;
  return is_word(utf8_step(text.substr(start)).character);
}

}  // namespace

void AddedTokenFinder::add(const AddedToken& token, std::string_view content) {
  EXPECT(!content.empty());
  uint32_t node = 0;
  for (const char byte : content) {
    const auto [child, fresh] =
        children_.emplace(edge(node, byte), static_cast<uint32_t>(token_of_.size()));
    if (fresh) token_of_.push_back(-1);
    node = child->second;
  }
  starts_[static_cast<uint8_t>(content[0])] = true;
  if (token_of_[node] >= 0) return;  // the first of two tokens with one text counts
  token_of_[node] = static_cast<int64_t>(tokens_.size());
  tokens_.push_back(token);
}

AddedTokenFinder::Match AddedTokenFinder::longest_at(std::string_view text) const {
  Match longest;
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto child = children_.find(edge(node, text[i]));
    if (child == children_.end()) break;
    node = child->second;
    if (token_of_[node] >= 0) longest = {i + 1, static_cast<size_t>(token_of_[node])};
  }
  return longest;
}

std::vector<Piece> AddedTokenFinder::split(std::string_view text) const {
  std::vector<Piece> pieces;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const Match match =
        starts_[static_cast<uint8_t>(text[at])] ? longest_at(text.substr(at)) : Match{};
    if (match.length == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[match.token];
    size_t start = at;
    size_t stop = at + match.length;
    at = stop;
    if (token.single_word &&
        (ends_with_word(text.substr(0, start)) || starts_with_word(text.substr(stop))))
      continue;
    if (token.lstrip)
      start = std::max(start - trailing_space(text.substr(0, start), is_white_space), done);
    if (token.rstrip) stop += leading_space(text.substr(stop), is_white_space);
    if (stop <= start) continue;  // white space that an earlier token's rstrip has taken
    if (done < start) pieces.push_back({-1, text.substr(done, start - done)});
    pieces.push_back({token.id, text.substr(start, stop - start)});
    done = stop;
  }
  if (done < text.size()) pieces.push_back({-1, text.substr(done)});
  return pieces;
}

}  // namespace trireme::text
