// Every event of the exchange between GPUs, left out one at a time: the fake run time must see
// that operations have lost their order. How many values that made wrong, when one side or the
// other is slow, is printed beside it.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "fakegpu/device_lane.hpp"
#include "trireme/base/text.hpp"

namespace trireme::test {
namespace {

using Call = fakegpu::Edge::Call;

// Two models that take turns in one ring, with transfers that nobody waits for where the program
// has such.
int run_models(DeviceLane& lane) {
  auto options = lane.options();
  options.rings = std::make_shared<comm::RingMemory>();
  ExchangeUser actor(lane, five_stages(world().size()), options);
  ExchangeUser judge(lane, trainable(one_stage(world().size(), 900), {}), options);
  judge.write(7);
  for (int version = 0; version < 2; ++version) {
    actor.write(version);
    actor.forward(version);
    actor.backward(version);
    actor.gather(2);  // not used by anyone before the weights change
    actor.write(version + 2);
    actor.gather(0);  // nor before another model has the ring
    judge.gather(0, "take the ring");
    judge.check_weights(0, 7);
  }
  return actor.wrong() + judge.wrong();
}

struct Result {
  size_t findings = 0;
  int wrong_when_compute_is_slow = 0, wrong_when_messages_are_slow = 0, left_out = 0;
};
Result run_without(const std::optional<fakegpu::Edge>& edge) {
  own_device();
  Result result;
  for (const bool compute_is_slow : {true, false}) {
    DeviceLane lane;
    fakegpu::set_delays({.seed = static_cast<unsigned>(1 + world().rank()),
                         .legacy_us = compute_is_slow ? 600 : 0,
                         .others_us = compute_is_slow ? 0 : 600});
    fakegpu::leave_out(edge);
    (compute_is_slow ? result.wrong_when_compute_is_slow : result.wrong_when_messages_are_slow) =
        run_models(lane);
    result.left_out += fakegpu::left_out();
    fakegpu::leave_out(std::nullopt);
    result.findings += fakegpu::take_findings().size();
  }
  return result;
}

class Edges : public testing::TestWithParam<fakegpu::Edge> {};

TEST(Edges, AllOfThemLeaveNothingToFind) {
  const Result result = run_without(std::nullopt);
  EXPECT_EQ(result.findings, 0u);
  EXPECT_EQ(result.wrong_when_compute_is_slow + result.wrong_when_messages_are_slow, 0);
}

TEST_P(Edges, IsMissed) {
  const auto& edge = GetParam();
  const Result result = run_without(edge);
  EXPECT_GT(result.left_out, 0) << "the program makes no such call";
  EXPECT_GT(result.findings, 0u);
  if (world().rank() == 0) {
    std::printf(
        "without %s %d of %s: %zu findings, wrong values: %d when compute is slow, %d when "
        "messages are\n",
        edge.call == Call::wait ? "wait" : "record", edge.index, edge.during.c_str(),
        result.findings, result.wrong_when_compute_is_slow, result.wrong_when_messages_are_slow);
  }
}

INSTANTIATE_TEST_SUITE_P(Exchange, Edges,
                         testing::Values(fakegpu::Edge{"begin_update", Call::record, 0},
                                         fakegpu::Edge{"begin_update", Call::wait, 0},
                                         fakegpu::Edge{"gather", Call::record, 0},
                                         fakegpu::Edge{"gather", Call::wait, 0},
                                         fakegpu::Edge{"gather", Call::record, 1},
                                         fakegpu::Edge{"gathered", Call::wait, 0},
                                         fakegpu::Edge{"reduce", Call::record, 0},
                                         fakegpu::Edge{"reduce", Call::wait, 0},
                                         fakegpu::Edge{"finish_reduce", Call::record, 0},
                                         fakegpu::Edge{"finish_reduce", Call::wait, 0},
                                         fakegpu::Edge{"finish_reduce", Call::record, 1},
                                         fakegpu::Edge{"finish_reduce", Call::wait, 1},
                                         fakegpu::Edge{"take the ring", Call::record, 0},
                                         fakegpu::Edge{"take the ring", Call::wait, 0}),
                         [](const auto& value) {
                           std::string name = value.param.during;
                           std::ranges::replace(name, ' ', '_');
                           return base::text(name,
                                             value.param.call == Call::wait ? "_wait_" : "_record_",
                                             value.param.index);
                         });

}  // namespace
}  // namespace trireme::test
