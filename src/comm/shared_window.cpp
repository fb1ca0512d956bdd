// Memory shared by the ranks of a node: one anonymous file (memfd) made by the node's first rank,
// opened by the others through /proc/<pid>/fd, so that no name is left behind when a rank dies.
// Every rank touches its share of the pages through its own map: that puts them on its NUMA node,
// and only a touch through an advised map gets huge pages (fallocate never does).
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/shard_exchange_parts.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/comm/pages.hpp"
#include "trireme/comm/topology.hpp"
#include "trireme/job/affinity.hpp"
#include "trireme/job/core_share.hpp"
#include "trireme/job/node_limits.hpp"

namespace trireme::comm {
namespace {

constexpr int64_t page_of_shm = 4096;

// A memory file of `bytes` without pages, or an invalid descriptor; `error` holds errno.
base::FileDescriptor create_memory_file(int64_t bytes, const std::string& name, int& error) {
  base::FileDescriptor file(memfd_create(name.c_str(), MFD_CLOEXEC));
  error = file.valid() && ftruncate(file.get(), bytes) == 0 ? 0 : errno;
  return error == 0 ? std::move(file) : base::FileDescriptor();
}

// As this process names a memory file of its own to others; its fd is negative where it has none.
WindowFile describe_file(int fd, int64_t bytes) {
  struct stat info {};
  if (fd < 0 || ::fstat(fd, &info) != 0) return {};
  return {static_cast<int32_t>(getpid()), fd, info.st_dev, info.st_ino, bytes};
}

// Invalid where it cannot be opened, and where the number of its maker is another process's here (a
// PID namespace for each rank): what lies there is somebody's file, which must not be written.
base::FileDescriptor open_memory_file(const WindowFile& offer, int how) {
  base::FileDescriptor file(::open(base::text("/proc/", offer.pid, "/fd/", offer.fd).c_str(),
                                   how | O_CLOEXEC | O_NONBLOCK));
  const WindowFile found = describe_file(file.get(), offer.bytes);
  return found.device == offer.device && found.inode == offer.inode && found.fd >= 0
             ? std::move(file)
             : base::FileDescriptor();
}

// The windows that this process has, by their first address.
class Windows {
 public:
  static Windows& of_process() {
    static Windows windows;
    return windows;
  }
  void add(const std::byte* base, const WindowFile& file) {
    const std::lock_guard lock(mutex_);
    files_[base] = file;
  }
  void remove(const std::byte* base) noexcept {
    const std::lock_guard lock(mutex_);
    files_.erase(base);
  }
  WindowPlace find(const std::byte* address) {
    const std::lock_guard lock(mutex_);
    auto after = files_.upper_bound(address);
    if (after == files_.begin()) return {};
    const auto& [base, file] = *--after;
    return address - base < file.bytes ? WindowPlace{file, address - base} : WindowPlace{};
  }
  const std::byte* base_of(const WindowFile& wanted) {
    const std::lock_guard lock(mutex_);
    for (const auto& [base, file] : files_) {
      if (file.device == wanted.device && file.inode == wanted.inode) return base;
    }
    return nullptr;
  }

 private:
  std::mutex mutex_;
  std::map<const std::byte*, WindowFile> files_;
};

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
};

// Ranges of the window that this rank touches first.
std::vector<Range> own_ranges(const CommView& comm, const std::vector<int64_t>& offsets,
                              Placement placement) {
  const auto me = static_cast<size_t>(comm.rank());
  if (placement == Placement::by_owner || comm.size() == 1) return {{offsets[me], offsets[me + 1]}};
  std::vector<Range> out;
  for (int64_t begin = comm.rank() * huge_page_bytes; begin < offsets.back();
       begin += comm.size() * huge_page_bytes) {
    out.push_back({begin, std::min(begin + huge_page_bytes, offsets.back())});
  }
  return out;
}

// Kernels before 5.14 cannot answer a touch by an error: they reserve the pages, here at least by
// their owner.
int back_range(std::byte* base, int fd, const Range& range, int threads) {
  const int error = populate_pages(base + range.begin, range.end - range.begin, threads);
  if (error != EINVAL) return error;
  return fallocate(fd, 0, range.begin, range.end - range.begin) == 0 ? 0 : errno;
}

// Backs the ranges with memory; 0 or an errno. A rank that computes on several NUMA nodes spreads
// its own part over them.
int back(std::byte* base, int fd, const std::vector<Range>& ranges) {
  const int threads = touch_threads();
  if (ranges.size() == 1) {
    const Range& own = ranges.front();
    if (own.begin == own.end) return 0;
    interleave_pages(base + own.begin, own.end - own.begin,
                     job::numa_nodes_of(job::cpus_of_process()));
    return back_range(base, fd, own, threads);
  }
  std::atomic<int> error{0};
  const auto every_nth = [&](size_t first) {
    for (size_t i = first; i < ranges.size() && error == 0; i += static_cast<size_t>(threads)) {
      if (const int failed = back_range(base, fd, ranges[i], 1); failed != 0) error = failed;
    }
  };
  std::vector<std::thread> others;
  for (size_t t = 1; t < std::min(static_cast<size_t>(threads), ranges.size()); ++t)
    others.emplace_back(every_nth, t);
  every_nth(0);
  for (auto& thread : others) thread.join();
  return error;
}

// Collective: the sum of what the ranks see of the pages that each has touched.
std::string describe_pages(const CommView& comm, const std::byte* base,
                           const std::vector<Range>& ranges) {
  PageReport mine;
  if (!ranges.empty())
    mine = report_pages(base + ranges.front().begin, ranges.back().end - ranges.front().begin);
  PageReport all;
  for (const auto& text : comm.all_gather(to_text(mine))) all += page_report_from_text(text);
  std::string out = "memfd, " + describe(all, numa_nodes_of_machine());
  const std::string policy = huge_page_policy(HugePages::shared);
  if (all.huge == 0 && policy == "never") out += " (shmem_enabled is never)";
  return out;
}

}  // namespace

