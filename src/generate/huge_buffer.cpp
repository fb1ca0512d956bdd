#include "huge_buffer.hpp"

#include <sys/mman.h>

#include <utility>

#include "trireme/base/error.hpp"

namespace trireme::generate {
namespace {
constexpr size_t huge_page = size_t{2} << 20;
}

HugeBuffer::HugeBuffer(int64_t bytes, std::string_view what) {
  mapped_bytes_ = static_cast<size_t>(bytes) + huge_page;
  mapped_ = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped_ == MAP_FAILED) mapped_ = nullptr;
  VALIDATE(mapped_ != nullptr, ExitCode::out_of_memory, "no memory for ", what, " (", base::human_bytes(static_cast<double>(bytes)),
           "): give the job more memory, or use more tensor-parallel ranks");
  const auto address = reinterpret_cast<uintptr_t>(mapped_);
  aligned_ = reinterpret_cast<std::byte*>((address + huge_page - 1) / huge_page * huge_page);
  ::madvise(aligned_, mapped_bytes_ - huge_page, MADV_HUGEPAGE);  // a wish; small pages do as well
}

HugeBuffer::HugeBuffer(HugeBuffer&& other) noexcept { *this = std::move(other); }

HugeBuffer& HugeBuffer::operator=(HugeBuffer&& other) noexcept {
  if (this == &other) return *this;
  release();
  mapped_ = std::exchange(other.mapped_, nullptr);
  mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
  aligned_ = std::exchange(other.aligned_, nullptr);
  return *this;
}

HugeBuffer::~HugeBuffer() { release(); }

void HugeBuffer::discard() {
  if (mapped_ != nullptr) ::madvise(mapped_, mapped_bytes_, MADV_DONTNEED);
}

void HugeBuffer::release() noexcept {
  if (mapped_ != nullptr) ::munmap(mapped_, mapped_bytes_);
  mapped_ = nullptr;
}

}  // namespace trireme::generate
