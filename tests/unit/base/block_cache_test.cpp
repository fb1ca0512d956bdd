// Blocks that wait are taken again, and never more stands than was once in use.
#include "trireme/base/block_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace trireme::base {
namespace {

constexpr size_t mib = size_t{1} << 20;

TEST(BlockCache, TakesWhatWasGivenBack) {
  BlockCache cache;
  void* first = cache.take(3 * mib);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0U);
  std::memset(first, 1, 3 * mib);
  EXPECT_EQ(cache.in_use(), 3 * mib);
  EXPECT_TRUE(cache.give_back(first));
  EXPECT_EQ(cache.in_use(), 0U);
  EXPECT_EQ(cache.waiting(), 3 * mib);
  EXPECT_EQ(cache.take(3 * mib), first);
  EXPECT_EQ(cache.waiting(), 0U);
  EXPECT_TRUE(cache.give_back(first));
  cache.release();
  EXPECT_EQ(cache.waiting(), 0U);
}

TEST(BlockCache, KnowsItsOwnBlocks) {
  BlockCache cache;
  int elsewhere = 0;
  EXPECT_FALSE(cache.give_back(&elsewhere));
  void* block = cache.take(mib);
  EXPECT_FALSE(cache.give_back(static_cast<char*>(block) + 4096));
  EXPECT_TRUE(cache.give_back(block));
  EXPECT_FALSE(cache.give_back(block)) << "twice";
}

TEST(BlockCache, CutsAndLengthensBlocks) {
  BlockCache cache;
  void* block = cache.take(4 * mib);
  std::memset(block, 7, 4 * mib);
  cache.give_back(block);
  char* shorter = static_cast<char*>(cache.take(3 * mib));
  EXPECT_EQ(cache.in_use() + cache.waiting(), 3 * mib) << "the rest is the system's";
  EXPECT_EQ(shorter[0], 7) << "pages that were there";
  EXPECT_EQ(shorter[3 * mib - 1], 7);
  cache.give_back(shorter);
  char* longer = static_cast<char*>(cache.take(5 * mib));
  EXPECT_EQ(longer[0], 7);
  EXPECT_EQ(longer[5 * mib - 1], 0) << "a fresh page";
  EXPECT_EQ(cache.in_use() + cache.waiting(), 5 * mib);
  cache.give_back(longer);
}

TEST(BlockCache, LeavesALargeBlockToLargeRequests) {
  BlockCache cache;
  void* large = cache.take(64 * mib);
  cache.give_back(large);
  void* small = cache.take(mib);
  EXPECT_NE(small, large);
  EXPECT_LE(cache.in_use() + cache.waiting(), 64 * mib) << "no more than was in use";
  cache.give_back(small);
}

TEST(BlockCache, SaysWhereThereIsNoMore) {
  BlockCache cache;
  void* waits = cache.take(mib);
  cache.give_back(waits);
  EXPECT_EQ(cache.take(size_t{1} << 60), nullptr);
  EXPECT_EQ(cache.in_use(), 0U);
}

// Random sizes and lifetimes: no two blocks overlap, contents stay, and what stands is bounded by
// the most that was in use.
TEST(BlockCache, BoundsWhatStands) {
  BlockCache cache;
  std::mt19937 draw(1);
  std::vector<std::pair<unsigned char*, size_t>> live;
  size_t in_use = 0, most = 0;
  for (int step = 0; step < 4000; ++step) {
    if (live.empty() || (live.size() < 40 && draw() % 2 == 0)) {
      const size_t bytes = BlockCache::least + draw() % (2 * mib);
      auto* block = static_cast<unsigned char*>(cache.take(bytes));
      ASSERT_NE(block, nullptr);
      block[0] = block[bytes - 1] = static_cast<unsigned char>(step);
      for (const auto& [other, size] : live)
        ASSERT_TRUE(block + bytes <= other || other + size <= block);
      live.emplace_back(block, bytes);
    } else {
      const size_t i = draw() % live.size();
      const auto [block, bytes] = live[i];
      ASSERT_EQ(block[0], block[bytes - 1]);
      ASSERT_TRUE(cache.give_back(block));
      live[i] = live.back();
      live.pop_back();
    }
    in_use = cache.in_use();
    most = std::max(most, in_use);
    ASSERT_LE(in_use + cache.waiting(), most);
  }
  for (const auto& [block, bytes] : live) cache.give_back(block);
  EXPECT_EQ(cache.in_use(), 0U);
}

TEST(BlockCache, ServesThreads) {
  BlockCache cache;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&cache, t] {
      for (int step = 0; step < 500; ++step) {
        const size_t bytes = BlockCache::least + (t * 977 + static_cast<unsigned>(step)) % 9 * 4096;
        auto* block = static_cast<unsigned char*>(cache.take(bytes));
        block[0] = static_cast<unsigned char>(t);
        block[bytes - 1] = block[0];
        EXPECT_EQ(block[0], t);
        EXPECT_TRUE(cache.give_back(block));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache.in_use(), 0U);
}

}  // namespace
}  // namespace trireme::base
