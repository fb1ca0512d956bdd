// Machines that are made up: what a launcher's binding looks like on them.
#include "trireme/job/affinity.hpp"
#include "trireme/base/wire.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace trireme::job {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::vector<int> range(int first, int count) {
  std::vector<int> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), first);
  return out;
}

// `count` ranks with `each` cores of their own and as many threads.
std::vector<RankPlace> bound(int count, int each, int threads) {
  std::vector<RankPlace> ranks(static_cast<size_t>(count));
  for (int r = 0; r < count; ++r) {
    auto& place = ranks[static_cast<size_t>(r)];
    place.rank = r;
    place.cores = range(r * each, each);
    place.threads = {threads, threads, threads};
  }
  return ranks;
}

std::vector<RankPlace> unbound(int count, int cores, int threads) {
  auto ranks = bound(count, 1, threads);
  for (auto& place : ranks) place.cores = range(0, cores);
  return ranks;
}

TEST(Affinity, NothingToSayOfAGoodBinding) {
  EXPECT_THAT(affinity_warnings(bound(8, 8, 8), 64), IsEmpty());
  EXPECT_THAT(affinity_warnings(unbound(8, 64, 8), 64), IsEmpty());
  EXPECT_THAT(affinity_warnings(bound(64, 1, 1), 64), IsEmpty())
      << "a rank a core, as MPI codes run";
  EXPECT_THAT(affinity_warnings(bound(1, 1, 1), 1), IsEmpty());
}

TEST(Affinity, RanksBoundToOneCore) {
  auto ranks = unbound(4, 1, 1);
  EXPECT_THAT(affinity_warnings(ranks, 64),
              ElementsAre(HasSubstr(
                  "all 4 ranks of the node are bound to core 0 of 64: srun --cpus-per-task=16")));
  // Open MPI's default for two ranks
  EXPECT_THAT(affinity_warnings(bound(2, 1, 1), 64),
              ElementsAre(HasSubstr("2 of 64 are used: srun --cpus-per-task=32")));
}

TEST(Affinity, MoreThreadsThanCores) {
  EXPECT_THAT(affinity_warnings(unbound(4, 16, 16), 16),
              ElementsAre(HasSubstr(
                  "4 trainer ranks run 64 threads on 16 cores (0-15): set run.threads = 4")));
  EXPECT_THAT(affinity_warnings(bound(2, 8, 16), 16),
              ElementsAre(HasSubstr(
                  "1 trainer rank runs 16 threads on 8 cores (0-7): set run.threads = 8")));
  EXPECT_THAT(affinity_warnings(unbound(4, 2, 1), 2),
              ElementsAre(HasSubstr("4 trainer ranks share 2 cores (0-1): start fewer ranks")));
}

TEST(Affinity, RolesTakeTurns) {
  auto ranks = unbound(4, 16, 0);
  for (auto& place : ranks)
    place.threads = place.rank < 2 ? std::array<int, 3>{8, 0, 8} : std::array<int, 3>{0, 8, 0};
  EXPECT_THAT(affinity_warnings(ranks, 16), IsEmpty())
      << "16 threads of trainers, then 16 of generators";
}

TEST(Affinity, Gpus) {
  auto ranks = bound(4, 16, 16);
  for (auto& place : ranks) {
    place.gpus = 4;
    place.numa_nodes = {place.rank / 2};
    place.gpu = "0000:3b:00.0";
    place.gpu_numa = place.rank / 2;
  }
  EXPECT_THAT(affinity_warnings(ranks, 64),
              ElementsAre(HasSubstr("CUDA_VISIBLE_DEVICES is not set: each of the 4 ranks")));
  for (auto& place : ranks) place.gpus_chosen = true, place.gpus = 1;
  EXPECT_THAT(affinity_warnings(ranks, 64), IsEmpty());
  ranks[3].gpu_numa = 0;
  EXPECT_THAT(affinity_warnings(ranks, 64),
              ElementsAre(HasSubstr(
                  "rank 3 runs on NUMA node 1 but its GPU 0000:3b:00.0 hangs on node 0")));
  ranks[3].gpu_numa = -1;
  EXPECT_THAT(affinity_warnings(ranks, 64), IsEmpty()) << "a virtual machine does not say";
}

TEST(Affinity, NodesWithTheSameMistakeAreNamedOnce) {
  auto ranks = unbound(2, 1, 1);
  for (const auto& place : unbound(2, 1, 1)) {
    ranks.push_back(place);
    ranks.back().node = 1;
  }
  EXPECT_THAT(affinity_warnings_of_job(ranks, 8),
              ElementsAre(HasSubstr("2 of 2 nodes: all 2 ranks of the node are bound to core 0")));
}

std::vector<RankPlace> on_node_of(std::vector<RankPlace> ranks, int cores) {
  for (auto& place : ranks) place.node_cores = range(0, cores);
  return ranks;
}

