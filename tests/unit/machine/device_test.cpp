// What all ranks have to say of their devices.
#include "trireme/machine/device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/world.hpp"
#include "trireme/base/text.hpp"

namespace trireme::machine {
namespace {

using test::world;

TEST(Device, AProblemOfOneRankIsThatOfAll) {
  EXPECT_EQ(problem_of_any(world(), ""), "");
  for (int rank = 0; rank < world().size(); ++rank) {
    const std::string said = problem_of_any(
        world(), world().rank() >= rank ? base::text("a row differs by ", world().rank()) : "");
    EXPECT_THAT(said, testing::StartsWith(base::text("on rank ", rank, " of ")));
    EXPECT_THAT(said, testing::EndsWith(base::text(": a row differs by ", rank)));
  }
}

TEST(Device, OnTheCpuNothingIsAsked) {
  if (world().rank() == 0) use_device(at::kCPU, false, world());  // no collective
}

}  // namespace
}  // namespace trireme::machine
