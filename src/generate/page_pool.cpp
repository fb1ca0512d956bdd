#include "page_pool.hpp"

#include "trireme/base/error.hpp"

namespace trireme::generate {

PagePool::PagePool(int64_t pages, int64_t page_size)
    : page_size_(page_size), pages_(static_cast<size_t>(pages)) {
  for (int64_t p = pages - 1; p >= 0; --p) free_.push_back(static_cast<int32_t>(p));
}

size_t PagePool::KeyHash::operator()(const Key& key) const {
  uint64_t hash = key.parent * 0x9E3779B97F4A7C15ull;
  for (const int32_t token : key.tokens) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0xD6E8FEB86659FD93ull;
    hash ^= hash >> 32;
  }
  return hash;
}

std::optional<int32_t> PagePool::allocate() {
  int32_t number = 0;
  if (!free_.empty()) {
    number = free_.back();
    free_.pop_back();
  } else if (!idle_.empty()) {
    number = idle_.front();
    idle_.pop_front();
    remove_from_index(pages_[static_cast<size_t>(number)]);
  } else {
    return std::nullopt;
  }
  pages_[static_cast<size_t>(number)].references = 1;
  return number;
}

void PagePool::retain(int32_t number) {
  Page& page = pages_[static_cast<size_t>(number)];
  if (page.references++ == 0) idle_.erase(page.idle);
}

void PagePool::release(int32_t number) {
  Page& page = pages_[static_cast<size_t>(number)];
  EXPECT(page.references > 0);
  if (--page.references > 0) return;
  if (page.content != 0) {
    page.idle = idle_.insert(idle_.end(), number);
  } else {
    free_.push_back(number);
  }
}

std::optional<int32_t> PagePool::find(ContentId parent, std::span<const int32_t> tokens) {
  const auto found = index_.find(Key{parent, {tokens.begin(), tokens.end()}});
  if (found == index_.end()) return std::nullopt;
  retain(found->second);
  return found->second;
}

std::optional<ContentId> PagePool::peek(ContentId parent, std::span<const int32_t> tokens) const {
  const auto found = index_.find(Key{parent, {tokens.begin(), tokens.end()}});
  if (found == index_.end()) return std::nullopt;
  return content_of(found->second);
}

ContentId PagePool::publish(int32_t number, ContentId parent, std::span<const int32_t> tokens) {
  Page& page = pages_[static_cast<size_t>(number)];
  EXPECT(page.references > 0);
  if (page.content != 0) return page.content;
  Key key{parent, {tokens.begin(), tokens.end()}};
  const auto [entry, fresh] = index_.try_emplace(key, number);
  if (!fresh) return pages_[static_cast<size_t>(entry->second)].content;
  page.content = next_content_++;
  page.key = std::move(key);
  return page.content;
}

void PagePool::remove_from_index(Page& page) {
  if (page.key) index_.erase(*page.key);
  page.key.reset();
  page.content = 0;
}

void PagePool::forget_contents() {
  for (const int32_t number : idle_) free_.push_back(number);
  idle_.clear();
  index_.clear();
  for (Page& page : pages_) {
    page.key.reset();
    page.content = 0;
  }
}

}  // namespace trireme::generate
