// Zeroed host memory on huge pages where the system allows them; physical pages come with the first touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace trireme::generate {

class HugeBuffer {
 public:
  HugeBuffer() = default;
  // `what` names the memory in the error. Throws UserError(out_of_memory).
  HugeBuffer(int64_t bytes, std::string_view what);
  HugeBuffer(HugeBuffer&& other) noexcept;
  HugeBuffer& operator=(HugeBuffer&& other) noexcept;
  ~HugeBuffer();

  std::byte* data() const { return aligned_; }
  // Gives the physical pages back; the contents become zero.
  void discard();

 private:
  void release() noexcept;
  void* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
  std::byte* aligned_ = nullptr;
};

}  // namespace trireme::generate
