// Nodes that are made up: what their ranks should start, and where. And the binding of real threads
// on this machine.
#include "trireme/job/core_share.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <optional>
#include <thread>

#include "trireme/base/text.hpp"

namespace trireme::job {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int> core_range(int first, int count) {
  std::vector<int> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), first);
  return out;
}

std::vector<int> shares(const std::vector<std::vector<int>>& sets) {
  std::vector<CoreClaim> claims;
  for (const auto& set : sets) claims.push_back({set, {}});
  return share_cores(claims);
}

std::vector<std::vector<int>> bound(int ranks, int each) {
  std::vector<std::vector<int>> sets;
  for (int r = 0; r < ranks; ++r) sets.push_back(core_range(r * each, each));
  return sets;
}

TEST(CoreShare, BoundRanksUseAllTheirCores) {
  EXPECT_THAT(shares(bound(8, 8)), Each(8))
      << "srun --cpus-per-task=8 --cpu-bind=cores on 64 cores";
  EXPECT_THAT(shares(bound(16, 8)), Each(8));
  EXPECT_THAT(shares(bound(8, 13)), Each(13));
  EXPECT_THAT(shares(bound(64, 1)), Each(1));
  EXPECT_THAT(shares(bound(1, 1)), ElementsAre(1));
}

TEST(CoreShare, UnboundRanksDivideTheNode) {
  EXPECT_THAT(shares(std::vector<std::vector<int>>(8, core_range(0, 64))), Each(8));
  EXPECT_THAT(shares(std::vector<std::vector<int>>(3, core_range(0, 64))), Each(21));
  EXPECT_THAT(shares(std::vector<std::vector<int>>(3, core_range(0, 3))), Each(1))
      << "three thirds are one, whatever rounding says";
  EXPECT_THAT(shares(std::vector<std::vector<int>>(4, core_range(0, 2))), Each(1)) << "never none";
}

TEST(CoreShare, RanksBoundToSocketsDivideTheirSocket) {
  auto sets = std::vector<std::vector<int>>(4, core_range(0, 32));
  sets.resize(8, core_range(32, 32));
  EXPECT_THAT(shares(sets), Each(8)) << "Open MPI's default for more than two ranks";
}

TEST(CoreShare, SetsThatOverlapInPart) {
  EXPECT_THAT(shares({core_range(0, 8), core_range(4, 8)}), ElementsAre(6, 6));
  EXPECT_THAT(shares({core_range(0, 2), core_range(1, 1)}), ElementsAre(1, 1));
  EXPECT_THAT(shares({core_range(0, 16), core_range(0, 4), core_range(4, 4)}),
              ElementsAre(12, 2, 2));
  const auto all = shares({core_range(0, 16), core_range(0, 4), core_range(4, 4)});
  EXPECT_LE(std::accumulate(all.begin(), all.end(), 0), 16)
      << "nobody counts on more than there is";
}

TEST(CoreShare, AQuotaIsDividedAmongTheRanksBelowIt) {
  const std::vector<job::CpuQuota> pod{{1, 16}};
  std::vector<CoreClaim> ranks(2, {core_range(0, 64), pod});
  EXPECT_THAT(share_cores(ranks), Each(8));
  ranks = {{core_range(0, 64), {{2, 4}, {1, 16}}}, {core_range(0, 64), {{3, 2.5}, {1, 16}}}};
  EXPECT_THAT(share_cores(ranks), ElementsAre(4, 2));
  EXPECT_THAT(share_cores(std::vector<CoreClaim>{{core_range(0, 8), {{1, 0.5}}}}), ElementsAre(1));
}

class Siblings : public testing::Test {
 protected:
  Siblings() {
    std::string name = std::filesystem::temp_directory_path() / "trireme-siblings-XXXXXX";
    root = mkdtemp(name.data());
    for (int cpu = 0; cpu < 128;
         ++cpu) {  // 64 cores with two hardware threads, numbered as Linux does on most servers
      const auto folder = root / base::text("sys/devices/system/cpu/cpu", cpu, "/topology");
      std::filesystem::create_directories(folder);
      std::ofstream(folder / "thread_siblings_list") << cpu % 64 << "," << cpu % 64 + 64 << "\n";
    }
  }
  ~Siblings() override { std::filesystem::remove_all(root); }
  std::filesystem::path root;
};

