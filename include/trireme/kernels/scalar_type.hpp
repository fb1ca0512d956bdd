// Our element types as LibTorch's.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/base/element_type.hpp"

namespace trireme::kernels {

constexpr at::ScalarType scalar_type(base::ElementType type) {
  switch (type) {
    case base::ElementType::f32: return at::kFloat;
    case base::ElementType::bf16: return at::kBFloat16;
  }
  return at::ScalarType::Undefined;
}

}  // namespace trireme::kernels
