// The exchanges between GPUs, the sources of the GPU variant as they are, on a fake run time:
// each rank with a device of its own (NCCL), and all on one (staged through host memory). What was
// asked of the run time in no order is a failure, whatever came out.
#include <gmock/gmock.h>

#include <memory>
#include <string>

#include "fakegpu/device_lane.hpp"
#include "support/exchange_cases.hpp"
#include "trireme/comm/pinned_buffer.hpp"
#include "trireme/trace/device_wait.hpp"

namespace trireme::test {
namespace {

// `prepare` says which device the rank has.
Place place(const std::string& name, void (*prepare)(), bool own_stream) {
  return {.name = name,
          .make =
              [=] {
                prepare();
                return std::make_unique<DeviceLane>(own_stream);
              },
          .rounds_sums = prepare == own_device};
}
const Place nccl = place("nccl", own_device, false),
            nccl_on_a_stream = place("nccl_on_a_stream", own_device, true);
// A single rank has its device for itself.
const Place staged = place("staged", one_device_for_all, false),
            staged_on_a_stream = place("staged_on_a_stream", one_device_for_all, true);

INSTANTIATE_TEST_SUITE_P(Devices, Exchange,
                         testing::Values(nccl, nccl_on_a_stream, staged, staged_on_a_stream),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Devices, RingExchange, testing::Values(nccl, nccl_on_a_stream), name_of);

TEST(DeviceExchange, IsNcclBetweenDevicesAndStagedOnOne) {
  DeviceLane lane;
  own_device();
  EXPECT_EQ((*ExchangeUser(lane, five_stages(world().size()), lane.options())).kind(), "NCCL ring");
  one_device_for_all();
  EXPECT_EQ((*ExchangeUser(lane, five_stages(world().size()), lane.options())).kind(),
            world().size() == 1 ? "NCCL ring" : "MPI ring staged through host memory");
}

// bf16 weights are bytes to an exchange; one stage that many mailboxes of the fake NCCL carry.
TEST(DeviceExchange, GathersHalfPrecision) {
  own_device();
  DeviceLane lane;
  auto options = lane.options();
  options.weight_type = comm::DType::bf16;
  constexpr int64_t per_rank = 100001;
  const auto exchange =
      comm::make_shard_exchange(world(), one_stage(world().size(), per_rank), options);
  const auto value = [](int rank, int64_t i) {
    return static_cast<uint16_t>(rank * 1000 + i % 997);
  };
  exchange->begin_update();
  auto* own = reinterpret_cast<uint16_t*>(exchange->own_slice(0));
  ASSERT_EQ(fakegpu::launch(nullptr, {fakegpu::writes(own, 2 * per_rank)},
                            [=] {
                              for (int64_t i = 0; i < per_rank; ++i)
                                own[i] = value(world().rank(), i);
                            }),
            cudaSuccess);
  exchange->end_update();
  exchange->gather(0);
  const auto* whole = reinterpret_cast<const uint16_t*>(exchange->gathered(0).front());
  int wrong = 0;
  ASSERT_EQ(
      fakegpu::launch(nullptr,
                      {fakegpu::reads(whole, 2 * per_rank * static_cast<size_t>(world().size()))},
                      [&] {
                        for (int64_t i = 0; i < per_rank * world().size(); ++i)
                          wrong += whole[i] != value(static_cast<int>(i / per_rank), i % per_rank);
                      }),
      cudaSuccess);
  cudaStreamSynchronize(nullptr);
  EXPECT_EQ(wrong, 0);
  exchange->release(0);
}

// No clock of the host sees what a device waits for: the exchange asks events around each wait,
// later.
TEST(DeviceExchange, TellsHowLongComputeStoodAtMessages) {
  own_device();
  DeviceLane lane;
  fakegpu::set_delays(
      {.seed = static_cast<unsigned>(1 + world().rank()), .legacy_us = 0, .others_us = 3000});
  const double before = trace::device_wait();
  ExchangeUser user(lane, five_stages(world().size()), lane.options());
  user.write(1);
  EXPECT_EQ(user->counters().wait_seconds, 0);
  user.forward(1);
  user.backward(1);
  lane.wait();
  user.forward(1);  // asks of those before
  EXPECT_EQ(user.wrong(), 0);
  EXPECT_GT(user->counters().wait_seconds, 0);
  EXPECT_NEAR(trace::device_wait() - before, user->counters().wait_seconds, 1e-9);
}

TEST(PinnedBuffer, LocksItsPagesWhereThereIsADevice) {
  own_device();
  const comm::PinnedBuffer buffer(1 << 20, "testing", "use less");
  EXPECT_EQ(fakegpu::locked_ranges(), 1u);
}

// The program destroys a model while the device still computes with its weights.
TEST(DeviceExchange, FreesNothingThatIsInUse) {
  own_device();
  DeviceLane lane;
  fakegpu::set_delays({.legacy_us = 5000, .others_us = 100});
  {
    ExchangeUser user(lane, five_stages(world().size()), lane.options());
    user.write(1);
    user.gather(0);
    user->gathered(0);
    user.gather(1);
    lane.run({{user->gathered(1).front(), 13, false}}, [] {});
  }
}

}  // namespace
}  // namespace trireme::test
