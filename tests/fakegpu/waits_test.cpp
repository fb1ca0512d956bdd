// The host's waits for a device, left out one at a time where it reads what the device has copied:
// the values must come out wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "comm/rank_sums_nccl.hpp"
#include "fakegpu/device_lane.hpp"
#include "trireme/comm/device_copies.hpp"

namespace trireme::test {
namespace {

constexpr int64_t kCount = 3000;
constexpr int kRounds = 5;  // a copy is late by a random time

struct Part {
  const char* name;
  int wait;                        // number of the host's wait within `name`
  bool among_ranks;                // one rank alone shows nothing
  int (*wrong)(DeviceLane& lane);  // values
};

// Ranks that share a device: its values pass through host memory, where they are added.
int sums(DeviceLane& lane) {
  one_device_for_all();
  const int ranks = world().size(), rank = world().rank();
  const auto sums = comm::make_device_sums(world(), true, nullptr);
  float* values = lane.allocate(kCount);
  int wrong = 0;
  for (int round = 0; round < kRounds; ++round) {
    lane.run({{values, kCount, true}},
             [=] { std::iota(values, values + kCount, static_cast<float>(100 * rank + round)); });
    const auto scope = lane.during(
        round == 0 ? "the first sum" : "a sum");  // the first one waits twice: it makes the buffer
    sums->add_up(values, kCount, comm::DType::f32);
    lane.run({{values, kCount, false}}, [=, &wrong] {
      for (int64_t i = 0; i < kCount; ++i)
        wrong += values[i] != static_cast<float>(ranks * (round + i) + 50 * ranks * (ranks - 1));
    });
  }
  lane.wait();
  return wrong;
}

// Rows of a tensor on their way into a bucket.
int copies(DeviceLane& lane) {
  own_device();
  constexpr int64_t rows = 30, columns = kCount / rows, taken = columns / 2;
  float* values = lane.allocate(kCount);
  std::vector<float> bucket(rows * taken);
  int wrong = 0;
  for (int round = 0; round < kRounds; ++round) {
    lane.run({{values, kCount, true}},
             [=] { std::iota(values, values + kCount, static_cast<float>(round)); });
    const auto bytes = static_cast<int64_t>(taken * sizeof(float));
    {
      const auto scope = lane.during("copies");
      comm::start_copy({reinterpret_cast<std::byte*>(bucket.data()),
                        reinterpret_cast<const std::byte*>(values), rows, bytes, bytes,
                        static_cast<int64_t>(columns * sizeof(float))});
      comm::finish_copies();
    }
    for (int64_t i = 0; i < rows * taken; ++i)
      wrong += bucket[static_cast<size_t>(i)] !=
               static_cast<float>(round + i / taken * columns + i % taken);
    lane.wait();  // the bucket is used again
  }
  return wrong;
}

class Waits : public testing::TestWithParam<Part> {};

TEST_P(Waits, AreNeeded) {
  const Part& part = GetParam();
  if (part.among_ranks && world().size() == 1) GTEST_SKIP() << "one rank";
  for (const bool left_out : {false, true}) {
    DeviceLane lane;
    fakegpu::set_delays(
        {.seed = static_cast<unsigned>(1 + world().rank()), .legacy_us = 2000, .others_us = 2000});
    if (left_out)
      fakegpu::leave_out(fakegpu::Edge{part.name, fakegpu::Edge::Call::synchronize, part.wait});
    const int wrong = world().max(part.wrong(lane));
    if (left_out) {
      EXPECT_GT(wrong, 0);
    } else {
      EXPECT_EQ(wrong, 0);
    }
    fakegpu::leave_out(std::nullopt);
  }
}

INSTANTIATE_TEST_SUITE_P(OfTheHost, Waits,
                         testing::Values(Part{"a sum", 0, true, sums},
                                         Part{"copies", 0, false, copies}),
                         [](const auto& value) {
                           return std::string(value.param.wrong == sums ? "sums" : "copies");
                         });

}  // namespace
}  // namespace trireme::test
