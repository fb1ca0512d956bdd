// What becomes of an exchange between GPUs when CUDA or NCCL say no: within one process;
// drills_test.py has whole jobs.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/shard_exchange_parts.hpp"
#include "fakegpu/device_lane.hpp"
#include "trireme/base/error.hpp"

namespace trireme::test {
namespace {

ExitCode code_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) { return error.code(); }
  return ExitCode::done;
}

// NCCL reports a link that is gone: the watchdog's question sees it, the next call throws, and on
// the way out all communicators are aborted, before a stream is waited for on which collectives
// never end.
TEST(NcclFailures, AnAsynchronousErrorAbortsAll) {
  own_device();
  DeviceLane lane;
  const auto before = fakegpu::nccl_counts();
  std::string heard_by_watchdog, thrown;
  try {
    ExchangeUser resident(lane, five_stages(world().size()), lane.options());
    ExchangeUser user(lane, five_stages(world().size()), lane.options());
    fakegpu::set_faults({.error_at_call = 3});  // the second parameter of stage 1
    user.gather(0);
    EXPECT_FALSE(comm::device_support().find_trouble());
    try {
      user.gather(1);
    } catch (const UserError&) {  // so fast has it failed
    }
    while (heard_by_watchdog.empty())
      heard_by_watchdog = comm::device_support().find_trouble().value_or("");
    user->release(0);
    user.gather(2);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::internal);
    thrown = error.what();
  }
  fakegpu::set_faults({});
  EXPECT_NE(heard_by_watchdog.find("a link to a peer is gone"), std::string::npos)
      << heard_by_watchdog;
  EXPECT_NE(thrown.find("a link to a peer is gone"), std::string::npos) << thrown;
  EXPECT_EQ(fakegpu::nccl_counts().aborted - before.aborted, 2);
  EXPECT_EQ(fakegpu::nccl_counts().destroyed, before.destroyed);
  EXPECT_FALSE(comm::device_support().find_trouble());
}

// An exchange whose communicator cannot be made in time.
void expect_deadline(DeviceLane& lane) {
  comm::device_support().patience = 0.2;
  fakegpu::set_faults({.endless_init = true});
  EXPECT_EQ(code_of([&] { ExchangeUser(lane, five_stages(world().size()), lane.options()); }),
            ExitCode::internal);
  EXPECT_TRUE(comm::device_support().call_left_behind);
  fakegpu::set_faults({});
  comm::device_support().patience = 0;
}

void expect_service(DeviceLane& lane) {
  ExchangeUser user(lane, five_stages(world().size()), lane.options());
  user.write(1);
  user.forward(1);
  EXPECT_EQ(user.wrong(), 0);
}

// The ranks look for each other in vain.
TEST(NcclFailures, AnInitThatNeverEndsHasADeadline) {
  own_device();
  DeviceLane lane;
  expect_deadline(lane);
  expect_service(lane);
}

// The same where a communicator is split off from another one, which is of no use any more.
TEST(NcclFailures, ASplitThatNeverEndsHasADeadline) {
  own_device();
  DeviceLane lane;
  {
    ExchangeUser resident(lane, five_stages(world().size()), lane.options());
    expect_deadline(lane);
  }
  expect_service(lane);
}

TEST(NcclCommunicators, OfTheSameRanksAreSplitOffFromEachOther) {
  own_device();
  DeviceLane lane;
  const auto before = fakegpu::nccl_counts();
  auto first = std::make_unique<ExchangeUser>(lane, five_stages(world().size()), lane.options());
  EXPECT_EQ(fakegpu::nccl_counts().split - before.split, 0);
  ExchangeUser second(lane, five_stages(world().size()), lane.options());
  first->write(1);
  first->forward(1);  // and is not waited for
  ExchangeUser third(lane, five_stages(world().size()), lane.options());
  EXPECT_EQ(fakegpu::nccl_counts().made - before.made, 3);
  EXPECT_EQ(fakegpu::nccl_counts().split - before.split, 2);
  EXPECT_EQ(first->wrong(), 0);
  first.reset();
  for (ExchangeUser* user : {&second, &third}) {
    user->write(1);
    user->forward(1);
    EXPECT_EQ(user->wrong(), 0);
  }
}

// Whatever allocation is the one too many, it is called by its name, and nothing stays allocated
// (checked after each test).
TEST(NcclFailures, NoMemoryIsNoInternalError) {
  own_device();
  DeviceLane lane;
  size_t whole = 0;
  {
    const ExchangeUser user(lane, five_stages(world().size()), lane.options());
    whole = fakegpu::device_bytes();
  }
  for (const size_t tenths : {0u, 2u, 5u, 9u}) {
    fakegpu::set_memory(whole * tenths / 10);
    EXPECT_EQ(code_of([&] { ExchangeUser(lane, five_stages(world().size()), lane.options()); }),
              ExitCode::out_of_memory)
        << tenths;
  }
  fakegpu::set_memory(size_t{1} << 30);
}

TEST(NcclFailures, MemoryOfTheHostIsRefused) {
  own_device();
  DeviceLane lane;
  ExchangeUser user(lane, five_stages(world().size()), lane.options());
  user.fill_gradients(0, 0);
  user.reduce(0);
  std::vector<float> host(700);
  EXPECT_EQ(code_of([&] { user->finish_reduce(0, {host.data()}); }), ExitCode::internal);
}

}  // namespace
}  // namespace trireme::test
