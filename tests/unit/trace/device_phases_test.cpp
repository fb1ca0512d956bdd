// Phases by a simulated clock of a device: what is counted, where it stands, and what becomes of a
// clock that fails.
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/stopwatch.hpp"
#include "trireme/trace/device_clock.hpp"
#include "trireme/trace/perfetto.hpp"
#include "trireme/trace/region.hpp"
#include "trireme/trace/table.hpp"

namespace trireme::trace {
namespace {

// The device comes to its marks when the test says so.
struct Script {
  int stamps = 0;
  bool fails = false;
  std::vector<double> passed;
};

class ScriptedClock final : public DeviceClock {
 public:
  explicit ScriptedClock(Script& script) : script_(script) {}
  bool stamp() noexcept override {
    ++script_.stamps;
    return !script_.fails;
  }
  std::vector<double> passed() noexcept override { return std::exchange(script_.passed, {}); }

 private:
  Script& script_;
};

class DevicePhases : public testing::Test {
 protected:
  void SetUp() override {
    clear();
    set_device_clock(std::make_unique<ScriptedClock>(script_));
  }
  void TearDown() override { set_device_clock(nullptr); }

  Script script_;
  double start_ = base::monotonic_seconds();
};

TEST_F(DevicePhases, AreCountedByNameAndPlace) {
  {
    const Region iteration{"iteration"};
    for (int i = 0; i < 2; ++i) {
      const Phase phase{"train"};
      const Region work{"not a phase"};
      const Phase inner{"report"};
    }
  }
  EXPECT_EQ(script_.stamps, 8);
  EXPECT_TRUE(device_phase_seconds().empty());
  script_.passed = {start_, start_ + 1, start_ + 3, start_ + 7};
  auto seconds = device_phase_seconds();
  EXPECT_NEAR(seconds["train"], 7, 1e-9);
  EXPECT_NEAR(seconds["report"], 2, 1e-9);
  reset_phases();
  script_.passed = {start_ + 7, start_ + 8, start_ + 9, start_ + 10};
  seconds = device_phase_seconds();
  EXPECT_NEAR(seconds["train"], 3, 1e-9);
  EXPECT_NEAR(seconds["report"], 1, 1e-9);

  const Table table =
      make_table(std::vector<Summary>{Summary::from_bytes(summarize(0, "trainer").to_bytes())});
  for (const TableRow& row : table.at(0).rows) {
    EXPECT_NEAR(row.device_seconds,
                row.path == "iteration/train"                      ? 10
                : row.path == "iteration/train/not a phase/report" ? 3
                                                                   : 0,
                1e-9)
        << row.path;
  }
  EXPECT_NE(to_text(table).find("device s"), std::string::npos);
  const std::string trace = trace_events({0, "trainer", "node", 0, start_});
  EXPECT_NE(trace.find("\"GPU\""), std::string::npos);
}

TEST_F(DevicePhases, OfAClockThatFailsAreNoLongerMarked) {
  script_.fails = true;
  for (int i = 0; i < 3; ++i) const Phase phase{"train"};
  EXPECT_EQ(script_.stamps, 1);
  EXPECT_TRUE(device_phase_seconds().empty());
}

TEST_F(DevicePhases, ThatBeganBeforeTheClockAreLeftOut) {
  {
    set_device_clock(nullptr);
    const Phase phase{"train"};
    set_device_clock(std::make_unique<ScriptedClock>(script_));
  }
  script_.passed = {start_ + 1};
  EXPECT_TRUE(device_phase_seconds().empty());
}

TEST_F(DevicePhases, WithoutOneTheTableSaysNothingOfThem) {
  set_device_clock(nullptr);
  { const Phase phase{"train"}; }
  EXPECT_EQ(to_text(make_table(std::vector<Summary>{summarize(0, "trainer")})).find("device"),
            std::string::npos);
}

}  // namespace
}  // namespace trireme::trace
