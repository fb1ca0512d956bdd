#include "support/counted_new.hpp"

#include <malloc.h>

#include <cstdlib>
#include <new>

namespace trireme::test {

std::atomic<int64_t> allocated_bytes{0}, allocations{0}, live_bytes{0}, peak_bytes{0};

namespace {

void* counted(size_t bytes) {
  void* memory = std::malloc(bytes ? bytes : 1);
  if (!memory) throw std::bad_alloc();
  allocated_bytes += static_cast<int64_t>(bytes);
  ++allocations;
  const int64_t live = live_bytes += static_cast<int64_t>(malloc_usable_size(memory));
  for (int64_t peak = peak_bytes; live > peak && !peak_bytes.compare_exchange_weak(peak, live);) {}
  return memory;
}

void freed(void* memory) noexcept {
  live_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace
}  // namespace trireme::test

void* operator new(size_t bytes) { return trireme::test::counted(bytes); }
void* operator new[](size_t bytes) { return trireme::test::counted(bytes); }
// The standard one calls the first, a sanitizer's does not.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return trireme::test::counted(bytes);
  } catch (const std::bad_alloc&) { return nullptr; }
}
void operator delete(void* memory) noexcept { trireme::test::freed(memory); }
void operator delete[](void* memory) noexcept { trireme::test::freed(memory); }
void operator delete(void* memory, size_t) noexcept { trireme::test::freed(memory); }
void operator delete[](void* memory, size_t) noexcept { trireme::test::freed(memory); }
