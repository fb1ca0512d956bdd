// How long a queue is, over time.
#pragma once

#include <cstdint>

#include "trireme/trace/region.hpp"

namespace trireme::trace {

// A counter of which the trace has each change, and nothing more.
class Gauge {
 public:
  explicit Gauge(Name name) : name_(name) {}
  void set(int64_t value) {
    if (value == shown_) return;
    shown_ = value;
    counter(name_, static_cast<double>(value));
  }

 private:
  Name name_;
  int64_t shown_ = 0;
};

}  // namespace trireme::trace
