// Whether the row operators that this program brings for a device compute what LibTorch's do.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace trireme::model {

// Norm, SwiGLU, rotation and the head with their derivatives, fp32 and bf16, a few thousand values
// each, against the same composed of LibTorch's operators on that device: "" where they agree to
// rounding, else the first that does not and by how much.
std::string row_operators_problem(at::Device device);

}  // namespace trireme::model
