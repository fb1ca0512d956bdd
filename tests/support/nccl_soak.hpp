// Sums between GPUs while a watchdog asks their communicators all the time: on the fake GPU under
// ThreadSanitizer, and on GPUs.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "support/world.hpp"
#include "trireme/comm/rank_sums.hpp"
#include "trireme/comm/watchdog.hpp"

namespace trireme::test {

// Memory of the device, and what is done with it in the order of its stream.
struct SoakedValues {
  float* data;
  int64_t count;
  std::function<void(float value)> fill;
  std::function<float()> first;  // waits
};

// Communicators are also made (split off) and freed meanwhile, `makings` times, with `sums` sums on
// each.
inline void nccl_soak(const SoakedValues& values, int makings, int sums) {
  const comm::Watchdog watchdog(world(), {.deadlines = {},
                                          .report_folder = {},
                                          .thread_multiple = false,
                                          .look_every = 1e-3,
                                          .look = [] { return comm::LifeSign{}; },
                                          .activity = [] { return uint64_t{0}; }});
  const auto resident = comm::make_rank_sums(world(), true);
  const auto ranks = static_cast<float>(world().size());
  for (int making = 0; making < makings; ++making) {
    const auto other = comm::make_rank_sums(world(), true);
    ASSERT_EQ(other->kind(), "NCCL");
    for (int i = 0; i < sums; ++i) {
      values.fill(static_cast<float>(making + i));
      resident->add_up(values.data, values.count, comm::DType::f32);
      other->add_up(values.data, values.count, comm::DType::f32);
    }
    ASSERT_EQ(values.first(), ranks * ranks * static_cast<float>(making + sums - 1)) << making;
  }
}

}  // namespace trireme::test
