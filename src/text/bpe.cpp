#include "text/bpe.hpp"

#include <algorithm>
#include <bit>

#include "trireme/base/error.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text {

Bpe::Bpe(From from, BpeUnits inner, std::span<const Merge> merges) : from_(from) {
  units_.push_back(std::move(inner));
  const size_t capacity = std::bit_ceil(std::max<size_t>(merges.size() * 2, 16));
  table_.resize(capacity);
  shift_ = 64 - std::countr_zero(capacity);
  uint32_t rank = 0;
  for (const Merge& merge : merges) insert(pair_of(merge.left, merge.right), rank++, merge.joined);
}

void Bpe::set_edges(BpeUnits first, BpeUnits last, BpeUnits alone) {
  units_.resize(1);
  units_.push_back(std::move(first));
  units_.push_back(std::move(last));
  units_.push_back(std::move(alone));
}

void Bpe::insert(uint64_t pair, uint32_t rank, TokenId joined) {
  size_t slot = slot_of(pair);
  while (table_[slot].pair != empty && table_[slot].pair != pair)
    slot = (slot + 1) & (table_.size() - 1);
  table_[slot] = {pair, rank,
                  joined};  // of a pair that is listed twice the last rank counts, as in HF
}

const Bpe::Entry* Bpe::find(TokenId left, TokenId right) const {
  const uint64_t pair = pair_of(left, right);
  size_t slot = slot_of(pair);
  while (table_[slot].pair != empty) {
    if (table_[slot].pair == pair) return &table_[slot];
    slot = (slot + 1) & (table_.size() - 1);
  }
  return nullptr;
}

namespace {

void append(std::vector<WordScratch::Symbol>& symbols, TokenId id) {
  const auto position = static_cast<int32_t>(symbols.size());
  symbols.push_back({id, position - 1, position + 1, true});
}

}  // namespace

void Bpe::start_from_bytes(std::string_view word, WordScratch& scratch) const {
  bool after_unknown = false;
  for (size_t i = 0; i < word.size(); ++i) {
    const BpeUnits& units = units_at(i == 0, i + 1 == word.size());
    const TokenId id = units.bytes[static_cast<uint8_t>(word[i])];
    const bool unknown = id < 0;
    const bool dropped = unknown && (unknown_ < 0 || (fuse_unknown_ && after_unknown));
    after_unknown = unknown;
    if (!dropped) append(scratch.symbols, unknown ? unknown_ : id);
  }
}

void Bpe::start_from_characters(std::string_view word, WordScratch& scratch) const {
  bool after_unknown = false;
  for (size_t at = 0, size; at < word.size(); at += size) {
    size = utf8_step(word.substr(at)).length;
    const BpeUnits& units = units_at(at == 0, at + size == word.size());
    const std::string_view character = word.substr(at, size);
    if (const auto found = units.characters.find(character); found != units.characters.end()) {
      append(scratch.symbols, found->second);
      after_unknown = false;
    } else if (units.bytes[0] >= 0) {
      for (const char byte : character)
        append(scratch.symbols, units.bytes[static_cast<uint8_t>(byte)]);
      after_unknown = false;
    } else {
      if (unknown_ >= 0 && !(fuse_unknown_ && after_unknown)) append(scratch.symbols, unknown_);
      after_unknown = true;
    }
  }
}

void Bpe::start(std::string_view word, WordScratch& scratch) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  if (from_ == From::characters) {
    start_from_characters(word, scratch);
  } else {
    start_from_bytes(word, scratch);
  }
  if (!symbols.empty()) symbols.back().next = -1;
}

void Bpe::merge(WordScratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  heap.clear();
  const auto consider = [&](int32_t position) {
    if (position < 0) return;
    const auto& symbol = symbols[static_cast<size_t>(position)];
    if (symbol.next < 0) return;
    if (const Entry* entry = find(symbol.id, symbols[static_cast<size_t>(symbol.next)].id)) {
      heap.push_back({entry->rank, position, entry->joined});
      std::push_heap(heap.begin(), heap.end());
    }
  };
  for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols.size()); ++i) consider(i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const auto best = heap.back();
    heap.pop_back();
    auto& left = symbols[static_cast<size_t>(best.position)];
    if (!left.alive || left.next < 0) continue;
    auto& right = symbols[static_cast<size_t>(left.next)];
    const Entry* entry = find(left.id, right.id);
    if (entry == nullptr || entry->joined != best.joined)
      continue;  // one of the two has been merged meanwhile
    left.id = best.joined;
    left.next = right.next;
    right.alive = false;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = best.position;
    consider(left.previous);
    consider(best.position);
  }
}

void Bpe::encode(std::string_view word, WordScratch& scratch, std::vector<TokenId>& out) const {
  if (!whole_words_.empty()) {
    if (const auto found = whole_words_.find(word); found != whole_words_.end()) {
      out.push_back(found->second);
      return;
    }
  }
  if (scratch.recall(word, out)) return;
  VALIDATE(word.size() < size_t{1} << 31, ExitCode::bad_data, "a word of ", word.size(),
           " bytes is too long: split the text");
  start(word, scratch);
  merge(scratch);
  const size_t start = out.size();
  for (const auto& symbol : scratch.symbols) {
    if (symbol.alive) out.push_back(symbol.id);
  }
  scratch.keep(word, out, start);
}

}  // namespace trireme::text
