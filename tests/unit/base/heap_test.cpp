// Freed memory stays with the process until it comes near its goal.
#include "trireme/base/heap.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include <unistd.h>

namespace trireme::base {
namespace {

int64_t resident() {
  int64_t total = 0, pages = 0;
  std::ifstream("/proc/self/statm") >> total >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

// Touches 128 MiB in blocks and frees them below one that lives on: their gap cannot be cut off.
std::unique_ptr<char[]> leave_a_gap() {
  constexpr size_t block = size_t{1} << 20;
  std::vector<std::unique_ptr<char[]>> blocks(128);
  for (auto& one : blocks) {
    one = std::make_unique<char[]>(block);
    std::memset(one.get(), 1, block);
  }
  return std::make_unique<char[]>(64);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Heap, GivesFreedMemoryBackNearTheGoal) {
  keep_freed_memory();
  const auto kept = leave_a_gap();
  const int64_t full = resident();

  set_resident_goal(0);
  EXPECT_FALSE(return_freed_memory_near_goal());
  set_resident_goal(2 * full);
  EXPECT_FALSE(return_freed_memory_near_goal());
  EXPECT_GT(resident(), full - (int64_t{16} << 20));

  set_resident_goal(full);
  EXPECT_TRUE(return_freed_memory_near_goal());
  EXPECT_LT(resident(), full - (int64_t{100} << 20));
  set_resident_goal(0);
}

// A plan that is too small must not make every pass fault its memory in again.
TEST(Heap, ReturnsMemoryOnceInSomePasses) {
  set_resident_goal(1);
  int returns = 0;
  for (int pass = 0; pass < 16; ++pass) {
    tensor_blocks().give_back(tensor_blocks().take(BlockCache::least));
    const bool returned = return_freed_memory_near_goal();
    EXPECT_EQ(tensor_blocks().waiting(), returned ? 0 : BlockCache::least);
    returns += returned ? 1 : 0;
  }
  EXPECT_EQ(returns, 2);
  set_resident_goal(0);
}
#endif

}  // namespace
}  // namespace trireme::base
