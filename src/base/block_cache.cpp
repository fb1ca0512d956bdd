#include "trireme/base/block_cache.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

namespace trireme::base {
namespace {

size_t whole_pages(size_t bytes) {
  static const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

void* mapped(size_t bytes) {
  void* block = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return block == MAP_FAILED ? nullptr : block;
}

}  // namespace

BlockCache::~BlockCache() { release(); }

void* BlockCache::take(size_t bytes) {
  const size_t wanted = whole_pages(bytes);
  const std::lock_guard lock(mutex_);
  void* block = fitting(wanted);
  if (block == nullptr) block = mapped(wanted);
  if (block == nullptr) {  // what waits may be all that is missing
    while (!waiting_.empty()) drop(waiting_.begin());
    block = mapped(wanted);
  }
  if (block == nullptr) return nullptr;
  taken_[block] = wanted;
  in_use_ += wanted;
  most_ = std::max(most_, in_use_);
  keep_below_most();
  return block;
}

// The smallest block that is large enough, without its last pages, or the largest one that is not,
// lengthened. Null: none, or only such as would lose most of their pages.
void* BlockCache::fitting(size_t bytes) {
  auto found = waiting_.lower_bound(bytes);
  if (found == waiting_.end() || found->first / 2 > bytes) {
    if (found == waiting_.begin()) return nullptr;
    found = std::prev(found);
  }
  const auto [size, block] = *found;
  void* fitted = block;
  if (size != bytes) fitted = ::mremap(block, size, bytes, MREMAP_MAYMOVE);
  if (fitted == MAP_FAILED) return nullptr;
  waiting_bytes_ -= size;
  waiting_.erase(found);
  return fitted;
}

void BlockCache::keep_below_most() {
  while (!waiting_.empty() && in_use_ + waiting_bytes_ > most_) drop(waiting_.begin());
}

void BlockCache::drop(std::multimap<size_t, void*>::iterator block) {
  ::munmap(block->second, block->first);
  waiting_bytes_ -= block->first;
  waiting_.erase(block);
}

bool BlockCache::give_back(void* block) {
  const std::lock_guard lock(mutex_);
  const auto found = taken_.find(block);
  if (found == taken_.end()) return false;
  in_use_ -= found->second;
  waiting_bytes_ += found->second;
  waiting_.emplace(found->second, block);
  taken_.erase(found);
  return true;
}

void BlockCache::release() {
  const std::lock_guard lock(mutex_);
  while (!waiting_.empty()) drop(waiting_.begin());
}

size_t BlockCache::in_use() const {
  const std::lock_guard lock(mutex_);
  return in_use_;
}

size_t BlockCache::waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_bytes_;
}

}  // namespace trireme::base
