// Which jobs may start: pools of ranks that share memory, their peaks in a common phase, and what
// is said of one that lacks memory.
#include "trireme/plan/admission.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace trireme::test {
namespace {

using plan::Phase;
using plan::Place;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t gigabyte = 1'000'000'000;

plan::RankNeed host_need(int64_t rollout, int64_t backward, int64_t free, uint64_t pool) {
  plan::Ledger ledger;
  ledger.add({"generator", "KV pages", Place::host, rollout, plan::phase_bit(Phase::rollout),
              plan::Accuracy::exact});
  ledger.add({"actor", "activations", Place::host, backward, plan::phase_bit(Phase::backward),
              plan::Accuracy::estimate});
  plan::RankNeed need = plan::need_of(ledger);
  need.host_free = free;
  need.host_pool = pool;
  return need;
}

TEST(Pools, RanksOfANodeAreAddedPhaseByPhase) {
  // peaks in different phases: 3 + 1 in the rollout, 1 + 2 in backward, never 3 + 2
  const std::vector<plan::RankNeed> ranks{host_need(3 * gigabyte, gigabyte, 4 * gigabyte, 7),
                                          host_need(gigabyte, 2 * gigabyte, 5 * gigabyte, 7),
                                          host_need(2 * gigabyte, 0, gigabyte, 8)};
  const auto pools = plan::pools_of(ranks);
  ASSERT_EQ(pools.size(), 2u);
  EXPECT_THAT(pools[0].ranks, ElementsAre(0, 1));
  EXPECT_EQ(pools[0].need, 4 * gigabyte);
  EXPECT_EQ(pools[0].phase, Phase::rollout);
  EXPECT_EQ(pools[0].free, 4 * gigabyte);  // what the rank saw that saw least
  EXPECT_EQ(pools[0].estimated, 0);
  EXPECT_EQ(pools[0].fullest, 0);
  EXPECT_TRUE(pools[0].fits());
  EXPECT_THAT(pools[1].ranks, ElementsAre(2));
  EXPECT_FALSE(pools[1].fits());
  EXPECT_EQ(plan::worst_pool(pools), 1);
}

TEST(Pools, OneGigabyteTooMuchIsTooMuchAndNoByteLess) {
  const auto fits = [](int64_t free) {
    return plan::worst_pool(plan::pools_of(std::vector{host_need(20 * gigabyte, 0, free, 1)})) < 0;
  };
  EXPECT_TRUE(fits(20 * gigabyte));
  EXPECT_FALSE(fits(20 * gigabyte - 1));
  EXPECT_FALSE(fits(19 * gigabyte));
  EXPECT_TRUE(fits(plan::free_unknown));
}

// Two ranks of a node with 8 blocks of 1 GB each, which write rollouts in 3 GB and train in 1 GB
// beside what is kept.
TEST(FewestRecomputed, AsManyAreKeptAsTheBudgetHolds) {
  constexpr int64_t layers = 8;
  int64_t free = 14 * gigabyte;
  const auto pools_with = [&](int64_t recompute) {
    const auto need = host_need(3 * gigabyte, (1 + layers - recompute) * gigabyte, free, 7);
    return plan::pools_of(std::vector{need, need});
  };
  const auto fewest = [&](const config::MemoryShare& budget) {
    return plan::fewest_recomputed(layers, budget, pools_with);
  };
  EXPECT_EQ(fewest({1, 0}), 2) << "7 GB a rank are one of training and six that are kept";
  EXPECT_EQ(fewest({0.5, 0}), 4) << "half of the 8 GB that the rollout leaves";
  EXPECT_EQ(fewest({0.01, 0}), 6) << "what fits below the rollout's peak costs nothing";
  EXPECT_EQ(fewest({0, 1 * gigabyte}), 5);
  EXPECT_EQ(fewest({0, 100 * gigabyte}), 2) << "no more than there is";
  free = 100 * gigabyte;
  EXPECT_EQ(fewest({1, 0}), 0);
  free = 5 * gigabyte;
  EXPECT_EQ(fewest({1, 0}), 6) << "the plan does not fit: what raises its peak does not either";
  free = plan::free_unknown;
  EXPECT_EQ(fewest({1, 0}), 6);
}

TEST(Pools, RanksThatShareAGpuShareItsMemory) {
  plan::Ledger ledger;
  ledger.add(
      {"actor", "weights", Place::device, 30 * gigabyte, plan::every_phase, plan::Accuracy::exact});
  plan::RankNeed one = plan::need_of(ledger);
  one.device_free = 80 * gigabyte;
  plan::RankNeed two = one, three = one;
  two.device_pool = three.device_pool = 1;
  EXPECT_EQ(plan::worst_pool(plan::pools_of(std::vector{one, two, three})), -1);
  plan::RankNeed fourth = two;
  const auto pools = plan::pools_of(std::vector{one, two, three, fourth});
  ASSERT_GE(plan::worst_pool(pools), 0);
  EXPECT_EQ(pools[static_cast<size_t>(plan::worst_pool(pools))].need, 90 * gigabyte);
}

TEST(Pools, SayPeakPhaseAndWhatIsEstimated) {
  const auto pools = plan::pools_of(std::vector{host_need(0, 3 * gigabyte, 2 * gigabyte, 1)});
  const std::string text = plan::describe(pools.front());
  for (const char* part :
       {"planned peak 3.00 GB of 2.00 GB free", "rank 0", "in backward", "3.00 GB of it estimated"})
    EXPECT_THAT(text, HasSubstr(part));
}

TEST(Contributors, AreTheLargestOfThePhaseWithEstimatesMarked) {
  plan::Ledger ledger;
  ledger.add({"actor", "activations", Place::host, 5 * gigabyte, plan::phase_bit(Phase::backward),
              plan::Accuracy::estimate});
  ledger.add({"actor", "fp32 master weights", Place::host, 2 * gigabyte, plan::every_phase,
              plan::Accuracy::exact});
  ledger.add({"generator", "rows of a step", Place::host, 9 * gigabyte,
              plan::phase_bit(Phase::rollout), plan::Accuracy::estimate});
  EXPECT_EQ(plan::contributors(ledger, Place::host, Phase::backward, 1),
            "  5.00 GB ~ actor: activations");
  EXPECT_EQ(plan::contributors(ledger, Place::host, Phase::backward, 8),
            "  5.00 GB ~ actor: activations\n  2.00 GB   actor: fp32 master weights");
}

TEST(ResidentPeak, CountsAWindowWhole) {
  plan::Ledger ledger;
  ledger.add({"actor", "own weight slices", Place::host, 2 * gigabyte, plan::every_phase,
              plan::Accuracy::exact, 6 * gigabyte});
  EXPECT_EQ(ledger.peak(Place::host), 2 * gigabyte);
  EXPECT_EQ(ledger.resident_peak(), 8 * gigabyte);
}

}  // namespace
}  // namespace trireme::test
