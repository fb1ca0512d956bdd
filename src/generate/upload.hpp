// A step's data for the device: put together on the host, copied at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace trireme::generate {

class Upload {
 public:
  // Where the values will lie.
  struct Piece {
    int64_t first = 0;  // byte
    int64_t count = 0;
    bool operator==(const Piece&) const = default;
  };
  template <class T>
  Piece put(const std::vector<T>& values) {
    constexpr size_t alignment = 16;
    const size_t first = (bytes_.size() + alignment - 1) / alignment * alignment;
    bytes_.resize(first + values.size() * sizeof(T));
    if (!values.empty())
      std::memcpy(bytes_.data() + first, values.data(), values.size() * sizeof(T));
    return {static_cast<int64_t>(first), static_cast<int64_t>(values.size())};
  }
  int64_t bytes() const { return static_cast<int64_t>(bytes_.size()); }
  // One copy, which the host does not wait for. Nothing is put afterwards.
  void send(at::Device device);
  // To the beginning of `memory`, bytes, at least bytes() of them; the values lie there from then
  // on.
  void send_to(const at::Tensor& memory);
  // The values on the device; valid as long as this.
  at::Tensor tensor(const Piece& piece, at::ScalarType type) const;
  template <class T>
  const T* data(const Piece& piece) const {
    return reinterpret_cast<const T*>(static_cast<const std::byte*>(device_.const_data_ptr()) +
                                      piece.first);
  }

 private:
  std::vector<std::byte> bytes_;
  at::Tensor device_;
};

// Empty memory of the host that a device copies from and to while the host goes on.
at::Tensor host_bytes(int64_t bytes, at::Device device);

}  // namespace trireme::generate
