// Control groups with odd names and texts, core shares of random masks, the walltime rule of random
// histories: against counting.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <set>

#include "trireme/base/text.hpp"
#include "trireme/job/affinity.hpp"
#include "trireme/job/core_share.hpp"
#include "trireme/job/facts.hpp"
#include "trireme/job/node_limits.hpp"
#include "trireme/job/walltime.hpp"

namespace trireme::job {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// ---- control groups ----

class OddGroups : public testing::Test {
 protected:
  OddGroups() {
    std::string name = std::filesystem::temp_directory_path() / "trireme-groups-XXXXXX";
    root = mkdtemp(name.data());
    write("proc/meminfo", "MemAvailable: 1000000 kB\n");
    write("sys/devices/system/cpu/online", "0-7\n");
  }
  ~OddGroups() override { std::filesystem::remove_all(root); }
  void write(const std::string& path, const std::string& content) const {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path) << content;
  }
  // Version 2, as the kernel writes it: `point` and `inner` with \040 for a blank.
  void group(const std::string& path, const std::string& inner = "/",
             const std::string& point = "/sys/fs/cgroup") const {
    write("proc/self/cgroup", "0::" + path + "\n");
    write("proc/self/mountinfo",
          "30 23 0:26 " + inner + " " + point + " rw,nosuid shared:9 - cgroup2 cgroup2 rw\n");
  }
  void limit(const std::string& folder, const std::string& most, const std::string& used) const {
    write(folder + "/memory.max", most);
    write(folder + "/memory.current", used);
  }
  std::filesystem::path root;
};

TEST_F(OddGroups, DotsInANameAreNoWayUp) {
  group("/slurm/job..5");
  limit("sys/fs/cgroup/slurm/job..5", "5000\n", "1000\n");
  EXPECT_EQ(available_memory(root).bytes, 4000);
  EXPECT_THAT(available_memory(root).limited_by, HasSubstr("/slurm/job..5"));
}

TEST_F(OddGroups, APathOutsideOfTheNamespaceIsTheMountPoint) {
  for (const char* path : {"/..", "/../../other", "/a/../b"}) {
    group(path);
    limit("sys/fs/cgroup", "3000", "1000");
    limit("sys/fs/cgroup/b", "10", "0");
    EXPECT_EQ(available_memory(root).bytes, 2000) << path;
  }
}

TEST_F(OddGroups, ColonsAndBlanksInNames) {
  group("/user:1000/a b", "/", "/mnt/c\\040g");
  limit("mnt/c g/user:1000/a b", "700", "100");
  EXPECT_EQ(available_memory(root).bytes, 600);
}

TEST_F(OddGroups, LimitsThatAreNoneAndUsageBeyondThem) {
  group("/g");
  for (const char* none : {"max\n", "", "9223372036854771712\n", "99999999999999999999999\n"}) {
    limit("sys/fs/cgroup/g", none, "100");
    EXPECT_EQ(available_memory(root).bytes, 1024'000'000) << none;
  }
  limit("sys/fs/cgroup/g", "100", "150");
  EXPECT_EQ(available_memory(root).bytes, 0) << "above its limit, e.g. since that was lowered";
  write("sys/fs/cgroup/g/memory.stat",
        "inactive_file 40\nactive_file 20\ninactive_file_more 1000\n");
  EXPECT_EQ(available_memory(root).bytes, 10) << "page cache gives way";
  limit("sys/fs/cgroup/g", "100", "nothing");
  EXPECT_EQ(available_memory(root).bytes, 1024'000'000) << "without usage a limit says nothing";
}

TEST_F(OddGroups, QuotasThatAreNone) {
  group("/g");
  for (const char* none :
       {"max 100000\n", "", "100000", "0 100000", "-1 100000", "100000 0", "x y"}) {
    write("sys/fs/cgroup/g/cpu.max", none);
    EXPECT_THAT(cpu_quotas(root), IsEmpty()) << none;
  }
  write("sys/fs/cgroup/g/cpu.max", "50000 100000\n");
  write("sys/fs/cgroup/cpu.max", "1600000 100000\n");
  const auto quotas = cpu_quotas(root);
  ASSERT_THAT(quotas, SizeIs(2));
  EXPECT_EQ(quotas[0].processors, 0.5) << "innermost first";
  EXPECT_EQ(quotas[1].processors, 16);
  EXPECT_NE(quotas[0].group, quotas[1].group);
}

