#include "trireme/comm/huge_buffer.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/comm/pages.hpp"
#include "trireme/job/affinity.hpp"
#include "trireme/job/core_share.hpp"

namespace trireme::comm {
namespace {
constexpr size_t huge_page = size_t{2} << 20;
}

HugeBuffer::HugeBuffer(int64_t bytes, FirstTouch touch, std::string_view what,
                       std::string_view remedy)
    : bytes_(bytes) {
  if (bytes == 0) return;
  const auto refuse = [&](int error) {
    release();
    throw UserError(
        ExitCode::out_of_memory,
        base::text("no memory for ", what, " (", base::human_bytes(static_cast<double>(bytes)),
                   ", ", std::strerror(error), "): ", remedy));
  };
  mapped_bytes_ = static_cast<size_t>(bytes) + huge_page;
  mapped_ = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped_ == MAP_FAILED) {
    mapped_ = nullptr;
    refuse(errno);
  }
  const auto address = reinterpret_cast<uintptr_t>(mapped_);
  aligned_ = reinterpret_cast<std::byte*>((address + huge_page - 1) / huge_page * huge_page);
  ::madvise(aligned_, mapped_bytes_ - huge_page, MADV_HUGEPAGE);  // a wish; small pages do as well
  const auto cpus = job::cpus_of_process();
  interleave_pages(aligned_, bytes, job::numa_nodes_of(cpus));
  if (touch == FirstTouch::later) return;
  if (const int error = touch_new_pages(aligned_, bytes, touch_threads()); error != 0)
    refuse(error);
}

HugeBuffer::HugeBuffer(HugeBuffer&& other) noexcept { *this = std::move(other); }

HugeBuffer& HugeBuffer::operator=(HugeBuffer&& other) noexcept {
  if (this == &other) return *this;
  release();
  mapped_ = std::exchange(other.mapped_, nullptr);
  mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
  aligned_ = std::exchange(other.aligned_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

HugeBuffer::~HugeBuffer() { release(); }

void HugeBuffer::discard() {
  if (mapped_ != nullptr) ::madvise(mapped_, mapped_bytes_, MADV_DONTNEED);
}

std::string HugeBuffer::describe() const {
  const PageReport report = report_pages(aligned_, bytes_);
  std::string out = comm::describe(report, numa_nodes_of_machine());
  if (report.huge == 0 && huge_page_policy(HugePages::own) == "never")
    out += " (transparent_hugepage is never)";
  return out;
}

void HugeBuffer::release() noexcept {
  if (mapped_ != nullptr) ::munmap(mapped_, mapped_bytes_);
  mapped_ = nullptr;
}

}  // namespace trireme::comm
