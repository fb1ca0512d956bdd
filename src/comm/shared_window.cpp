// Memory shared by the ranks of a node: one anonymous file (memfd) made by the node's first rank, opened by the others
// through /proc/<pid>/fd, so that no name is left behind when a rank dies.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "comm/shard_exchange_parts.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/comm/topology.hpp"

namespace trireme::comm {
namespace {

constexpr int64_t kPage = 4096;

// A memory file of `bytes`, or an invalid descriptor; `error` holds errno. Pages are reserved now, so that running out
// of memory is an error here and not a SIGBUS later.
base::FileDescriptor create_memory_file(int64_t bytes, const std::string& name, int& error) {
  const int fd = memfd_create(name.c_str(), MFD_CLOEXEC);
  if (fd < 0) {
    error = errno;
    return {};
  }
  base::FileDescriptor file(fd);
  if (fallocate(fd, 0, 0, bytes) != 0) {
    error = errno;
    return {};
  }
  error = 0;
  return file;
}

base::FileDescriptor open_memory_file(int pid, int fd) {
  return base::FileDescriptor(::open(base::text("/proc/", pid, "/fd/", fd).c_str(), O_RDWR | O_CLOEXEC));
}

// Available memory in bytes, as the kernel reckons it; refusing early beats being killed late.
int64_t available_memory() {
  const std::string info = [] {
    std::string out(8192, '\0');
    const base::FileDescriptor fd = base::open_read("/proc/meminfo");
    const ssize_t n = ::read(fd.get(), out.data(), out.size());
    out.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return out;
  }();
  const auto at = info.find("MemAvailable:");
  if (at == std::string::npos) return INT64_MAX;
  return std::atoll(info.c_str() + at + std::strlen("MemAvailable:")) * 1024;
}

}  // namespace

SharedWindow::SharedWindow(const CommView& node_comm, int64_t bytes, const std::string& name) {
  EXPECT(bytes >= 0);
  const auto sizes = node_comm.gather_values(base::round_up(bytes, kPage));
  offsets_.assign(1, 0);
  for (const int64_t size : sizes) offsets_.push_back(offsets_.back() + size);
  const int64_t total = std::max(base::round_up(offsets_.back(), kHugePage), kHugePage);

  struct Offer {
    int pid = 0;
    int fd = -1;
    int error = 0;
    int64_t available = 0;
  } offer;
  base::FileDescriptor file;
  if (node_comm.rank() == 0) {
    offer.pid = static_cast<int>(getpid());
    offer.available = available_memory();
    if (offer.available < total) {
      offer.error = ENOMEM;
    } else {
      file = create_memory_file(total, name, offer.error);
    }
    offer.fd = file.get();
  }
  offer = node_comm.broadcast_value(offer, 0);
  VALIDATE(offer.error == 0, ExitCode::out_of_memory, "cannot share ", base::human_bytes(static_cast<double>(total)),
           " between the ranks of this node (", std::strerror(offer.error), "; ",
           base::human_bytes(static_cast<double>(offer.available)),
           " of memory are available): use a smaller model, more nodes or fewer roles on a rank");
  if (node_comm.rank() != 0) file = open_memory_file(offer.pid, offer.fd);
  void* map = MAP_FAILED;
  if (file.valid()) map = mmap(nullptr, static_cast<size_t>(total), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  const bool mapped = node_comm.all(map != MAP_FAILED);
  if (!mapped) {
    if (map != MAP_FAILED) munmap(map, static_cast<size_t>(total));
    throw UserError(ExitCode::unfit_environment,
                    "the ranks of one node cannot open each other's memory through /proc (the system forbids it, e.g. "
                    "by ptrace_scope or hidepid): run the ranks under one user in one container");
  }
  base_ = static_cast<std::byte*>(map);
  const bool huge = madvise(map, static_cast<size_t>(total), MADV_HUGEPAGE) == 0;
  kind_ = base::text("memfd, ", huge ? "huge pages advised" : "4 KiB pages");
  mapped_bytes_ = total;
}

SharedWindow::SharedWindow(SharedWindow&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      offsets_(std::move(other.offsets_)), kind_(std::move(other.kind_)) {}

SharedWindow& SharedWindow::operator=(SharedWindow&& other) noexcept {
  if (this != &other) {
    release();
    base_ = std::exchange(other.base_, nullptr);
    mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
    offsets_ = std::move(other.offsets_);
    kind_ = std::move(other.kind_);
  }
  return *this;
}

SharedWindow::~SharedWindow() { release(); }

void SharedWindow::release() noexcept {
  if (base_) munmap(base_, static_cast<size_t>(mapped_bytes_));
  base_ = nullptr;
}

}  // namespace trireme::comm
