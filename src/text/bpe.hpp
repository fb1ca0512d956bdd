// Byte-pair encoding of one word, from its bytes or its characters: the algorithm of HF's
// `word.rs`, with a heap over (rank, position).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/words.hpp"

namespace trireme::text {

// Joins `left` and `right` into `joined`; its index in the list is its rank.
struct Merge {
  TokenId left, right, joined;
};

// The tokens of what merging starts from.
struct BpeUnits {
  // `bytes[b]` is the token of byte b alone, -1 when the vocabulary has none (SmolLM2 lacks some
  // control characters). For characters: those of bytes, all 256 or none, for characters without a
  // token.
  ByteIds bytes;
  TextMap<TokenId> characters;
};

class Bpe {
 public:
  enum class From { bytes, characters };

  // `inner` are the units of a word; a word's first and last have units of their own where the file
  // has prefixes and suffixes (CLIP's </w>).
  Bpe(From from, BpeUnits inner, std::span<const Merge> merges);
  void set_edges(BpeUnits first, BpeUnits last, BpeUnits alone);
  // The token for a byte or character without one; without it the byte is dropped, as in HF.
  // `fuse`: one for several in a row.
  void set_unknown(TokenId id, bool fuse) {
    unknown_ = id;
    fuse_unknown_ = fuse;
  }
  // A word that is a token as a whole is not merged (`ignore_merges`). Keys are bytes.
  void set_whole_words(TextMap<TokenId> words) { whole_words_ = std::move(words); }

  // Appends the tokens of a word.
  void encode(std::string_view word, WordScratch& scratch, std::vector<TokenId>& out) const;

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
  const BpeUnits& units_at(bool first, bool last) const {
    return units_.size() == 1 ? units_[0] : units_[(first ? 1 : 0) + (last ? 2 : 0)];
  }
  void start(std::string_view word, WordScratch& scratch) const;
  void start_from_bytes(std::string_view word, WordScratch& scratch) const;
  void start_from_characters(std::string_view word, WordScratch& scratch) const;
  void merge(WordScratch& scratch) const;

  From from_;
  std::vector<BpeUnits> units_;  // of all places, or inside, first, last, alone
  std::vector<Entry> table_;     // open addressing, at most half full
  int shift_ = 0;
  TextMap<TokenId> whole_words_;
  TokenId unknown_ = -1;
  bool fuse_unknown_ = false;
};

}  // namespace trireme::text
