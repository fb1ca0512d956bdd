#include "text/unigram.hpp"

#include <algorithm>
#include <numeric>

#include "trireme/base/error.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text {

Unigram::Unigram(std::vector<Piece> pieces, TokenId unknown, const ByteIds& byte_ids,
                 std::string source)
    : pieces_(std::move(pieces)),
      unknown_(unknown),
      byte_ids_(byte_ids),
      source_(std::move(source)) {
  constexpr double penalty = 10;  // of SentencePiece: an unknown character is worse than any piece
  double least = pieces_.empty() ? 0 : pieces_[0].score;
  for (const Piece& piece : pieces_) least = std::min(least, piece.score);
  unknown_score_ = least - penalty;
  for (size_t i = 0; i < pieces_.size(); ++i) ids_[pieces_[i].text] = static_cast<TokenId>(i);
  build_trie();
}

// Breadth first over the sorted pieces: the children of a node lie side by side.
void Unigram::build_trie() {
  std::vector<uint32_t> order(pieces_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::sort(order, {}, [&](uint32_t i) { return std::string_view(pieces_[i].text); });
  struct Range {
    uint32_t first, last, node;
    size_t depth;
  };
  nodes_.resize(1);
  std::vector<Range> open{{0, static_cast<uint32_t>(order.size()), 0, 0}};
  for (size_t k = 0; k < open.size(); ++k) {
    const Range range = open[k];
    uint32_t i = range.first;
    for (; i < range.last && pieces_[order[i]].text.size() == range.depth; ++i) {
      if (range.depth > 0) nodes_[range.node].id = ids_.at(pieces_[order[i]].text);
    }
    nodes_[range.node].next = static_cast<uint32_t>(children_.size());
    while (i < range.last) {
      const char byte = pieces_[order[i]].text[range.depth];
      uint32_t end = i;
      while (end < range.last && pieces_[order[end]].text[range.depth] == byte) ++end;
      const auto node = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
      children_.push_back({static_cast<uint8_t>(byte), node});
      ++nodes_[range.node].count;
      open.push_back({i, end, node, range.depth + 1});
      i = end;
    }
  }
}

const Unigram::Node* Unigram::child_of(const Node& node, uint8_t byte) const {
  const std::span<const Child> children(children_.data() + node.next, node.count);
  const auto found = std::ranges::lower_bound(children, byte, {}, &Child::byte);
  return found != children.end() && found->byte == byte ? &nodes_[found->node] : nullptr;
}

void Unigram::find_best_path(std::string_view word, std::vector<UnigramStep>& ends) const {
  ends.assign(word.size() + 1, {});
  const auto offer = [&](size_t start, size_t end, TokenId id, double score) {
    UnigramStep& target = ends[end];
    if (target.start >= 0 && score <= target.score) return;
    target = {id, static_cast<int64_t>(start), score};
  };
  for (size_t start = 0, length; start < word.size(); start += length) {
    length = utf8_step(word.substr(start)).length;
    const double before = ends[start].score;
    bool has_own = false;  // a piece that is this character
    const Node* node = nodes_.data();
    for (size_t end = start; end < word.size();) {
      node = child_of(*node, static_cast<uint8_t>(word[end++]));
      if (node == nullptr) break;
      if (node->id < 0) continue;
      offer(start, end, node->id, before + pieces_[static_cast<size_t>(node->id)].score);
      has_own = has_own || end - start == length;
    }
    if (has_own) continue;
    VALIDATE(
        unknown_ >= 0, ExitCode::bad_data, source_, ": a text has \"", word.substr(start, length),
        "\", for which the vocabulary has neither a piece nor an unknown token (model.unk_id): "
        "use another tokenizer, or leave the character out");
    offer(start, start + length, unknown_, before + unknown_score_);
  }
}

// A piece, or a part of the word without one.
void Unigram::append(std::string_view part, std::vector<TokenId>& out) const {
  if (const auto found = ids_.find(part); found != ids_.end()) {
    out.push_back(found->second);
  } else if (byte_ids_[0] >= 0) {
    for (const char byte : part) out.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
  } else {
    out.push_back(unknown_);
  }
}

void Unigram::encode(std::string_view word, WordScratch& scratch, std::vector<TokenId>& out) const {
  if (scratch.recall(word, out)) return;
  find_best_path(word, scratch.steps);
  std::vector<std::string_view> parts;  // from the end; unknown characters in a row are one
  bool after_unknown = false;
  for (size_t end = word.size(); end > 0;) {
    const UnigramStep& step = scratch.steps[end];
    const auto start = static_cast<size_t>(step.start);
    const bool unknown = step.id == unknown_;
    if (unknown && after_unknown) {
      parts.back() = {word.data() + start, parts.back().size() + end - start};
    } else {
      parts.push_back(word.substr(start, end - start));
    }
    after_unknown = unknown;
    end = start;
  }
  const size_t first = out.size();
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) append(*part, out);
  scratch.keep(word, out, first);
}

}  // namespace trireme::text
