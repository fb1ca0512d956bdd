// Monotonic time; never wall-clock time, which can jump.
#pragma once

#include <chrono>

namespace trireme::base {

// Seconds on the monotonic clock of this node.
inline double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Stopwatch {
 public:
  Stopwatch() : start_(monotonic_seconds()) {}
  double seconds() const { return monotonic_seconds() - start_; }
  void restart() { start_ = monotonic_seconds(); }

 private:
  double start_;
};

}  // namespace trireme::base
