// Time in ticks: the processor's time-stamp counter where the kernel trusts it, else nanoseconds of
// the monotonic clock.
#pragma once

#include <chrono>
#include <cstdint>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace trireme::trace {

extern const bool counter_is_steady;  // set before main

inline uint64_t ticks() {
#if defined(__x86_64__)
  if (counter_is_steady) return __rdtsc();
#endif
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

// Maps ticks to monotonic_seconds() by two readings of both clocks, at start and now.
class TickScale {
 public:
  static TickScale now();
  double seconds(uint64_t at) const {
    return seconds_zero_ + duration(static_cast<int64_t>(at - ticks_zero_));
  }
  uint64_t ticks(double at) const {
    return ticks_zero_ +
           static_cast<uint64_t>(static_cast<int64_t>((at - seconds_zero_) / seconds_per_tick_));
  }
  double duration(int64_t difference) const {
    return static_cast<double>(difference) * seconds_per_tick_;
  }
  double duration(uint64_t difference) const {
    return static_cast<double>(difference) * seconds_per_tick_;
  }

 private:
  uint64_t ticks_zero_ = 0;
  double seconds_zero_ = 0;
  double seconds_per_tick_ = 1e-9;
};

}  // namespace trireme::trace
