// Zeroed host memory of one process, on huge pages where the system allows them. On a rank whose
// cores lie on several NUMA nodes its pages are spread evenly over them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::comm {

enum class FirstTouch {
  later,  // physical pages come where and when somebody writes: for memory that may stay unused
  now,    // by several threads at once, in the constructor
};

class HugeBuffer {
 public:
  HugeBuffer() = default;
  // `what` names the memory in the error, `remedy` says what to do. Throws
  // UserError(out_of_memory). Aligned to 2 MiB.
  HugeBuffer(int64_t bytes, FirstTouch touch, std::string_view what, std::string_view remedy);
  HugeBuffer(HugeBuffer&& other) noexcept;
  HugeBuffer& operator=(HugeBuffer&& other) noexcept;
  ~HugeBuffer();

  std::byte* data() const { return aligned_; }
  int64_t bytes() const { return bytes_; }
  // Gives the physical pages back; the contents become zero.
  void discard();
  // "97 % huge pages, one NUMA node": the kernel's report on the pages that exist.
  std::string describe() const;

 private:
  void release() noexcept;
  void* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
  std::byte* aligned_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace trireme::comm
