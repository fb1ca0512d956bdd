// The main thread's phases as the device came through them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "trireme/trace/device_clock.hpp"

namespace trireme::trace {

class ThreadRecord;

// By the main thread only.
class DevicePhases {
 public:
  void set(std::unique_ptr<DeviceClock> clock);
  bool on() const { return clock_ != nullptr; }
  // Around a phase of `main` that is its current node.
  void begin(ThreadRecord& main, const char* name, int64_t argument);
  void end(ThreadRecord& main);
  // Takes over what the device has come to.
  void collect(ThreadRecord& main);

 private:
  struct Mark {
    const char* name;  // null: the end of the last one that has not ended
    int64_t argument;
    int32_t node;  // of the main thread
  };
  struct Open {
    Mark mark;
    double since;
  };
  void stamp(ThreadRecord& main, const Mark& mark);

  std::unique_ptr<DeviceClock> clock_;
  std::deque<Mark> marks_;  // that the device has not come to
  std::vector<Open> open_;  // whose begin it has come to
};

}  // namespace trireme::trace
