// Which device a rank has, and what every test must leave behind.
#include <gmock/gmock.h>

#include <thread>

#include "fakegpu/device_lane.hpp"
#include "support/world.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/base/text.hpp"
#include "trireme/comm/device_exchange.hpp"

namespace trireme::test {

void own_device() {
  comm::enable_device_exchange();
  fakegpu::set_bus_id(base::text("0000:0", world().rank(), ":00.0"));
}
void one_device_for_all() {
  comm::enable_device_exchange();
  fakegpu::set_bus_id("0000:01:00.0");
}

namespace {

// Everything given back, and nothing without an order, in each test.
int alive() {
  const auto counts = fakegpu::nccl_counts();
  return counts.made - counts.destroyed - counts.aborted;
}

class LeavesNothing : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override {
    fakegpu::take_findings();
    fakegpu::leave_out(std::nullopt);
    fakegpu::set_delays({.seed = static_cast<unsigned>(1 + world().rank())});
  }
  void OnTestEnd(const testing::TestInfo&) override {
    EXPECT_THAT(fakegpu::take_findings(), testing::IsEmpty());
    EXPECT_EQ(fakegpu::device_bytes(), 0u);
    EXPECT_EQ(fakegpu::locked_ranges(), 0u);
    // Helpers that were left behind free what they have made at last.
    const base::Stopwatch watch;
    while (alive() > 0 && watch.seconds() < 20) std::this_thread::yield();
    EXPECT_EQ(alive(), 0);
  }
};
const bool listens = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new LeavesNothing);
  return true;
}();

}  // namespace
}  // namespace trireme::test
