// Added tokens: texts that are found before anything else happens (HF's `added_vocabulary.rs`).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trireme/text/tokenizer.hpp"

namespace trireme::text {

struct AddedToken {
  std::string content;
  TokenId id = 0;
  bool single_word = false;  // only between characters that are no word characters
  bool lstrip = false;       // takes the white space in front with it
  bool rstrip = false;       // and behind
  bool normalized = false;   // searched in the normalised text
  bool special = false;
};

// A part of a text: an added token, or text between them (id < 0). Never empty.
struct Piece {
  TokenId id = -1;
  std::string_view text;
};

// Finds added tokens, leftmost first and of those the longest. Matches do not overlap, but the
// white space that a token takes with it may reach into the next one, as in HF.
class AddedTokenFinder {
 public:
  // `content` is what is searched: the token's own text or its normalised form; not empty.
  void add(const AddedToken& token, std::string_view content);
  bool empty() const { return tokens_.empty(); }
  std::vector<Piece> split(std::string_view text) const;

 private:
  struct Match {
    size_t length = 0;  // 0 = none
    size_t token = 0;   // index into tokens_
  };
  Match longest_at(std::string_view text) const;
  static uint64_t edge(uint32_t node, char byte) {
    return uint64_t{node} << 8 | static_cast<uint8_t>(byte);
  }

  std::vector<AddedToken> tokens_;
  std::array<bool, 256> starts_{};  // bytes that some token starts with
  std::unordered_map<uint64_t, uint32_t>
      children_;                       // (node, byte) -> node of the trie; 0 is its root
  std::vector<int64_t> token_of_{-1};  // node -> index into tokens_; -1 = none ends here
};

}  // namespace trireme::text
