// The tokens of a tokenizer by id and by text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/words.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::text {

class Vocabulary {
 public:
  // Throws UserError(bad_data) with `where`: negative id, id beyond 2^24, id or token that is there
  // already with another partner.
  void add(const std::string& token, int64_t id, const std::string& where);
  void mark_special(TokenId id) { special_[static_cast<size_t>(id)] = 1; }

  // One more than the largest id
  TokenId size() const { return static_cast<TokenId>(tokens_.size()); }
  bool has(TokenId id) const {
    return id >= 0 && id < size() && present_[static_cast<size_t>(id)] != 0;
  }
  std::optional<TokenId> find(std::string_view token) const;
  const std::string& token(TokenId id) const { return tokens_[static_cast<size_t>(id)]; }
  const std::string& bytes(TokenId id) const { return bytes_[static_cast<size_t>(id)]; }
  bool special(TokenId id) const { return special_[static_cast<size_t>(id)] != 0; }
  // The first id below size() that no token has; -1 when there is none.
  TokenId first_gap() const;

 private:
  std::vector<std::string> tokens_;  // as in the file
  std::vector<std::string> bytes_;   // their decoded bytes
  std::vector<char> present_;
  std::vector<char> special_;
  TextMap<TokenId> ids_;
};

}  // namespace trireme::text