TEST_F(OddGroups, CpuSetsOfAllAreNoLimit) {
  group("/job/step");
  write("sys/fs/cgroup/job/cpuset.cpus.effective", "0-7\n");
  write("sys/fs/cgroup/job/step/cpuset.cpus.effective", "2-3,6\n");
  EXPECT_THAT(cpus_of_job(root), ElementsAre(2, 3, 6));
  write("sys/fs/cgroup/job/cpuset.cpus.effective", "\n");
  EXPECT_THAT(cpus_of_job(root), ElementsAre(2, 3, 6)) << "an empty one says nothing";
  write("sys/fs/cgroup/job/cpuset.cpus.effective", "1-6\n");
  EXPECT_THAT(cpus_of_job(root), ElementsAre(1, 2, 3, 4, 5, 6)) << "the job's";
}

TEST(CpuListTexts, WhatCouldBeReadOfThem) {
  EXPECT_THAT(parse_cpu_list("0\n"), ElementsAre(0));
  EXPECT_THAT(parse_cpu_list("0-0,2-3,9\n"), ElementsAre(0, 2, 3, 9));
  EXPECT_THAT(parse_cpu_list("5-3,7"), ElementsAre(7));
  EXPECT_THAT(parse_cpu_list("x,4,-,5-,99999999999,,6"), ElementsAre(4, 6));
  for (const char* none : {"", "\n", ",", "-", "-1", "a-b"})
    EXPECT_THAT(parse_cpu_list(none), IsEmpty()) << none;
}

// ---- core shares ----

// No rank counts on nothing, and those of a node together on no more cores than there are, where
// each has one at least.
TEST(CoreShares, NobodyCountsOnMoreThanThereIs) {
  std::mt19937 random(9);
  for (int round = 0; round < 500; ++round) {
    const auto cores = 1 + random() % 16;
    std::vector<CoreClaim> ranks(1 + random() % 6);
    std::set<int> all;
    for (auto& rank : ranks) {
      for (unsigned core = 0; core < cores; ++core) {
        if (random() % 2 == 0) rank.cores.push_back(static_cast<int>(core));
      }
      if (random() % 3 == 0)
        rank.cores.insert(rank.cores.end(), rank.cores.begin(), rank.cores.end());  // named twice
      std::shuffle(rank.cores.begin(), rank.cores.end(), random);
      all.insert(rank.cores.begin(), rank.cores.end());
    }
    const auto threads = share_cores(ranks);
    ASSERT_EQ(threads.size(), ranks.size());
    size_t raised = 0;  // ranks whose share is less than a core
    for (size_t r = 0; r < ranks.size(); ++r) {
      const std::set<int> own(ranks[r].cores.begin(), ranks[r].cores.end());
      double share = 0;
      for (const int core : own) {
        share += 1.0 / static_cast<double>(
                           std::count_if(ranks.begin(), ranks.end(), [core](const auto& other) {
                             return std::find(other.cores.begin(), other.cores.end(), core) !=
                                    other.cores.end();
                           }));
      }
      raised += share < 1;
      EXPECT_EQ(threads[r], std::max(1, static_cast<int>(std::floor(share + 1e-6))))
          << "round " << round << " rank " << r;
    }
    EXPECT_LE(std::accumulate(threads.begin(), threads.end(), size_t{0}), all.size() + raised);
  }
  EXPECT_THAT(share_cores({}), IsEmpty());
}

// ---- the walltime rule ----

