// Nodes that are made up as folders: /proc and /sys/fs/cgroup of version 1, of version 2, of both,
// in containers.
#include "trireme/job/node_limits.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "trireme/base/text.hpp"

namespace trireme::job {
namespace {

using base::text;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t GiB = int64_t{1} << 30;

class NodeLimits : public testing::Test {
 protected:
  NodeLimits() {
    std::string name = std::filesystem::temp_directory_path() / "trireme-node-XXXXXX";
    root = mkdtemp(name.data());
    write("proc/meminfo",
          "MemTotal: 268435456 kB\nMemFree: 2097152 kB\nMemAvailable: 134217728 kB\nBuffers: 10 "
          "kB\n");  // 128 GiB
    write("sys/devices/system/cpu/online", "0-63\n");
  }
  ~NodeLimits() override { std::filesystem::remove_all(root); }

  void write(const std::string& path, const std::string& content) const {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path) << content;
  }
  void version_2(const std::string& path, const std::string& mounted = "/") const {
    write("proc/self/cgroup", "0::" + path + "\n");
    write("proc/self/mountinfo",
          "22 1 0:20 / / rw - ext4 /dev/root rw\n30 23 0:26 " + mounted +
              " /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  void version_1(const std::string& path) const {
    write("proc/self/cgroup",
          "12:cpuset:" + path + "\n9:cpu,cpuacct:" + path + "\n4:memory:" + path + "\n0::/\n");
    write("proc/self/mountinfo",
          "31 30 0:27 / /sys/fs/cgroup/memory rw shared:1 - cgroup cgroup rw,memory\n"
          "32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
          "33 30 0:29 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n");
  }

  std::filesystem::path root;
};

TEST_F(NodeLimits, MemoryThatPageCacheHoldsCountsAsAvailable) {
  EXPECT_EQ(available_memory(root).bytes, 128 * GiB) << "MemAvailable, not the 2 GiB of MemFree";
  EXPECT_EQ(available_memory(root).limited_by, "the node");
}

TEST_F(NodeLimits, NobodySaysAnything) {
  EXPECT_EQ(available_memory(root / "nowhere").bytes, INT64_MAX);
  EXPECT_THAT(cpu_quotas(root / "nowhere"), IsEmpty());
}

TEST_F(NodeLimits, Version2CapsAtTheTightestOfNestedGroups) {
  version_2("/slurm/job_5/step_0");
  write("sys/fs/cgroup/slurm/job_5/step_0/memory.max", "max\n");
  write("sys/fs/cgroup/slurm/job_5/step_0/memory.current", text(5 * GiB));
  write("sys/fs/cgroup/slurm/job_5/memory.max", text(16 * GiB) + "\n");
  write("sys/fs/cgroup/slurm/job_5/memory.current", text(10 * GiB));
  write("sys/fs/cgroup/slurm/job_5/memory.stat",
        text("anon ", 7 * GiB, "\nfile ", 9 * GiB, "\ninactive_file ", 2 * GiB, "\nactive_file ",
             GiB, "\n"));
  write("sys/fs/cgroup/slurm/memory.max", text(100 * GiB));
  write("sys/fs/cgroup/slurm/memory.current", text(20 * GiB));
  const auto memory = available_memory(root);
  EXPECT_EQ(memory.bytes, (16 - 10 + 3) * GiB) << "limit - usage + page cache";
  EXPECT_THAT(memory.limited_by, testing::AllOf(HasSubstr("/slurm/job_5"), HasSubstr("16.0 GiB")));
}

TEST_F(NodeLimits, MemoryHighIsALimitToo) {
  version_2("/a");
  write("sys/fs/cgroup/a/memory.max", "max\n");
  write("sys/fs/cgroup/a/memory.high", text(4 * GiB));
  write("sys/fs/cgroup/a/memory.current", text(GiB));
  EXPECT_EQ(available_memory(root).bytes, 3 * GiB);
}

TEST_F(NodeLimits, AFullGroupLeavesNothing) {
  version_2("/a");
  write("sys/fs/cgroup/a/memory.max", text(GiB));
  write("sys/fs/cgroup/a/memory.current", text(2 * GiB));
  EXPECT_EQ(available_memory(root).bytes, 0);
}

TEST_F(NodeLimits, Version1WithItsNumberForNoLimit) {
  version_1("/slurm/uid_7/job_5");
  write("sys/fs/cgroup/memory/slurm/uid_7/job_5/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/slurm/uid_7/job_5/memory.usage_in_bytes", text(GiB));
  EXPECT_EQ(available_memory(root).bytes, 128 * GiB);
  write("sys/fs/cgroup/memory/slurm/uid_7/memory.limit_in_bytes", text(8 * GiB));
  write("sys/fs/cgroup/memory/slurm/uid_7/memory.usage_in_bytes", text(6 * GiB));
  write("sys/fs/cgroup/memory/slurm/uid_7/memory.stat",
        text("inactive_file 1\ntotal_inactive_file ", GiB, "\ntotal_active_file 0\n"));
  EXPECT_EQ(available_memory(root).bytes, 3 * GiB);
}

TEST_F(NodeLimits, AContainerSeesItsOwnGroupAtTheMountPoint) {
  version_2("/docker/abc", "/docker/abc");
  write("sys/fs/cgroup/memory.max", text(2 * GiB));
  write("sys/fs/cgroup/memory.current", text(GiB));
  EXPECT_EQ(available_memory(root).bytes, GiB);
  version_2("/../../elsewhere");  // a path that a namespace does not show
  EXPECT_EQ(available_memory(root).bytes, GiB);
}

TEST_F(NodeLimits, ProcessorTime) {
  version_2("/pod/container");
  write("sys/fs/cgroup/pod/container/cpu.max", "max 100000\n");
  EXPECT_THAT(cpu_quotas(root), IsEmpty());
  write("sys/fs/cgroup/pod/container/cpu.max", "250000 100000\n");
  write("sys/fs/cgroup/pod/cpu.max", "1600000 100000\n");
  const auto quotas = cpu_quotas(root);
  ASSERT_EQ(quotas.size(), 2u);
  EXPECT_EQ(quotas[0].processors, 2.5);
  EXPECT_EQ(quotas[1].processors, 16);
  EXPECT_NE(quotas[0].group, quotas[1].group);
}

TEST_F(NodeLimits, ProcessorTimeOfVersion1) {
  version_1("/job");
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  EXPECT_THAT(cpu_quotas(root), IsEmpty());
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "800000\n");
  ASSERT_EQ(cpu_quotas(root).size(), 1u);
  EXPECT_EQ(cpu_quotas(root)[0].processors, 8);
}

TEST_F(NodeLimits, TheJobsProcessorsAreThoseOfTheOutermostGroupThatHasFewer) {
  EXPECT_EQ(cpus_of_job(root).size(), 64u);
  version_2("/slurm/job_5/step_0/task_3");
  write("sys/fs/cgroup/cpuset.cpus.effective", "0-63\n");
  write("sys/fs/cgroup/slurm/cpuset.cpus.effective", "0-63\n");
  write("sys/fs/cgroup/slurm/job_5/cpuset.cpus.effective", "8-15\n");
  write("sys/fs/cgroup/slurm/job_5/step_0/task_3/cpuset.cpus.effective", "8\n");
  EXPECT_THAT(cpus_of_job(root), ElementsAre(8, 9, 10, 11, 12, 13, 14, 15))
      << "not the one of a task";
  version_1("/job");
  write("sys/fs/cgroup/cpuset/job/cpuset.cpus", "0-3\n");
  EXPECT_THAT(cpus_of_job(root), ElementsAre(0, 1, 2, 3));
}

TEST(NodeLimitsHere, AreThoseOfThisMachine) {
  EXPECT_GT(available_memory().bytes, 0);
  EXPECT_FALSE(cpus_of_job().empty());
  EXPECT_FALSE(online_cpus().empty());
}

}  // namespace
}  // namespace trireme::job
