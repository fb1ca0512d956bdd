#include "trireme/job/node_limits.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

#include "trireme/base/files.hpp"
#include "trireme/base/text.hpp"

namespace trireme::job {
namespace {

namespace fs = std::filesystem;

using base::read_if_there;

fs::path under(const fs::path& root, const fs::path& absolute) {
  return root / absolute.relative_path();
}

std::optional<int64_t> number(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return std::nullopt;
  text.remove_prefix(first);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  // v1 writes "no limit" as a number near 2^63, which from_chars takes; larger ones are no limit
  // either
  if (error == std::errc::result_out_of_range) return std::numeric_limits<int64_t>::max();
  if (error != std::errc() || end == text.data()) return std::nullopt;  // "max"
  return value;
}

// The number after `key` at the start of a line.
std::optional<int64_t> field(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key) && line.size() > key.size() &&
        (line[key.size()] == ' ' || line[key.size()] == ':')) {
      return number(std::string_view(line).substr(key.size() + 1));
    }
  }
  return std::nullopt;
}

bool has_word(const std::string& list, std::string_view word) {
  std::istringstream words(list);
  for (std::string one; std::getline(words, one, ',');) {
    if (one == word) return true;
  }
  return false;
}

// mountinfo writes blanks in paths as \040 and the like.
std::string unescaped(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool octal = text[i] == '\\' && i + 3 < text.size();
    out += octal ? static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8)) : text[i];
    if (octal) i += 3;
  }
  return out;
}

struct Mount {
  std::string
      root;  // folder of the hierarchy that is mounted: "/" but in containers that see a part of it
  fs::path point;
};

// Where the hierarchy of `controller` is mounted; "": that of version 2.
std::optional<Mount> find_mount(const fs::path& root, const std::string& controller) {
  std::istringstream lines(read_if_there(root / "proc/self/mountinfo"));
  for (std::string line; std::getline(lines, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line.substr(0, dash)), after(line.substr(dash + 3));
    std::string skip, inner, point, type, source, options;
    before >> skip >> skip >> skip >> inner >> point;
    after >> type >> source >> options;
    if (controller.empty() ? type == "cgroup2"
                           : type == "cgroup" && has_word(options, controller)) {
      return Mount{unescaped(inner), unescaped(point)};
    }
  }
  return std::nullopt;
}

// This process' group in that hierarchy, as /proc/self/cgroup writes it.
std::optional<std::string> find_path(const fs::path& root, const std::string& controller) {
  std::istringstream lines(read_if_there(root / "proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    if (controller.empty() ? line.starts_with("0::") : has_word(names, controller))
      return line.substr(second + 1);
  }
  return std::nullopt;
}

struct Level {
  fs::path folder;   // below `root`
  std::string name;  // "/slurm/job_5", for messages
};

// Groups above this process in one hierarchy, innermost first. A path that is not below what is
// mounted here (another namespace's) leaves the mount point itself, which then is this process' own
// group.
std::vector<Level> levels_of(const fs::path& root, const std::string& controller) {
  const auto mount = find_mount(root, controller);
  const auto path = find_path(root, controller);
  if (!mount || !path) return {};
  std::string inside = *path;
  if (mount->root != "/")
    inside = inside.starts_with(mount->root) ? inside.substr(mount->root.size()) : "/";
  const auto folders = fs::path(inside);
  if (std::find(folders.begin(), folders.end(), "..") != folders.end()) inside = "/";
  std::vector<Level> out;
  for (fs::path at = fs::path("/") / fs::path(inside).relative_path();; at = at.parent_path()) {
    const fs::path folder = under(root, mount->point) / at.relative_path();
    std::error_code error;
    if (fs::is_directory(folder, error)) out.push_back({folder, at.string()});
    if (at == at.parent_path()) return out;
  }
}

struct MemoryFiles {
  const char* controller;  // "": version 2
  std::vector<const char*> limits;
  const char* usage;
  std::vector<const char*> page_cache;  // in memory.stat
};

void cap(const fs::path& root, const MemoryFiles& files, AvailableMemory& memory) {
  for (const auto& level : levels_of(root, files.controller)) {
    int64_t limit = std::numeric_limits<int64_t>::max();
    for (const char* name : files.limits)
      limit = std::min(limit, number(read_if_there(level.folder / name)).value_or(limit));
    const auto usage = number(read_if_there(level.folder / files.usage));
    if (limit >= int64_t{1} << 60 || !usage) continue;
    const std::string stat = read_if_there(level.folder / "memory.stat");
    int64_t cache = 0;
    for (const char* key : files.page_cache) cache += field(stat, key).value_or(0);
    const int64_t left = std::max<int64_t>(0, limit - std::max<int64_t>(0, *usage - cache));
    if (left >= memory.bytes) continue;
    memory = {left, base::text("the control group ", level.name, " (limit ",
                               base::human_bytes(static_cast<double>(limit)), ")")};
  }
}

uint64_t identity(const fs::path& folder) {
  struct stat info {};
  return ::stat(folder.c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_ino) : 0;
}

}  // namespace

