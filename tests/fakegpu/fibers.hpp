// Fibers for blocks.cpp: functions that stop in the middle and go on later, each on a stack of its
// own. Compiled without sanitizers, which are told of each change of stacks where they are part of
// the program.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>

namespace trireme::fakegpu {

class Fiber {
 public:
  Fiber();
  Fiber(const Fiber&) = delete;
  ~Fiber();  // whatever its function was doing: what lies on its stack is not destroyed

  void begin(const std::function<void()>&
                 function);  // lives until the fiber ended; the next resume() calls it
  void resume();             // until it stops or its function returns
  void stop();               // called by its function
  bool ended() const { return function_ == nullptr; }

 private:
  static void run(unsigned high, unsigned low);
  void arrive();
  std::byte* stack_;
  ucontext_t start_;
  bool started_ = false;
  void* place_[5] = {};   // where it goes on
  void* caller_[5] = {};  // where resume() goes on
  const std::function<void()>* function_ = nullptr;
  // Of AddressSanitizer: the frames that it put aside, and the caller's stack. Of ThreadSanitizer:
  // its names of both.
  void *frames_ = nullptr, *frames_of_caller_ = nullptr;
  const void* stack_of_caller_ = nullptr;
  size_t bytes_of_caller_ = 0;
  void *thread_ = nullptr, *thread_of_caller_ = nullptr;
};

}  // namespace trireme::fakegpu
