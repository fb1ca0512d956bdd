#include "trireme/base/heap.hpp"

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "trireme/base/files.hpp"

namespace trireme::base {
namespace {

// Calls between two returns: a pass faults its memory in again after each.
constexpr int64_t calls_between_returns = 8;

struct Goal {
  std::atomic<int64_t> bytes{0}, calls{0};
};
Goal& goal() {
  static Goal one;
  return one;
}

// 0 where it cannot be read.
int64_t resident_bytes() {
  const FileDescriptor file(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  char text[128] = {};
  if (!file.valid() || ::read(file.get(), text, sizeof text - 1) <= 0) return 0;
  long long total = 0, resident = 0;
  if (std::sscanf(text, "%lld %lld", &total, &resident) != 2) return 0;
  return resident * ::sysconf(_SC_PAGESIZE);
}

}  // namespace

// Never destroyed: libraries free tensors as the process ends.
BlockCache& tensor_blocks() {
  static BlockCache& one = *new BlockCache;
  return one;
}

void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 4 << 20);
  mallopt(M_TRIM_THRESHOLD, 2147483647);
  mallopt(M_TOP_PAD, 64 << 20);
}

void bound_product_caches() {
  const std::string products = std::to_string(cached_products);
  ::setenv("LRU_CACHE_CAPACITY", products.c_str(), 0);   // LibTorch's (ideep)
  ::setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16", 0);  // under it
}

void set_resident_goal(int64_t bytes) {
  goal().bytes = bytes;
  goal().calls = calls_between_returns;
}

bool return_freed_memory_near_goal() {
  Goal& g = goal();
  const int64_t bytes = g.bytes;
  if (bytes == 0 || ++g.calls < calls_between_returns) return false;
  if (resident_bytes() < bytes - bytes / 50) return false;
  g.calls = 0;
  tensor_blocks().release();
  malloc_trim(0);
  return true;
}

}  // namespace trireme::base