SharedWindow::SharedWindow(const CommView& node_comm, int64_t bytes, const std::string& name,
                           Placement placement) {
  EXPECT(bytes >= 0);
  const auto sizes = node_comm.gather_values(base::round_up(bytes, page_of_shm));
  offsets_.assign(1, 0);
  for (const int64_t size : sizes) offsets_.push_back(offsets_.back() + size);
  const int64_t total = std::max(base::round_up(offsets_.back(), huge_page_bytes), huge_page_bytes);

  int error = 0;
  base::FileDescriptor file;
  job::AvailableMemory memory;
  if (node_comm.rank() == 0) {
    memory = job::available_memory();
    if (memory.bytes < total) {
      error = ENOMEM;
    } else {
      file = create_memory_file(total, name, error);
    }
  }
  const WindowFile offer = node_comm.broadcast_value(describe_file(file.get(), total), 0);
  error = node_comm.broadcast_value(error != 0 || offer.fd >= 0 ? error : EBADF, 0);
  const auto refuse = [&](int why) {
    memory.bytes = node_comm.broadcast_value(memory.bytes, 0);
    memory.limited_by = node_comm.broadcast(memory.limited_by, 0);
    throw UserError(ExitCode::out_of_memory,
                    base::text("cannot share ", base::human_bytes(static_cast<double>(total)),
                               " between the ranks of this node (", std::strerror(why), "; ",
                               base::human_bytes(static_cast<double>(memory.bytes)),
                               " of memory are available, by ", memory.limited_by,
                               "): use a smaller model, more nodes or fewer roles on a rank"));
  };
  if (error != 0) refuse(error);
  if (node_comm.rank() != 0) file = open_memory_file(offer, O_RDWR);
  void* map = MAP_FAILED;
  if (file.valid())
    map = mmap(nullptr, static_cast<size_t>(total), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(),
               0);
  const bool mapped = node_comm.all(map != MAP_FAILED);
  if (!mapped) {
    if (map != MAP_FAILED) munmap(map, static_cast<size_t>(total));
    throw UserError(ExitCode::unfit_environment,
                    "the ranks of one node cannot open each other's memory through /proc (the "
                    "system forbids it, e.g. "
                    "by ptrace_scope or hidepid, or each has process numbers of its own): run the "
                    "ranks under one user in one container");
  }
  base_ = static_cast<std::byte*>(map);
  mapped_bytes_ = total;
  madvise(map, static_cast<size_t>(total), MADV_HUGEPAGE);  // before the first touch; a wish
  const auto ranges = own_ranges(node_comm, offsets_, placement);
  if (const int failed = node_comm.max<int32_t>(back(base_, file.get(), ranges)); failed != 0) {
    release();
    refuse(failed);
  }
  file_ = std::move(file);
  Windows::of_process().add(base_, describe_file(file_.get(), total));
  kind_ = describe_pages(node_comm, base_, ranges);
}

SharedWindow::SharedWindow(SharedWindow&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      file_(std::move(other.file_)),
      offsets_(std::move(other.offsets_)),
      kind_(std::move(other.kind_)) {}

SharedWindow& SharedWindow::operator=(SharedWindow&& other) noexcept {
  if (this != &other) {
    release();
    base_ = std::exchange(other.base_, nullptr);
    mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
    file_ = std::move(other.file_);
    offsets_ = std::move(other.offsets_);
    kind_ = std::move(other.kind_);
  }
  return *this;
}

SharedWindow::~SharedWindow() { release(); }

void SharedWindow::release() noexcept {
  if (base_) {
    Windows::of_process().remove(base_);
    munmap(base_, static_cast<size_t>(mapped_bytes_));
  }
  base_ = nullptr;
}

WindowPlace find_in_windows(const void* address) {
  return Windows::of_process().find(static_cast<const std::byte*>(address));
}

WindowView::WindowView(const WindowFile& file) : base_(Windows::of_process().base_of(file)) {
  if (base_ || file.fd < 0) return;
  const base::FileDescriptor opened = open_memory_file(file, O_RDONLY);
  if (!opened.valid()) return;
  void* map =
      mmap(nullptr, static_cast<size_t>(file.bytes), PROT_READ, MAP_SHARED, opened.get(), 0);
  if (map == MAP_FAILED) return;
  madvise(map, static_cast<size_t>(file.bytes), MADV_HUGEPAGE);  // a wish
  base_ = static_cast<const std::byte*>(map);
  mapped_bytes_ = file.bytes;
}

WindowView::WindowView(WindowView&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)) {}

WindowView::~WindowView() {
  if (mapped_bytes_ > 0) munmap(const_cast<std::byte*>(base_), static_cast<size_t>(mapped_bytes_));
}

}  // namespace trireme::comm
