// The loops of vector_add.hpp, for the compiler to vectorise: included by vector_add_{portable,avx2,avx512}.cpp, each with its
// own flags. Nothing here may have external linkage (kernels/vector16.hpp says why).
#pragma once

#include "base/vector_add_table.hpp"

namespace {

void add(float* into, const float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) into[i] += values[i];
}

void add_pair(float* into, const float* a, const float* b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) into[i] += a[i] + b[i];
}

constexpr trireme::base::VectorAdd vector_add{add, add_pair};

}  // namespace