TEST_F(Siblings, HardwareThreadsOfACoreCountOnce) {
  EXPECT_EQ(physical_cores(core_range(0, 128), root), core_range(0, 64));
  EXPECT_EQ(physical_cores(std::vector<int>{3, 67, 68}, root), (std::vector<int>{3, 4}));
  EXPECT_EQ(one_per_core(std::vector<int>{67, 3, 68}, root), (std::vector<int>{3, 68}));
  EXPECT_EQ(physical_cores(std::vector<int>{5, 9}, "/nowhere"), (std::vector<int>{5, 9}));
  // two ranks on the two hardware threads of the same 16 cores (a launcher that counts hardware
  // threads as cores)
  std::vector<int> upper = core_range(64, 16);
  EXPECT_THAT(shares({physical_cores(core_range(0, 16), root), physical_cores(upper, root)}),
              Each(8));
}

TEST(Binding, TheCallingThreadOnly) {
  const auto before = cpus_of_process();
  std::thread other([&] {
    EXPECT_TRUE(bind_this_thread({&before.back(), 1}));
    EXPECT_EQ(cpus_of_process(), std::vector<int>{before.back()});
    EXPECT_TRUE(bind_this_thread(before));
    EXPECT_EQ(cpus_of_process(), before);
    EXPECT_TRUE(bind_this_thread({}));
    EXPECT_FALSE(bind_this_thread(std::vector<int>{8191})) << "no such processor";
  });
  other.join();
  EXPECT_EQ(cpus_of_process(), before);
}

Environment environment_of(std::map<std::string, std::string> variables) {
  return [variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(Binding, WhatTheUserAndTheLauncherSay) {
  EXPECT_EQ(own_binding(environment_of({})), "");
  for (const char* name : {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"}) {
    EXPECT_EQ(own_binding(environment_of({{name, "false"}})), name)
        << "also a wish not to be bound";
  }
  EXPECT_FALSE(launcher_bound(environment_of({})));
  EXPECT_TRUE(launcher_bound(environment_of({{"OMPI_MCA_orte_bound_at_launch", "1"}})));
  EXPECT_TRUE(launcher_bound(environment_of({{"SLURM_CPU_BIND_TYPE", "mask_cpu:"}})));
  EXPECT_FALSE(launcher_bound(environment_of({{"SLURM_CPU_BIND_TYPE", "none"}})));
}

TEST(Binding, ThreadsThatWereToldToSpinForEver) {
  for (const auto& [name, value] :
       {std::pair{"OMP_WAIT_POLICY", "ACTIVE"}, std::pair{"GOMP_SPINCOUNT", "infinite"}}) {
    EXPECT_THAT(spinning_warning(environment_of({{name, value}})),
                HasSubstr(std::string(name) + "=" + value));
  }
  EXPECT_EQ(spinning_warning(
                environment_of({{"OMP_WAIT_POLICY", "passive"}, {"GOMP_SPINCOUNT", "1000"}})),
            "");
}

TEST(Binding, OnlyWhereEveryThreadHasACoreOfItsOwn) {
  const PinFacts good{.bound = true, .own_binding = {}, .threads = 8, .cores = 8};
  EXPECT_EQ(why_not_pinned(good), "");
  const auto why = [&](auto change) {
    PinFacts facts = good;
    change(facts);
    return why_not_pinned(facts);
  };
  EXPECT_THAT(why([](auto& f) { f.wanted = false; }), HasSubstr("run.pin_threads"));
  EXPECT_THAT(why([](auto& f) { f.own_binding = "OMP_PLACES"; }), HasSubstr("OMP_PLACES is set"));
  EXPECT_THAT(why([](auto& f) { f.bound = false; }), HasSubstr("nobody bound"));
  EXPECT_THAT(why([](auto& f) { f.shared = true; }), HasSubstr("share cores"));
  EXPECT_THAT(why([](auto& f) { f.threads = 4; }), HasSubstr("4 threads on 8 cores"));
  EXPECT_THAT(why([](auto& f) { f.threads = f.cores = 1; }), HasSubstr("one thread"));
}

}  // namespace
}  // namespace trireme::job
