// Tensors as kernels of our own take them: float, or bf16 as its bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <type_traits>

#include "trireme/kernels/device_kernels.hpp"

namespace trireme::kernels {

// Of a tensor with elements of size T; strides are the caller's.
template <class T>
const T* elements(const at::Tensor& x) {
  return static_cast<const T*>(x.const_data_ptr());
}
template <class T>
T* mutable_elements(const at::Tensor& x) {
  return static_cast<T*>(x.mutable_data_ptr());
}

// Calls body with a null pointer of the element type; x is fp32 or bf16.
template <class Body>
void with_type(const at::Tensor& x, Body&& body) {
  if (x.scalar_type() == at::kFloat) {
    body(static_cast<float*>(nullptr));
  } else {
    body(static_cast<uint16_t*>(nullptr));
  }
}

// The device's row kernels for that type.
template <class T>
const DeviceRows<T>& rows_of(const DeviceKernels& own) {
  if constexpr (std::is_same_v<T, float>) {
    return own.f32;
  } else {
    return own.bf16;
  }
}

}  // namespace trireme::kernels
