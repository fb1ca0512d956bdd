// Who holds which page of the KV cache: reference counts, and an index of full pages by content, so
// that a prefix that was computed once is found again. Pages nobody holds keep their content until
// they are needed, least recently used first.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace trireme::generate {

// Names the content of a page together with everything before it; 0: the start of a sequence.
using ContentId = uint64_t;
// The start of sequences that are rotated otherwise (CacheRules), or have an adapter: no content's
// name.
constexpr ContentId start_of(ContentId rotation, int32_t adapter) {
  const auto which = static_cast<ContentId>(adapter + 1) << 48;
  return rotation == 0 && which == 0 ? 0 : rotation | which | ContentId{1} << 63;
}

inline constexpr int32_t no_page = -1;

class PagePool {
 public:
  PagePool(int64_t pages, int64_t page_size);

  int64_t total() const { return static_cast<int64_t>(pages_.size()); }
  int64_t page_size() const { return page_size_; }
  // Pages that allocate() can give without anybody releasing one.
  int64_t available() const { return static_cast<int64_t>(free_.size() + idle_.size()); }
  int64_t used() const { return total() - available(); }

  // A page with one reference and undefined content, or nothing.
  std::optional<int32_t> allocate();
  void retain(int32_t page);
  void release(int32_t page);
  int32_t references(int32_t page) const { return pages_[static_cast<size_t>(page)].references; }

  // The page whose tokens follow the content `parent`, with one reference more; its content is
  // content_of(page).
  std::optional<int32_t> find(ContentId parent, std::span<const int32_t> tokens);
  // The content's name, without taking a reference.
  std::optional<ContentId> peek(ContentId parent, std::span<const int32_t> tokens) const;
  // Records that `page` now holds `tokens` after `parent`; returns the content's name. When another
  // page holds the same, that one stays in the index.
  ContentId publish(int32_t page, ContentId parent, std::span<const int32_t> tokens);
  ContentId content_of(int32_t page) const { return pages_[static_cast<size_t>(page)].content; }
  // Drops the index: other weights. References stay.
  void forget_contents();

 private:
  struct Key {
    ContentId parent = 0;
    std::vector<int32_t> tokens;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  using Index = std::unordered_map<Key, int32_t, KeyHash>;
  struct Page {
    int32_t references = 0;
    ContentId content = 0;              // 0: not in the index
    std::optional<Key> key;             // of its entry
    std::list<int32_t>::iterator idle;  // valid while references == 0 and content != 0
  };
  void remove_from_index(Page& page);

  int64_t page_size_;
  std::vector<Page> pages_;
  std::vector<int32_t> free_;
  std::list<int32_t> idle_;  // nobody's, but with content; oldest first
  Index index_;
  ContentId next_content_ = 1;
};

}  // namespace trireme::generate
