// Where a kernel runs. A kernel is a functor over raw pointers, marked TRIREME_KERNEL, that knows neither Kokkos nor CUDA;
// here it is dispatched to Kokkos' host backend. Pointers given to these functions must be host memory and stay valid until they
// return.
#pragma once

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <limits>

#include "kernels/functor.hpp"
#include "trireme/base/error.hpp"

namespace trireme::kernels::exec {

using Host = Kokkos::DefaultHostExecutionSpace;

namespace detail {
template <class Functor>
struct TeamCall {
  Functor functor;
  using member_type = typename Kokkos::TeamPolicy<Host>::member_type;
  void operator()(const member_type& team) const {
    Kokkos::single(Kokkos::PerTeam(team), [&] { functor(static_cast<int64_t>(team.league_rank())); });
  }
};
}  // namespace detail

// functor(team) for team = 0 .. teams - 1, one team each. Before kernels::Runtime exists (tools, tests) it is a plain loop.
template <class Functor>
void for_each_team(const char* name, int64_t teams, const Functor& functor) {
  if (!Kokkos::is_initialized()) {
    for (int64_t team = 0; team < teams; ++team) functor(team);
    return;
  }
  VALIDATE(teams <= std::numeric_limits<int>::max(), ExitCode::internal, name, ": ", teams, " teams are more than Kokkos takes");
  Kokkos::parallel_for(name, Kokkos::TeamPolicy<Host>(static_cast<int>(teams), 1), detail::TeamCall<Functor>{functor});
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
