// Where an answer ends: end tokens, and texts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/text/tokenizer.hpp"

namespace trireme::text {

// How an answer may end before its limit.
struct Stops {
  std::vector<int32_t> ids;          // sorted, each once
  std::vector<std::string> strings;  // those of more than one token
};

// The end tokens of the model (unless `ignore_eos`), `ids`, and `strings`, of which each that is
// the text of one special token becomes that token. Throws UserError(configuration) naming `key`
// for an id outside the `vocabulary`.
Stops stops_of(const Tokenizer& tokenizer, bool ignore_eos, const std::vector<int64_t>& ids,
               const std::vector<std::string>& strings, int64_t vocabulary, const std::string& key);

// A predicate that sees tokens one by one and says whether this one completed one of `strings` in
// their text, special tokens included; empty when there are none.
std::function<bool(int32_t)> stop_string_predicate(const Tokenizer& tokenizer,
                                                   const std::vector<std::string>& strings);

}  // namespace trireme::text
