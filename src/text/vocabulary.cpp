#include "text/vocabulary.hpp"

#include <algorithm>

#include "text/byte_alphabet.hpp"
#include "trireme/base/error.hpp"

namespace trireme::text {

namespace {

constexpr int64_t largest_id =
    int64_t{1} << 24;  // fifty times the largest vocabulary known; bounds the tables

}  // namespace

void Vocabulary::add(const std::string& token, int64_t id, const std::string& where) {
  VALIDATE(id >= 0, ExitCode::bad_data, where, ": the token \"", token, "\" has the negative id ",
           id, ": the file is damaged");
  VALIDATE(id < largest_id, ExitCode::bad_data, where, ": the token \"", token, "\" has the id ",
           id, ", the limit is ", largest_id, ": the file is damaged");
  const auto index = static_cast<size_t>(id);
  if (index >= tokens_.size()) {
    tokens_.resize(index + 1);
    bytes_.resize(index + 1);
    present_.resize(index + 1, 0);
    special_.resize(index + 1, 0);
  }
  const auto [known, fresh] = ids_.emplace(token, static_cast<TokenId>(id));
  VALIDATE(fresh || known->second == id, ExitCode::bad_data, where, ": the token \"", token,
           "\" has two ids, ", known->second, " and ", id, ": the file is damaged");
  VALIDATE(present_[index] == 0 || tokens_[index] == token, ExitCode::bad_data, where, ": the id ",
           id, " stands for two tokens, \"", tokens_[index], "\" and \"", token,
           "\": the file is damaged");
  tokens_[index] = token;
  bytes_[index] = token_to_bytes(token);
  present_[index] = 1;
}

std::optional<TokenId> Vocabulary::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

TokenId Vocabulary::first_gap() const {
  const auto gap = std::find(present_.begin(), present_.end(), 0);
  return gap == present_.end() ? -1 : static_cast<TokenId>(gap - present_.begin());
}

}  // namespace trireme::text
