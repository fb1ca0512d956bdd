// Whether copies of tensors have the bits of their originals: sums of both as integers, made where
// they lie and compared by the host once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

namespace trireme::kernels {

class CopySums {
 public:
  // Of so many tensors on a device; of none nothing is summed.
  CopySums(size_t tensors, at::Device device);
  // Elements of 2 or 4 bytes, rows dense. Enqueued; no memory but for rows that are no whole words
  // of 64 bits.
  void add(size_t tensor, const at::Tensor& original, const at::Tensor& copy);
  // The first tensor whose sums differ; -1: none. Waits for the device.
  int64_t first_difference() const;

 private:
  at::Tensor sums_;  // [2, tensors]; undefined: of none
};

}  // namespace trireme::kernels
