#include "text/bpe.hpp"

#include <algorithm>
#include <bit>

#include "trireme/base/error.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text {

namespace {

constexpr size_t longest_cached_word = 64;
constexpr size_t largest_cache = 65536;

}  // namespace

Bpe::Bpe(const std::array<TokenId, 256>& byte_ids, std::span<const Merge> merges)
    : byte_ids_(byte_ids) {
  const size_t capacity = std::bit_ceil(std::max<size_t>(merges.size() * 2, 16));
  table_.resize(capacity);
  shift_ = 64 - std::countr_zero(capacity);
  uint32_t rank = 0;
  for (const Merge& merge : merges) insert(pair_of(merge.left, merge.right), rank++, merge.joined);
}

Bpe::Bpe(TextMap<TokenId> characters, const std::array<TokenId, 256>& byte_ids,
         std::span<const Merge> merges)
    : Bpe(byte_ids, merges) {
  from_characters_ = true;
  characters_ = std::move(characters);
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

void append(std::vector<Bpe::Scratch::Symbol>& symbols, TokenId id) {
  const auto position = static_cast<int32_t>(symbols.size());
  symbols.push_back({id, position - 1, position + 1, true});
}

}  // namespace

void Bpe::start_from_bytes(std::string_view word, Scratch& scratch) const {
  bool after_unknown = false;
  for (const char byte : word) {
    const TokenId id = byte_ids_[static_cast<uint8_t>(byte)];
    const bool unknown = id < 0;
    const bool dropped = unknown && (unknown_ < 0 || (fuse_unknown_ && after_unknown));
    after_unknown = unknown;
    if (!dropped) append(scratch.symbols, unknown ? unknown_ : id);
  }
}

void Bpe::start_from_characters(std::string_view word, Scratch& scratch) const {
  bool after_unknown = false;
  for (size_t size; !word.empty(); word.remove_prefix(size)) {
    size = utf8_step(word).length;
    const std::string_view character = word.substr(0, size);
    if (const auto found = characters_.find(character); found != characters_.end()) {
      append(scratch.symbols, found->second);
      after_unknown = false;
    } else if (byte_ids_[0] >= 0) {
      for (const char byte : character)
        append(scratch.symbols, byte_ids_[static_cast<uint8_t>(byte)]);
      after_unknown = false;
    } else {
      if (unknown_ >= 0 && !(fuse_unknown_ && after_unknown)) append(scratch.symbols, unknown_);
      after_unknown = true;
    }
  }
}

void Bpe::start(std::string_view word, Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  if (from_characters_) {
    start_from_characters(word, scratch);
  } else {
    start_from_bytes(word, scratch);
  }
  if (!symbols.empty()) symbols.back().next = -1;
}

void Bpe::merge(Scratch& scratch) const {
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

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const {
  if (!whole_words_.empty()) {
    if (const auto found = whole_words_.find(word); found != whole_words_.end()) {
      out.push_back(found->second);
      return;
    }
  }
  if (const auto found = scratch.cache.find(word); found != scratch.cache.end()) {
    const auto first = scratch.cached_ids.begin() + found->second.first;
    out.insert(out.end(), first, first + found->second.second);
    return;
  }
  VALIDATE(word.size() < size_t{1} << 31, ExitCode::bad_data, "a word of ", word.size(),
           " bytes is too long: split the text");
  start(word, scratch);
  merge(scratch);
  const size_t start = out.size();
  for (const auto& symbol : scratch.symbols) {
    if (symbol.alive) out.push_back(symbol.id);
  }
  if (word.size() <= longest_cached_word && scratch.cache.size() < largest_cache) {
    scratch.cache.emplace(word, std::pair(static_cast<uint32_t>(scratch.cached_ids.size()),
                                          static_cast<uint32_t>(out.size() - start)));
    scratch.cached_ids.insert(scratch.cached_ids.end(), out.begin() + static_cast<int64_t>(start),
                              out.end());
  }
}

}  // namespace trireme::text
