#include "trireme/comm/pages.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <thread>
#include <vector>

#include "trireme/base/checked.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/text.hpp"
#include "trireme/job/core_share.hpp"
#include "trireme/job/node_limits.hpp"

#ifndef MADV_POPULATE_WRITE  // Linux 5.14; glibc 2.35 names it
#define MADV_POPULATE_WRITE 23
#endif

namespace trireme::comm {
namespace {

constexpr int64_t interleaved_block = int64_t{2} << 20;
constexpr int interleave = 3;  // MPOL_INTERLEAVE of linux/mempolicy.h; libnuma is no dependency
constexpr int64_t pages_looked_at = 1024;

int64_t system_page_bytes() {
  static const auto bytes =
      static_cast<int64_t>(sysconf(_SC_PAGESIZE));  // 64 KiB on some Arm systems
  return bytes;
}

int populate_writable(std::byte* address, int64_t bytes) {
  while (bytes > 0) {
    const int64_t piece = std::min<int64_t>(bytes, int64_t{1} << 30);
    if (madvise(address, static_cast<size_t>(piece), MADV_POPULATE_WRITE) == 0) {
      address += piece;
      bytes -= piece;
    } else if (errno != EINTR && errno != EAGAIN) {
      return errno;
    }
  }
  return 0;
}

// body(begin, end) on up to `threads` threads, each with a contiguous part cut at huge pages.
template <class Body>
void in_parts(int64_t bytes, int threads, const Body& body) {
  const int64_t blocks = base::ceil_div(bytes, interleaved_block);
  const int64_t count = std::clamp<int64_t>(threads, 1, std::max<int64_t>(blocks, 1));
  const auto part = [&](int64_t i) {
    body(blocks * i / count * interleaved_block,
         std::min(blocks * (i + 1) / count * interleaved_block, bytes));
  };
  std::vector<std::thread> others;
  for (int64_t i = 1; i < count; ++i) others.emplace_back(part, i);
  part(0);
  for (auto& thread : others) thread.join();
}

// The word in brackets of "always [madvise] never".
std::string chosen_word(const std::string& line) {
  const size_t open = line.find('['), close = line.find(']');
  return open == std::string::npos || close == std::string::npos || close < open
             ? ""
             : line.substr(open + 1, close - open - 1);
}

void count_nodes(const std::byte* address, int64_t bytes, PageReport& report) {
  const int64_t page = system_page_bytes();
  const auto first = reinterpret_cast<uintptr_t>(address) / static_cast<uintptr_t>(page) *
                     static_cast<uintptr_t>(page);
  const int64_t pages = base::ceil_div(bytes, page);
  const int64_t looked_at = std::min(pages, pages_looked_at);
  std::vector<void*> places;
  for (int64_t i = 0; i < looked_at; ++i)
    places.push_back(
        reinterpret_cast<void*>(first + static_cast<uintptr_t>(i * pages / looked_at * page)));
  std::vector<int> status(places.size(), -1);
  if (places.empty() ||
      syscall(SYS_move_pages, 0, places.size(), places.data(), nullptr, status.data(), 0) != 0)
    return;
  for (const int node : status) {
    if (node >= 0) ++report.pages_of_node[node];
  }
}

}  // namespace

int populate_pages(std::byte* address, int64_t bytes, int threads) {
  if (bytes <= 0) return 0;
  const auto before = static_cast<int64_t>(reinterpret_cast<uintptr_t>(address) %
                                           static_cast<uintptr_t>(system_page_bytes()));
  std::atomic<int> error{0};
  in_parts(bytes + before, threads, [&](int64_t begin, int64_t end) {
    if (const int failed = populate_writable(address - before + begin, end - begin); failed != 0)
      error = failed;
  });
  return error;
}

int touch_new_pages(std::byte* address, int64_t bytes, int threads) {
  const int error = populate_pages(address, bytes, threads);
  if (error != EINVAL) return error;
  in_parts(bytes, threads, [&](int64_t begin, int64_t end) {
    std::memset(address + begin, 0, static_cast<size_t>(end - begin));
  });
  return 0;
}

int touch_threads() {
  constexpr size_t most = 8;
  return static_cast<int>(std::clamp<size_t>(job::cpus_of_process().size(), 1, most));
}

bool interleave_pages(std::byte* address, int64_t bytes, std::span<const int> numa_nodes) {
  if (numa_nodes.size() < 2 || bytes <= 0) return true;
  constexpr size_t bits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(
      static_cast<size_t>(*std::max_element(numa_nodes.begin(), numa_nodes.end())) / bits + 1);
  for (const int node : numa_nodes)
    mask[static_cast<size_t>(node) / bits] |= 1ul << (static_cast<size_t>(node) % bits);
  return syscall(SYS_mbind, address, static_cast<size_t>(bytes), interleave, mask.data(),
                 mask.size() * bits + 1, 0) == 0;
}

PageReport& PageReport::operator+=(const PageReport& other) {
  present += other.present;
  huge += other.huge;
  for (const auto& [node, pages] : other.pages_of_node) pages_of_node[node] += pages;
  return *this;
}

PageReport report_smaps(const std::string& smaps, uint64_t address, int64_t bytes) {
  PageReport report;
  bool inside = false;
  std::istringstream lines(smaps);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (!name.ends_with(':')) {  // "7f00-7f80 rw-s ...": the head of a map
      uint64_t first = 0, last = 0;
      char dash = 0;
      std::istringstream range(name);
      range >> std::hex >> first >> dash >> last;
      inside = dash == '-' && first < address + static_cast<uint64_t>(bytes) && last > address;
      continue;
    }
    int64_t kib = 0;
    if (!inside || !(words >> kib)) continue;
    if (name == "Rss:") report.present += kib * 1024;
    if (name == "AnonHugePages:" || name == "ShmemPmdMapped:" || name == "FilePmdMapped:")
      report.huge += kib * 1024;
  }
  return report;
}

