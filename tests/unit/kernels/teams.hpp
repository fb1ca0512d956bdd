// Functors of kernels/exec.hpp run by one thread, and by four of the host that make a team as a
// block's threads do.
#pragma once

#include <barrier>
#include <cstdint>
#include <thread>
#include <vector>

#include "kernels/exec.hpp"

namespace trireme::kernels {

inline constexpr int team_size = 4;

struct Threads {
  int mine;
  std::barrier<>* all;
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
  void barrier() const { all->arrive_and_wait(); }
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
  std::barrier<> barrier(team_size);
  double values[team_size] = {};
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < team_size; ++thread) {
    threads.emplace_back([&, thread] {
      for (int64_t team = 0; team < teams; ++team) {
        functor(Threads{thread, &barrier, values}, team);
        barrier.arrive_and_wait();
      }
    });
  }
}

}  // namespace trireme::kernels
