// What kernels/exec.hpp uses of a Kokkos with a CUDA space, in names and types alone: so nvcc reads
// the sources of a build with one where there is none. Kokkos runs the functors in templates of its
// own; start_one stands for them, so that device code is made of each.
#pragma once

#include <cstddef>

#define KOKKOS_FUNCTION __host__ __device__

namespace Kokkos {

struct Serial {};
struct Cuda {};
using DefaultHostExecutionSpace = Serial;
using DefaultExecutionSpace = Cuda;

struct Scratch {
  KOKKOS_FUNCTION void* get_shmem_aligned(size_t, size_t) const { return nullptr; }
};
template <class Value>
struct Sum {
  KOKKOS_FUNCTION explicit Sum(Value&) {}
};
struct Member {
  KOKKOS_FUNCTION int team_rank() const { return 0; }
  KOKKOS_FUNCTION int team_size() const { return 1; }
  KOKKOS_FUNCTION int league_rank() const { return 0; }
  KOKKOS_FUNCTION void team_barrier() const {}
  template <class Reducer>
  KOKKOS_FUNCTION void team_reduce(const Reducer&) const {}
  KOKKOS_FUNCTION Scratch team_scratch(int) const { return {}; }
};
struct PerTeam {
  explicit PerTeam(int) {}
};
template <class Space>
struct TeamPolicy {
  using member_type = Member;
  TeamPolicy(int, int) {}
  void set_scratch_size(int, PerTeam) {}
};
template <class Type>
struct IndexType {};
template <class... Traits>
struct RangePolicy {
  RangePolicy(long, long) {}
};

template <class Functor>
__global__ void start_one(Functor functor) {
  functor(Member{});
}
template <class Functor>
void parallel_for(const char*, const TeamPolicy<Cuda>&, const Functor& functor) {
  start_one<<<1, 1>>>(functor);
}
template <class Functor>
void parallel_for(const char*, const TeamPolicy<Serial>&, const Functor&) {}
template <class Policy, class Functor, class Value>
void parallel_reduce(const char*, const Policy&, const Functor&, Value&) {}
inline bool is_initialized() { return true; }
inline void fence() {}

}  // namespace Kokkos