TEST(WalltimeRule, IsTheSumInItsHeader) {
  std::mt19937 random(4);
  const auto seconds = [&] {
    return static_cast<double>(random() % 1000) / 8;
  };  // sums of these are exact
  for (int round = 0; round < 200; ++round) {
    const double margin = seconds();
    Walltime rule(1e6, margin);
    double plain = 0, evaluation = 0, closing = 0;
    std::vector<double> saves;
    for (int event = 0; event < 12; ++event) {
      const double took = seconds();
      switch (random() % 4) {
        case 0: rule.phase_took(took), plain = std::max(plain, took); break;
        case 1: rule.phase_took(took + 3, 3), plain = std::max(plain, took), evaluation = 3; break;
        case 2: rule.save_took(took), saves.push_back(took); break;
        default: rule.closing_took(took), closing = std::max(closing, took);
      }
      const auto last_four =
          saves.end() - static_cast<std::ptrdiff_t>(std::min<size_t>(saves.size(), 4));
      const double save = saves.empty() ? plain : *std::max_element(last_four, saves.end());
      for (const bool evaluates : {false, true}) {
        for (const bool saving : {false, true}) {
          const double next = plain + (!evaluates ? 0 : evaluation > 0 ? evaluation : plain);
          EXPECT_NEAR(rule.needed({evaluates, saving}),
                      1.3 * (next + closing) + 1.5 * save * (saving ? 2 : 1) + margin, 1e-9);
        }
      }
      EXPECT_EQ(rule.save_seconds().has_value(), !saves.empty());
      EXPECT_FALSE(rule.must_stop());
    }
  }
}

TEST(WalltimeRule, StopsWhatDoesNotFit) {
  for (const double needed : {500.0, 2000.0}) {
    Walltime rule(1000.0, 0);  // some of it passes meanwhile
    rule.closing_took(needed / 1.3);
    EXPECT_EQ(rule.must_stop(), needed > 1000);
  }
  Walltime over(-5, 0);
  EXPECT_TRUE(over.must_stop());
  EXPECT_FALSE(over.wants_measurement(1e9)) << "no time to learn anything";
}

TEST(WalltimeRule, TheLimitIsTheNearerOneInEveryOrder) {
  for (const double deck : {0.0, 50.0, 100.0, 1000.0}) {
    for (const std::optional<double> scheduler : {std::optional<double>{}, std::optional{-3.0},
                                                  std::optional{60.0}, std::optional{900.0}}) {
      const auto limit = choose_limit(deck, 20, scheduler);
      std::optional<double> want = scheduler;
      if (deck > 0) want = scheduler ? std::min(*scheduler, deck - 20) : deck - 20;
      EXPECT_EQ(limit.seconds_left, want) << deck;
      EXPECT_EQ(limit.source.empty(), !want);
    }
  }
}

// ---- texts of schedulers ----

TEST(QstatTexts, OddLines) {
  EXPECT_EQ(pbs_attribute("    a = b = c\n", "a"), "b = c");
  EXPECT_EQ(pbs_attribute("    a = \n    b = 1\n", "a"), "");
  EXPECT_EQ(pbs_attribute("    comment = stime = never\n    stime = now\n", "stime"), "now")
      << "not in another's value";
  EXPECT_EQ(pbs_attribute("    a = 1\r\n    b = 2\r\n", "b"), "2");
  EXPECT_EQ(pbs_attribute("    a = x\n\ty\n\tz", "a"), "xyz");
  EXPECT_EQ(pbs_attribute("    a = 1\n    a = 2\n", "a"), "1");
  EXPECT_EQ(pbs_attribute("", "a"), "");
  EXPECT_EQ(pbs_attribute("a = 1", ""), "");
}

TEST(SlurmTexts, EveryTimeGoesThereAndBack) {
  std::mt19937 random(2);
  for (int round = 0; round < 1000; ++round) {
    const int64_t total = static_cast<int64_t>(random()) % (400 * 86400);
    const int64_t days = total / 86400, hours = total / 3600 % 24, minutes = total / 60 % 60,
                  rest = total % 60;
    char text[64];
    if (days > 0) {
      std::snprintf(text, sizeof text, "%ld-%02ld:%02ld:%02ld", long{days}, long{hours},
                    long{minutes}, long{rest});
    } else if (hours > 0) {
      std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", long{hours}, long{minutes}, long{rest});
    } else {
      std::snprintf(text, sizeof text, "%ld:%02ld", long{minutes}, long{rest});
    }
    ASSERT_EQ(parse_slurm_time(text), static_cast<double>(total)) << text;
  }
}

}  // namespace
}  // namespace trireme::job
