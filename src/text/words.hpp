// Shared by the models that turn words into tokens.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trireme/text/tokenizer.hpp"

namespace trireme::text {

// Lets maps of std::string be searched by std::string_view.
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
template <class Value>
using TextMap = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;

// The token of each byte; -1: there is none.
using ByteIds = std::array<TokenId, 256>;

// The best way to the end of a part of a word.
struct UnigramStep {
  TokenId id = -1;
  int64_t start = -1;  // -1: no way leads there
  double score = 0;
};

// Working memory of one encode call.
struct WordScratch {
  struct Symbol {
    TokenId id;
    int32_t previous, next;  // -1 at the ends
    bool alive;
  };
  struct Candidate {
    uint32_t rank;
    int32_t position;
    TokenId joined;
    // std heaps keep the largest on top; wanted is the lowest rank, then the leftmost
    friend bool operator<(const Candidate& a, const Candidate& b) {
      return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
    }
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  std::vector<UnigramStep> steps;
  // Words seen in this call: texts repeat themselves. Values are (first, count) in `cached_ids`.
  TextMap<std::pair<uint32_t, uint32_t>> cache;
  std::vector<TokenId> cached_ids;

  // Appends the tokens of a word that was seen before; false: it was not.
  bool recall(std::string_view word, std::vector<TokenId>& out) const;
  // Keeps the tokens of a word, which are those of `out` from `start` on.
  void keep(std::string_view word, const std::vector<TokenId>& out, size_t start);
};

}  // namespace trireme::text
