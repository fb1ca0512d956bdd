// Functors of kernels/exec.hpp run by one thread, and by four that make a team as a block's threads
// do. The four are fibers: a barrier costs a jump, however busy the machine is, and one that is
// missing is found each time, since each fiber runs until it reaches one.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "fakegpu/fibers.hpp"
#include "kernels/exec.hpp"

namespace trireme::kernels {

inline constexpr int team_size = 4;

struct Threads {
  int mine;
  fakegpu::Fiber* fiber;
  double* values;

  int rank() const { return mine; }
  int size() const { return team_size; }
  template <class Body>
  void each(int64_t n, const Body& body) const {
    for (int64_t i = mine; i < n; i += team_size) body(i);
  }
  template <class Value>
  Value sum(Value value) const {
    values[mine] = static_cast<double>(value);
    barrier();
    double total = 0;
    for (int thread = 0; thread < team_size; ++thread) total += values[thread];
    barrier();
    return static_cast<Value>(total);
  }
  void barrier() const { fiber->stop(); }
  template <class Shared>
  Shared& shared() const {
    static Shared memory;
    return memory;
  }
};

template <class Functor>
void by_one(int64_t teams, const Functor& functor) {
  for (int64_t team = 0; team < teams; ++team) functor(exec::OneThread{}, team);
}

template <class Functor>
void by_four(int64_t teams, const Functor& functor) {
  double values[team_size] = {};
  fakegpu::Fiber fibers[team_size];
  std::vector<std::function<void()>> threads;
  for (int thread = 0; thread < team_size; ++thread) {
    threads.emplace_back([&, thread] {
      for (int64_t team = 0; team < teams; ++team) {
        functor(Threads{thread, &fibers[thread], values}, team);
        fibers[thread].stop();
      }
    });
  }
  for (int thread = 0; thread < team_size; ++thread)
    fibers[thread].begin(threads[static_cast<size_t>(thread)]);
  while (!fibers[0].ended()) {  // all have the same number of barriers
    for (fakegpu::Fiber& fiber : fibers) fiber.resume();
  }
}

}  // namespace trireme::kernels
