#include "trace/clock.hpp"

#include <fstream>
#include <string>

#include "trireme/base/stopwatch.hpp"

namespace trireme::trace {

namespace {

// Linux chooses `tsc` as clock source only when it runs at one rate and in step on all cores.
bool kernel_trusts_counter() {
#if defined(__x86_64__)
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string name;
  return static_cast<bool>(file >> name) && name == "tsc";
#else
  return false;
#endif
}

struct Reading {
  uint64_t ticks;
  double seconds;
};

// The clock read between two counter readings; the closest of a few, so that an interruption does
// not bend the scale.
Reading read_both() {
  Reading best{};
  uint64_t narrowest = UINT64_MAX;
  for (int i = 0; i < 5; ++i) {
    const uint64_t before = ticks();
    const double seconds = base::monotonic_seconds();
    const uint64_t after = ticks();
    if (after - before < narrowest) {
      narrowest = after - before;
      best = {before + (after - before) / 2, seconds};
    }
  }
  return best;
}

constexpr double shortest_baseline = 0.02;  // seconds; 100 ns of error in 20 ms is 5 ppm

}  // namespace

const bool counter_is_steady = kernel_trusts_counter();

namespace {
const Reading at_start = read_both();
}

TickScale TickScale::now() {
  TickScale scale;
  if (!counter_is_steady) return scale;  // ticks are nanoseconds of the same clock
  Reading reading = read_both();
  while (reading.seconds - at_start.seconds < shortest_baseline) reading = read_both();
  scale.ticks_zero_ = at_start.ticks;
  scale.seconds_zero_ = at_start.seconds;
  scale.seconds_per_tick_ =
      (reading.seconds - at_start.seconds) / static_cast<double>(reading.ticks - at_start.ticks);
  return scale;
}

}  // namespace trireme::trace
