// Sums in symmetric windows of NCCL: where a replica's GPUs have them, that they are the sums of
// other memory, and what NCCL's manual forbids is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <memory>
#include <string>

#include "comm/nccl_comm.hpp"
#include "fakegpu/device_lane.hpp"
#include "support/world.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/rank_sums.hpp"

namespace trireme::test {
namespace {

using testing::AllOf, testing::ElementsAre, testing::HasSubstr;

constexpr int64_t kSummed = 1000, kBytes = kSummed * int64_t{sizeof(float)};
constexpr size_t kWindow = size_t{2} << 20;

// rank + i, summed: ranks * i + 0 + 1 + ...
void fill(DeviceLane& lane, float* values) {
  lane.run({{values, kSummed, true}}, [=] {
    for (int i = 0; i < kSummed; ++i) values[i] = static_cast<float>(world().rank() + i);
  });
}
void expect_sums(DeviceLane& lane, const float* values) {
  lane.wait();
  const int ranks = world().size(), first = ranks * (ranks - 1) / 2;
  for (int i = 0; i < kSummed; ++i)
    ASSERT_EQ(values[i], static_cast<float>(first + ranks * i)) << i;
}

class Windows : public testing::Test {
 protected:
  void SetUp() override {
    if (world().size() == 1) GTEST_SKIP() << "one rank";
    own_device();
  }
};

TEST_F(Windows, TakeSumsOfOneGroupWherePeersSeeEachOther) {
  DeviceLane lane;
  const auto before = fakegpu::nccl_counts();
  {
    const auto sums = comm::make_rank_sums(world(), true);
    EXPECT_EQ(sums->kind(), "NCCL");
    auto* window = reinterpret_cast<float*>(sums->open_window(kBytes));
    ASSERT_NE(window, nullptr);
    EXPECT_EQ(fakegpu::device_bytes(), kWindow);
    EXPECT_THAT(sums->kind(), AllOf(HasSubstr("NCCL, "), HasSubstr("symmetric window of 2")));
    for (int i = 0; i < 3; ++i) {  // another product follows in the same memory
      fill(lane, window);
      sums->add_up(window, kSummed, comm::DType::f32);
      expect_sums(lane, window);
    }
    float* outside = lane.allocate(kSummed);
    fill(lane, outside);
    sums->add_up(outside, kSummed, comm::DType::f32);
    expect_sums(lane, outside);
    EXPECT_EQ(sums->counters().bytes, 4 * kBytes);
    EXPECT_EQ(sums->counters().window_bytes, 3 * kBytes);
  }
  EXPECT_EQ(fakegpu::nccl_counts().window_sums - before.window_sums, 3);
}

// Where one is missing on any rank, none has one, and sums are as before.
TEST_F(Windows, AreMissingWhereNcclHasNone) {
  DeviceLane lane;
  float* values = lane.allocate(kSummed);
  const auto reason = [&](const std::string& here, const std::string& elsewhere) {
    const size_t bytes = fakegpu::device_bytes();
    const auto sums = comm::make_rank_sums(world(), true);
    EXPECT_EQ(sums->open_window(kBytes), nullptr);
    EXPECT_EQ(fakegpu::device_bytes(), bytes);
    EXPECT_THAT(sums->kind(), AllOf(HasSubstr("NCCL, without a symmetric window ("),
                                    HasSubstr(world().rank() == 1 ? here : elsewhere)));
    fill(lane, values);
    sums->add_up(values, kSummed, comm::DType::f32);
    expect_sums(lane, values);
    EXPECT_EQ(sums->counters().window_bytes, 0);
  };
  const std::string other = "another rank has none", unseen = "do not see each other's memory";
  const bool second = world().rank() == 1;
  fakegpu::hide_peers(second);
  reason(unseen, unseen);
  fakegpu::hide_peers(false);
  for (const char* name : {"NCCL_WIN_ENABLE", "NCCL_CUMEM_ENABLE"}) {
    if (second) setenv(name, "0", 1);
    reason(std::string(name) + " is 0", other);
    unsetenv(name);
  }
  setenv("NCCL_HOSTID", second ? "a" : "b", 1);
  reason("on several nodes", "on several nodes");
  unsetenv("NCCL_HOSTID");
  if (second) fakegpu::set_faults({.version = 22602});
  reason("this NCCL has none", other);
  fakegpu::set_faults({.no_windows = true});
  reason("NCCL makes none", "NCCL makes none");
  fakegpu::set_faults({});
}

TEST_F(Windows, EndTheRunWhereNcclFails) {
  const auto sums = comm::make_rank_sums(world(), true);
  fakegpu::set_faults({.failing_window = true});
  EXPECT_THROW(sums->open_window(kBytes), InternalError);
  fakegpu::set_faults({});
}

// The fake itself: each of these is a hang or a wrong sum of NCCL's.
TEST_F(Windows, AreNotMadeOfOtherMemory) {
  const comm::NcclComm comm(world());
  DeviceLane lane;
  float* plain = lane.allocate(kBytes);
  ncclWindow_t window = nullptr;
  EXPECT_EQ(ncclCommWindowRegister(comm.handle(), plain, 4096, &window, NCCL_WIN_COLL_SYMMETRIC),
            ncclInvalidArgument);
  void* memory = nullptr;
  ASSERT_EQ(ncclMemAlloc(&memory, kWindow), ncclSuccess);
  EXPECT_EQ(ncclCommWindowRegister(comm.handle(), static_cast<std::byte*>(memory) + 256, 4096,
                                   &window, NCCL_WIN_COLL_SYMMETRIC),
            ncclInvalidArgument);
  EXPECT_EQ(
      ncclCommWindowRegister(comm.handle(), memory, 2 * kWindow, &window, NCCL_WIN_COLL_SYMMETRIC),
      ncclInvalidArgument);
  EXPECT_EQ(ncclMemFree(memory), ncclSuccess);
}

TEST_F(Windows, AreAlikeOnAllRanks) {
  for (const bool sizes : {true, false}) {
    void* memory = nullptr;
    ASSERT_EQ(ncclMemAlloc(&memory, kWindow), ncclSuccess);
    {
      comm::NcclComm comm(world());
      const size_t odd = world().rank() == 1 ? 4096 : 0;
      auto* first = static_cast<std::byte*>(memory) + (sizes ? 0 : odd);
      EXPECT_THROW(comm.open_window(first, static_cast<int64_t>(8192 + (sizes ? odd : 0))),
                   InternalError);
    }
    EXPECT_EQ(ncclMemFree(memory), ncclSuccess);
  }
}

TEST_F(Windows, AreGivenUpBeforeTheirMemoryAndTheirCommunicator) {
  void* memory = nullptr;
  ASSERT_EQ(ncclMemAlloc(&memory, kWindow), ncclSuccess);
  ncclWindow_t window = nullptr;
  ncclComm_t handle = nullptr;
  {
    const comm::NcclComm comm(world());
    handle = comm.handle();
    ASSERT_EQ(ncclCommWindowRegister(handle, memory, kWindow, &window, NCCL_WIN_COLL_SYMMETRIC),
              ncclSuccess);
    EXPECT_EQ(ncclMemFree(memory), ncclSuccess);
    EXPECT_THAT(fakegpu::take_findings(), ElementsAre(HasSubstr("memory is freed before")));
  }
  EXPECT_THAT(fakegpu::take_findings(), ElementsAre(HasSubstr("a communicator is destroyed")));
  EXPECT_NE(ncclCommWindowDeregister(handle, window), ncclSuccess);
  EXPECT_THAT(fakegpu::take_findings(), ElementsAre(HasSubstr("does not have")));
}

}  // namespace
}  // namespace trireme::test
