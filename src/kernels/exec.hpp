// Where a kernel runs. A kernel is a functor over raw pointers, `template <class Team>
// TRIREME_KERNEL void operator()(const Team& team, int64_t index) const`, that knows neither Kokkos
// nor CUDA. A team is one or more threads that work on one index together:
//
//   team.rank(), team.size()   this thread among them
//   team.each(n, f)            f(i) for i = 0 .. n - 1, each by one thread
//   team.sum(value)            the sum of all threads' values, to all of them; every thread calls
//   it team.barrier()             what threads wrote before it the others may read after it; every
//   thread calls it team.shared<S>()           one S for all threads, near them; called once, by
//   each of them. The functor says so: `using Shared = S`, without
//                              initialisers. It holds values of an earlier index, which may still
//                              be read before the first barrier
//
// Here they are dispatched to Kokkos: its host space, and its device space where the site's Kokkos
// has one. exec_cuda.cuh is the launcher for a Kokkos without. Pointers stay valid until the call
// returns (host), or until the device has done it.
#pragma once

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <limits>
#include <type_traits>

#include "trireme/base/error.hpp"
#include "trireme/base/kernel_function.hpp"

namespace trireme::kernels::exec {

using Host = Kokkos::DefaultHostExecutionSpace;

struct OneThread {
  int rank() const { return 0; }
  int size() const { return 1; }
  template <class Body>
  void each(int64_t n, const Body& body) const {
    for (int64_t i = 0; i < n; ++i) body(i);
  }
  template <class Value>
  Value sum(Value value) const {
    return value;
  }
  void barrier() const {}
  template <class Shared>
  Shared& shared() const {
    static thread_local Shared memory;
    return memory;
  }
};

template <class Member>
struct KokkosTeam {
  const Member& member;
  KOKKOS_FUNCTION int rank() const { return member.team_rank(); }
  KOKKOS_FUNCTION int size() const { return member.team_size(); }
  template <class Body>
  KOKKOS_FUNCTION void each(int64_t n, const Body& body) const {
    for (int64_t i = rank(); i < n; i += size()) body(i);
  }
  template <class Value>
  KOKKOS_FUNCTION Value sum(Value value) const {
    member.team_reduce(Kokkos::Sum<Value>(value));
    return value;
  }
  KOKKOS_FUNCTION void barrier() const { member.team_barrier(); }
  template <class Shared>
  KOKKOS_FUNCTION Shared& shared() const {
    return *static_cast<Shared*>(
        member.team_scratch(0).get_shmem_aligned(sizeof(Shared), alignof(Shared)));
  }
};

template <class Space, class Functor>
struct TeamCall {
  Functor functor;
  using member_type = typename Kokkos::TeamPolicy<Space>::member_type;
  KOKKOS_FUNCTION void operator()(const member_type& member) const {
    functor(KokkosTeam<member_type>{member}, static_cast<int64_t>(member.league_rank()));
  }
};

// Bytes that Kokkos is asked for; it may give them any place.
template <class Functor, class = void>
inline constexpr int shared_bytes = 0;
template <class Functor>
inline constexpr int shared_bytes<Functor, std::void_t<typename Functor::Shared>> =
    sizeof(typename Functor::Shared) + alignof(typename Functor::Shared);

// functor(team, i) for i = 0 .. teams - 1, by `threads` threads each. Does not wait for a device.
template <class Space, class Functor>
void start_teams(const char* name, int64_t teams, int threads, const Functor& functor) {
  VALIDATE(teams <= std::numeric_limits<int>::max(), ExitCode::internal, name, ": ", teams,
           " teams are more than Kokkos takes");
  Kokkos::TeamPolicy<Space> policy(static_cast<int>(teams), threads);
  if constexpr (shared_bytes < Functor >> 0)
    policy.set_scratch_size(0, Kokkos::PerTeam(shared_bytes<Functor>));
  Kokkos::parallel_for(name, policy, TeamCall<Space, Functor>{functor});
}

// On the host, a thread per team. Before kernels::Runtime exists (tools, tests) it is a plain loop.
template <class Functor>
void for_each_team(const char* name, int64_t teams, const Functor& functor) {
  if (!Kokkos::is_initialized()) {
    for (int64_t team = 0; team < teams; ++team) functor(OneThread{}, team);
    return;
  }
  start_teams<Host>(name, teams, 1, functor);
  Kokkos::fence();
}

// The sum of functor(i, sum) over i = 0 .. n - 1, where the functor adds to `sum`.
template <class Value, class Functor>
Value reduce(const char* name, int64_t n, const Functor& functor) {
  Value total{};
  if (!Kokkos::is_initialized()) {
    for (int64_t i = 0; i < n; ++i) functor(i, total);
    return total;
  }
  using Policy = Kokkos::RangePolicy<Host, Kokkos::IndexType<int64_t>>;
  Kokkos::parallel_reduce(name, Policy(0, n), functor, total);
  return total;
}

}  // namespace trireme::kernels::exec
