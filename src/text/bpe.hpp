// Byte-pair encoding of one word, from its bytes or its characters: the algorithm of HF's
// `word.rs`, with a heap over (rank, position).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
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

// Joins `left` and `right` into `joined`; its index in the list is its rank.
struct Merge {
  TokenId left, right, joined;
};

class Bpe {
 public:
  // Working memory of one encode call.
  struct Scratch;

  // `byte_ids[b]` is the token of byte b alone, -1 when the vocabulary has none (SmolLM2 lacks some
  // control characters).
  Bpe(const std::array<TokenId, 256>& byte_ids, std::span<const Merge> merges);
  // From characters: `characters` are those with a token; of others the tokens of their bytes
  // (`byte_ids`, all 256 or none) count, else the unknown token.
  Bpe(TextMap<TokenId> characters, const std::array<TokenId, 256>& byte_ids,
      std::span<const Merge> merges);
  // The token for such a byte or character; without it the byte is dropped, as in HF. `fuse`: one
  // for several in a row.
  void set_unknown(TokenId id, bool fuse) {
    unknown_ = id;
    fuse_unknown_ = fuse;
  }
  // A word that is a token as a whole is not merged (`ignore_merges`). Keys are bytes.
  void set_whole_words(TextMap<TokenId> words) { whole_words_ = std::move(words); }

  // Appends the tokens of a word.
  void encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const;

 private:
  struct Entry {
    uint64_t pair = empty;
    uint32_t rank = 0;
    TokenId joined = 0;
  };
  static constexpr uint64_t empty = ~uint64_t{0};
  static uint64_t pair_of(TokenId left, TokenId right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t pair) const { return (pair * 0x9E3779B97F4A7C15u) >> shift_; }
  const Entry* find(TokenId left, TokenId right) const;
  void insert(uint64_t pair, uint32_t rank, TokenId joined);
  void start(std::string_view word, Scratch& scratch) const;
  void start_from_bytes(std::string_view word, Scratch& scratch) const;
  void start_from_characters(std::string_view word, Scratch& scratch) const;
  void merge(Scratch& scratch) const;

  std::array<TokenId, 256> byte_ids_;
  bool from_characters_ = false;
  TextMap<TokenId> characters_;
  std::vector<Entry> table_;  // open addressing, at most half full
  int shift_ = 0;
  TextMap<TokenId> whole_words_;
  TokenId unknown_ = -1;
  bool fuse_unknown_ = false;
};

struct Bpe::Scratch {
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
  // Words seen in this call: texts repeat themselves. Values are (first, count) in `cached_ids`.
  TextMap<std::pair<uint32_t, uint32_t>> cache;
  std::vector<TokenId> cached_ids;
};

}  // namespace trireme::text