AvailableMemory available_memory(const fs::path& root) {
  const auto node = field(read_if_there(root / "proc/meminfo"), "MemAvailable");
  AvailableMemory memory{node ? *node * 1024 : std::numeric_limits<int64_t>::max(), "the node"};
  cap(root, {"", {"memory.max", "memory.high"}, "memory.current", {"inactive_file", "active_file"}},
      memory);
  cap(root,
      {"memory",
       {"memory.limit_in_bytes"},
       "memory.usage_in_bytes",
       {"total_inactive_file", "total_active_file"}},
      memory);
  return memory;
}

std::vector<CpuQuota> cpu_quotas(const fs::path& root) {
  std::vector<CpuQuota> quotas;
  const auto add = [&](const fs::path& folder, std::optional<int64_t> quota,
                       std::optional<int64_t> period) {
    if (quota && period && *quota > 0 && *period > 0) {
      quotas.push_back(
          {identity(folder), static_cast<double>(*quota) / static_cast<double>(*period)});
    }
  };
  for (const auto& level : levels_of(root, "")) {
    const std::string line =
        read_if_there(level.folder / "cpu.max");  // "200000 100000" or "max 100000"
    const size_t blank = line.find(' ');
    if (blank != std::string::npos)
      add(level.folder, number(line.substr(0, blank)), number(line.substr(blank + 1)));
  }
  for (const auto& level : levels_of(root, "cpu")) {
    add(level.folder, number(read_if_there(level.folder / "cpu.cfs_quota_us")),
        number(read_if_there(level.folder / "cpu.cfs_period_us")));
  }
  return quotas;
}

std::vector<int> online_cpus(const fs::path& root) {
  auto cpus = parse_cpu_list(read_if_there(root / "sys/devices/system/cpu/online"));
  const auto count = static_cast<int>(std::max<long>(1, sysconf(_SC_NPROCESSORS_ONLN)));
  if (!cpus.empty()) return cpus;
  for (int cpu = 0; cpu < count; ++cpu) cpus.push_back(cpu);  // no /sys: numbered from 0
  return cpus;
}

std::vector<int> cpus_of_job(const fs::path& root) {
  const auto online = online_cpus(root);
  for (const char* controller : {"", "cpuset"}) {
    auto levels = levels_of(root, controller);
    std::reverse(levels.begin(), levels.end());
    for (const auto& level : levels) {
      for (const char* name : {"cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"}) {
        const auto cpus = parse_cpu_list(read_if_there(level.folder / name));
        if (!cpus.empty() && cpus.size() < online.size()) return cpus;
      }
    }
  }
  return online;
}

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> out;
  const auto number = [](std::string_view part) {
    int value = -1;
    std::from_chars(part.data(), part.data() + part.size(), value);
    return value;
  };
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    const size_t dash = part.find('-');
    const int first = number(part.substr(0, dash));
    const int last = dash == std::string_view::npos ? first : number(part.substr(dash + 1));
    for (int i = std::max(first, 0); first >= 0 && i <= last; ++i) out.push_back(i);
    begin = end + 1;
  }
  return out;
}

}  // namespace trireme::job
