// How a rank waits for others without taking a core from them.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace trireme::comm {

// Looks until `done`; sleeps between looks, up to 1 ms. `busy` works between two looks; while it
// answers true, there is no sleep.
template <class Done, class Busy>
void sleep_until(Done done, Busy busy) {
  constexpr int yields_before_sleep = 32;
  auto nap = std::chrono::microseconds(20);
  for (int looks = 0; !done(); ++looks) {
    if (busy()) {
      nap = std::chrono::microseconds(20);
    } else if (looks < yields_before_sleep) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(nap);
      nap = std::min(nap * 2, std::chrono::microseconds(1000));
    }
  }
}

}  // namespace trireme::comm
