// Limits of this process on its node: memory and processor time, by the kernel and by the
// control groups above it (v1, v2 or both mounted, nested groups, containers). Functions take the
// folder that stands for "/", so that tests can make up a node.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::job {

struct AvailableMemory {
  int64_t bytes = 0;
  std::string limited_by;  // "the node", or "the control group /a/b (limit 16.0 GiB)", for messages
};

// Bytes that can be allocated now without pushing anything out but page cache: the kernel's
// MemAvailable, capped at every level of the memory control group by limit - usage + page cache (a
// batch system's limit may be far below the node's memory). INT64_MAX where nobody says.
AvailableMemory available_memory(const std::filesystem::path& root = "/");

// Processor time that a control group grants its processes together (cpu.max, cpu.cfs_quota_us).
struct CpuQuota {
  uint64_t group = 0;     // tells groups of a node apart: the inode of the group's folder
  double processors = 0;  // 2.5: two and a half processors' time
  bool operator==(const CpuQuota&) const = default;
};
// Those of all levels above this process, innermost first; empty: no limit.
std::vector<CpuQuota> cpu_quotas(const std::filesystem::path& root = "/");

// Processors (Linux CPU numbers, ascending) that this job may use of the node: the outermost
// control group with fewer than all that are online, so the batch job's rather than that of one of
// its ranks; else all that are online.
std::vector<int> cpus_of_job(const std::filesystem::path& root = "/");
std::vector<int> online_cpus(const std::filesystem::path& root = "/");

// "0-3,8" as Linux writes CPU lists; malformed text gives what could be read of it.
std::vector<int> parse_cpu_list(std::string_view text);

}  // namespace trireme::job