PageReport report_pages(const std::byte* address, int64_t bytes) {
  if (bytes <= 0) return {};
  PageReport report = report_smaps(base::read_if_there("/proc/self/smaps"),
                                   reinterpret_cast<uint64_t>(address), bytes);
  count_nodes(address, bytes, report);
  return report;
}

std::string to_text(const PageReport& report) {
  std::string out = base::text(report.present, ' ', report.huge);
  for (const auto& [node, pages] : report.pages_of_node) out += base::text(' ', node, ' ', pages);
  return out;
}

PageReport page_report_from_text(const std::string& text) {
  PageReport report;
  std::istringstream in(text);
  in >> report.present >> report.huge;
  int node = 0;
  for (int64_t pages = 0; in >> node >> pages;) report.pages_of_node[node] = pages;
  return report;
}

std::string describe(const PageReport& report, int numa_nodes) {
  const auto percent = [](int64_t part, int64_t whole) {
    return base::text((100 * part + whole / 2) / whole, " %");
  };
  std::string out = report.huge == 0 ? base::text(system_page_bytes() / 1024, " KiB pages")
                                     : percent(report.huge, std::max(report.huge, report.present)) +
                                           " huge pages";
  if (numa_nodes <= 1) return out + ", one NUMA node";
  int64_t all = 0;
  for (const auto& [node, pages] : report.pages_of_node) all += pages;
  if (all == 0) return out + ", NUMA nodes unknown";
  std::string nodes;
  for (const auto& [node, pages] : report.pages_of_node)
    nodes += base::text(nodes.empty() ? "" : ", ", node, ": ", percent(pages, all));
  return base::text(out, ", NUMA nodes ", nodes);
}

int numa_nodes_of_machine(const std::filesystem::path& root) {
  const auto nodes =
      job::parse_cpu_list(base::read_if_there(root / "sys/devices/system/node/has_memory"));
  return std::max(1, static_cast<int>(nodes.size()));
}

std::string huge_page_policy(HugePages which, const std::filesystem::path& root) {
  const char* name = which == HugePages::shared ? "shmem_enabled" : "enabled";
  return chosen_word(base::read_if_there(root / "sys/kernel/mm/transparent_hugepage" / name));
}

}  // namespace trireme::comm