TEST(Affinity, NothingIdleNothingSaid) {
  EXPECT_THAT(idle_notes(on_node_of(bound(8, 8, 8), 64), true), IsEmpty());
  EXPECT_THAT(idle_notes(on_node_of(unbound(3, 64, 21), 64), true), IsEmpty())
      << "one core is too few for three ranks";
  EXPECT_THAT(idle_notes(on_node_of(bound(2, 1, 1), 64), true),
              Not(testing::Contains(HasSubstr("no rank's set"))))
      << "affinity_warnings() says it";
  EXPECT_THAT(idle_notes({}, true), IsEmpty());
}

TEST(Affinity, CoresThatNoRankHas) {
  EXPECT_THAT(idle_notes(on_node_of(bound(8, 7, 7), 64), true),
              ElementsAre(AllOf(HasSubstr("8 of the node's 64 cores (56-63)"),
                                HasSubstr("--cpus-per-task=8"))));
  EXPECT_THAT(idle_notes(on_node_of(bound(4, 8, 8), 64), true),
              ElementsAre(AllOf(HasSubstr("32 of the node's 64 cores (32-63)"),
                                HasSubstr("--cpus-per-task=16"))));
}

TEST(Affinity, CoresThatNoThreadUses) {
  EXPECT_THAT(
      idle_notes(on_node_of(bound(8, 8, 1), 64), true),
      ElementsAre(AllOf(
          HasSubstr("while the trainer ranks work, 56 of their 64 cores a node (0-63) stay idle"),
          HasSubstr("run.threads = \"auto\""))));
  auto ranks = on_node_of(unbound(4, 16, 4), 16);
  for (auto& place : ranks)
    place.threads = place.rank < 2 ? std::array<int, 3>{4, 0, 4} : std::array<int, 3>{0, 4, 0};
  EXPECT_THAT(idle_notes(ranks, true), ElementsAre(AllOf(HasSubstr("8 of their 16 cores"),
                                                         HasSubstr("run.threads = \"phase\""))));
  EXPECT_THAT(idle_notes(ranks, false), ElementsAre(Not(HasSubstr("phase"))))
      << "the other role works at the same time";
  ranks = on_node_of(unbound(2, 16, 4), 16);
  for (auto& place : ranks) place.quotas = {{1, 8}};
  EXPECT_THAT(idle_notes(ranks, true), ElementsAre(HasSubstr("cpu.max")));
}

TEST(Affinity, RanksWithGpusMayLeaveCoresIdle) {
  auto ranks = on_node_of(bound(4, 8, 8), 64);
  for (auto& place : ranks) place.gpus = 1;
  EXPECT_THAT(idle_notes(ranks, true), IsEmpty());
}

TEST(Affinity, ThePlanInTheLog) {
  EXPECT_EQ(describe_threads(bound(8, 8, 8)),
            "trainer 8, generator 8, reward 8 a rank, with 8 ranks of 8 cores a node");
  auto ranks = bound(2, 1, 1);
  ranks[0].threads = {1, 0, 0};
  ranks[1].threads = {3, 2, 0};
  EXPECT_EQ(describe_threads(ranks),
            "trainer 1-3, generator 2 a rank, with 2 ranks of 1 core a node");
}

TEST(Affinity, PlacesGoThereAndBack) {
  RankPlace place{3,
                  1,
                  {0, 1, 2, 8},
                  {4, 0, 2},
                  {0, 1},
                  8,
                  true,
                  "0000:3b:00.0",
                  1,
                  {0, 1, 2, 8, 9},
                  {{77, 2.5}, {1, 16}},
                  true};
  const auto back = base::from_bytes<RankPlace>(base::to_bytes(place));
  EXPECT_EQ(back.cores, place.cores);
  EXPECT_EQ(back.gpu, place.gpu);
  EXPECT_EQ(back.node_cores, place.node_cores);
  EXPECT_EQ(back.quotas, place.quotas);
  EXPECT_TRUE(back.bound);
  EXPECT_EQ(base::to_bytes(back), base::to_bytes(place));
}

TEST(Affinity, CpuLists) {
  EXPECT_THAT(parse_cpu_list("0-3,8\n"), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(parse_cpu_list(""), IsEmpty());
  EXPECT_THAT(parse_cpu_list("-"), IsEmpty());
  EXPECT_THAT(parse_cpu_list("5"), ElementsAre(5));
  EXPECT_THAT(parse_cpu_list("0-1,,4-4,"), ElementsAre(0, 1, 4));
  for (const char* none : {"3-1", "a-b", "5-", "-5", "x"})
    EXPECT_THAT(parse_cpu_list(none), IsEmpty()) << none;
}

TEST(Affinity, ThisMachineHasCores) {
  EXPECT_FALSE(numa_nodes_of(job::cpus_of_job()).size() > 64);
  EXPECT_EQ(numa_node_of_gpu("ffff:ff:00.0"), -1);
}

}  // namespace
}  // namespace trireme::job
