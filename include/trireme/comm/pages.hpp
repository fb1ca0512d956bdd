// Pages of large memory: asking for huge ones, who touches them first (Linux gives a page from the
// NUMA node of the thread that touches it), and what the kernel says came of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>

namespace trireme::comm {

// Makes the pages of [address, address + bytes) present and writable, on up to `threads` threads
// that each take a contiguous part; contents stay. Advise huge pages before. Returns 0 or an errno:
// memory that cannot be backed (ENOMEM, EFAULT: a touch would raise SIGBUS) is an answer here and
// not a signal later; EINVAL: the kernel is older than 5.14 and has touched nothing.
int populate_pages(std::byte* address, int64_t bytes, int threads);

// The same for memory that was just mapped and is zero; touches by hand where the kernel is older.
int touch_new_pages(std::byte* address, int64_t bytes, int threads);
// Threads of this rank that are worth it: its processors, but not more than fill a node's memory
// channels together with the others.
int touch_threads();

// Spreads pages that are not there yet evenly over these NUMA nodes; nothing to do for one node.
// False where the system refuses.
bool interleave_pages(std::byte* address, int64_t bytes, std::span<const int> numa_nodes);

// The kinds of pages in one or several ranges. Sums may be added.
struct PageReport {
  int64_t present = 0;                   // bytes in this process' page tables
  int64_t huge = 0;                      // of these, on huge pages
  std::map<int, int64_t> pages_of_node;  // looked-at pages by NUMA node
  PageReport& operator+=(const PageReport& other);
};
// By /proc/self/smaps (Rss; AnonHugePages, ShmemPmdMapped, FilePmdMapped of the maps that overlap
// the range) and move_pages (up to 1024 pages at equal distances). Zero where the system does not
// say.
PageReport report_pages(const std::byte* address, int64_t bytes);
// The same text of smaps from elsewhere, for tests.
PageReport report_smaps(const std::string& smaps, uint64_t address, int64_t bytes);

std::string to_text(const PageReport& report);
PageReport page_report_from_text(const std::string& text);

// "4 KiB pages, one NUMA node", "97 % huge pages, NUMA nodes 0: 50 %, 1: 50 %". `numa_nodes`: of
// the machine.
std::string describe(const PageReport& report, int numa_nodes);

// NUMA nodes of the machine that have memory; 1 where /sys says nothing.
int numa_nodes_of_machine(const std::filesystem::path& root = "/");

// The administrator's setting, "always", "advise", "never", ...: for memory that ranks share and
// for that of one process. "": unknown.
enum class HugePages { shared, own };
std::string huge_page_policy(HugePages which, const std::filesystem::path& root = "/");

}  // namespace trireme::comm
