// Ranks of a replica take the same steps while each of them waits for others, at np 1, 2 and 4.
#include "torch/torch.hpp"

#include "trireme/rollout/turns.hpp"

#include <gtest/gtest.h>

#include "support/world.hpp"

namespace trireme::rollout {
namespace {

using test::world;

comm::Roles with_tensor_parallel(int64_t ranks) {
  config::Options options;
  options.generate.tensor_parallel = ranks;
  return comm::make_roles(options, world());
}

TEST(Turns, ARankOfItsOwnDecidesAlone) {
  const comm::Roles roles = with_tensor_parallel(1);
  Turns turns(roles.generators.along(comm::Axis::tensor), "turns");
  EXPECT_TRUE(turns.next(true));
  EXPECT_FALSE(turns.next(false));
  turns.settle([] { ADD_FAILURE() << "nobody has begun a step"; });
}

// The first rank begins as many steps as it likes; each is taken by every rank, as a collective of
// theirs needs it, in each of several waits.
TEST(Turns, StepsAreTakenByAllRanksOrNone) {
  const comm::Roles roles = with_tensor_parallel(world().size());
  const comm::CommView replica = roles.generators.along(comm::Axis::tensor);
  Turns turns(roles.generators.along(comm::Axis::tensor), "turns");
  int64_t taken = 0;
  const auto step = [&] {
    ++taken;
    EXPECT_EQ(replica.max(taken), taken) << "the others are in the same step";
  };
  int64_t wanted = 0;
  for (const int64_t more : {3, 0, 1, 5}) {
    wanted += more;
    if (roles.leads_replica()) {
      comm::wait_until("the steps", [&] {
        if (taken < wanted && turns.next(true)) step();
        return taken == wanted;
      });
    } else if (more % 2 == 1) {
      comm::wait_until("a step",
                       [&] {  // this wait ends before the last step was begun: settle() takes it
                         if (turns.next(false)) step();
                         return taken >= wanted - 1;
                       });
    }
    turns.settle(step);
    EXPECT_EQ(taken, wanted);
    EXPECT_EQ(replica.max(taken), taken);
  }
}

// A first rank that wants nothing, or ranks that are not there yet: no step begins.
TEST(Turns, NobodyIsWaitedForInAStep) {
  if (world().size() == 1) GTEST_SKIP() << "a rank of its own waits for nobody";
  const comm::Roles roles = with_tensor_parallel(world().size());
  Turns turns(roles.generators.along(comm::Axis::tensor), "turns");
  if (roles.leads_replica()) {
    for (int i = 0; i < 100; ++i)
      EXPECT_FALSE(turns.next(true)) << "the others are at something else";
  }
  world().barrier();
  if (!roles.leads_replica()) {
    for (int i = 0; i < 100; ++i)
      EXPECT_FALSE(turns.next(true)) << "only the first rank begins a step";
  }
  turns.settle([] { ADD_FAILURE() << "none was begun"; });
}

// Replicas beside each other do not mix their steps.
TEST(Turns, ReplicasHaveTheirOwn) {
  if (world().size() != 4) GTEST_SKIP() << "needs two replicas of two";
  const comm::Roles roles = with_tensor_parallel(2);
  Turns turns(roles.generators.along(comm::Axis::tensor), "turns");
  const int64_t wanted = roles.generators.place(comm::Axis::data) == 0 ? 4 : 0;
  int64_t taken = 0;
  if (roles.leads_replica()) {
    comm::wait_until("the steps", [&] {
      taken += taken < wanted && turns.next(true);
      return taken == wanted;
    });
  }
  turns.settle([&taken] { ++taken; });
  EXPECT_EQ(taken, wanted);
}

}  // namespace
}  // namespace trireme::rollout
