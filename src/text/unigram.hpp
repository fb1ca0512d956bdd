// The Unigram model of SentencePiece: the pieces of a word whose scores have the largest sum, as in
// HF's `unigram/model.rs`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/words.hpp"

namespace trireme::text {

class Unigram {
 public:
  struct Piece {
    std::string text;
    double score;
  };
  // The id of a piece is its index. `unknown`: -1 for none. `byte_ids`: the tokens of bytes, all
  // 256 or none (-1), for texts without pieces.
  Unigram(std::vector<Piece> pieces, TokenId unknown, const ByteIds& byte_ids, std::string source);

  // Appends the tokens of a word. Throws UserError(bad_data) where it has a character without a
  // piece and there is no unknown token.
  void encode(std::string_view word, WordScratch& scratch, std::vector<TokenId>& out) const;

 private:
  struct Node {
    TokenId id = -1;
    uint32_t next = 0;  // the first child in `children_`
    uint32_t count = 0;
  };
  struct Child {
    uint8_t byte;
    uint32_t node;
  };
  void build_trie();
  const Node* child_of(const Node& node, uint8_t byte) const;
  void find_best_path(std::string_view word, std::vector<UnigramStep>& ends) const;
  void append(std::string_view part, std::vector<TokenId>& out) const;

  std::vector<Piece> pieces_;
  TokenId unknown_;
  ByteIds byte_ids_;
  std::string source_;  // file, for messages
  double unknown_score_ = 0;
  std::vector<Node> nodes_;      // 0 is the root
  std::vector<Child> children_;  // of a node side by side, ascending
  TextMap<TokenId> ids_;
};

}  // namespace trireme::text
