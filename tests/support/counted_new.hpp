// Allocations of a program that is built with counted_new.cpp, counted by its operators new and
// delete.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace trireme::test {

extern std::atomic<int64_t> allocated_bytes;  // since the start
extern std::atomic<int64_t> allocations;
extern std::atomic<int64_t> live_bytes;  // not freed yet, as malloc rounds them
extern std::atomic<int64_t> peak_bytes;  // the most of them since somebody set it back

// What building something takes, for one thread.
struct Footprint {
  int64_t kept = 0;  // by what was built
  int64_t peak = 0;  // while it was built
};
template <class Build>
Footprint footprint_of(const Build& build) {
  const int64_t before = live_bytes;
  peak_bytes = before;
  const auto built = build();
  return {live_bytes - before, peak_bytes - before};
}

}  // namespace trireme::test
