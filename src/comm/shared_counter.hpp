// Counters in memory that ranks share, each written by one of them, and how the others wait for it.
// Private to comm.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "trireme/comm/comm.hpp"

namespace trireme::comm {

struct alignas(64) SharedCounter {
  bool reached(uint64_t wanted) const { return value.load(std::memory_order_acquire) >= wanted; }
  std::atomic<uint64_t> value;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Ranks may share a core with the one they wait for: yield, then sleep, and call `idle` between two
// sleeps. Any thread.
template <class Reached, class Idle>
void wait_for(const Reached& reached, const Idle& idle) {
  constexpr int yields_before_sleep = 256;
  for (int i = 0; !reached(); ++i) {
    if (i < yields_before_sleep) {
      sched_yield();
      continue;
    }
    idle();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

// Spins briefly before that. Gives the seconds that it took, 0 where spinning did. MPI is polled
// meanwhile, since the other side may wait for the progress of a message that this rank has begun
// to send.
double wait_for_counter(const CommView& comm, const SharedCounter& counter, uint64_t wanted);

// The same for waits of a fraction of a millisecond, many in a step: spins and yields for longer,
// and the caller's Collective tells of it.
void wait_for_message(const CommView& comm, const SharedCounter& counter, uint64_t wanted);

}  // namespace trireme::comm
