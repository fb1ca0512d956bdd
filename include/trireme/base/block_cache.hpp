// Blocks of memory of many pages, apart from the heap. The heap puts small blocks that live on into
// the gaps that large ones leave, and then these fit nothing more of that size: over a pass it
// grows by a third of what is live. Here a freed block waits for the next request, which gets one
// of about its size, cut or lengthened with the pages that it has: nothing is faulted in anew but
// what a block grows by, and what waits and what is in use are together never more than was once in
// use.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <unordered_map>

namespace trireme::base {

// Any thread.
class BlockCache {
 public:
  BlockCache() = default;
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  // Requests from here on are blocks of their own; smaller ones are the heap's.
  static constexpr size_t least = size_t{256} << 10;

  // At least `bytes` from a page's beginning, not cleared; null where the system has no more.
  void* take(size_t bytes);
  // False: the block is not one of these.
  bool give_back(void* block);
  // Returns what waits to the system.
  void release();

  size_t in_use() const;   // bytes
  size_t waiting() const;  // bytes

 private:
  void* fitting(size_t bytes);
  void keep_below_most();
  void drop(std::multimap<size_t, void*>::iterator block);

  mutable std::mutex mutex_;
  std::unordered_map<void*, size_t> taken_;
  std::multimap<size_t, void*> waiting_;  // by size
  size_t in_use_ = 0, most_ = 0, waiting_bytes_ = 0;
};

}  // namespace trireme::base
