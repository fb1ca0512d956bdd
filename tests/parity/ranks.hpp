// The rows and parts of a golden case on the ranks of the test job: number i belongs to rank i mod
// N. Everything that returns a whole tensor is collective.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "support/world.hpp"

namespace trireme::test {

inline bool is_mine(int64_t i) { return i % world().size() == world().rank(); }

// The numbers below `count` that are this rank's.
inline std::vector<int64_t> dealt(int64_t count) {
  std::vector<int64_t> out;
  for (int64_t i = world().rank(); i < count; i += world().size()) out.push_back(i);
  return out;
}

// ppo::Sum over the test job.
inline void sum_over_ranks(std::span<double> values) {
  world().all_reduce(values.data(), static_cast<int64_t>(values.size()), comm::DType::f64,
                     comm::Op::sum);
}

// The sum of the ranks' tensors of one shape, f64.
at::Tensor summed(const at::Tensor& mine);
// `mine` holds the rows dealt(count), one after another in equal numbers of elements; returns all
// rows, f64 [count, ...].
at::Tensor rows_of_all(const at::Tensor& mine, int64_t count);

}  // namespace trireme::test
