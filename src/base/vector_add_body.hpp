// The loops of vector_add.hpp, for the compiler to vectorise: included by
// vector_add_{portable,avx2,avx512}.cpp, each with its own flags. Nothing here may have external
// linkage (kernels/vector16.hpp says why).
#pragma once

#include "base/vector_add_table.hpp"
#include "trireme/base/bf16.hpp"

namespace {

void add(float* into, const float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) into[i] += values[i];
}

void add_pair(float* into, const float* a, const float* b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) into[i] += a[i] + b[i];
}

void add_bf16(float* into, const uint16_t* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) into[i] += trireme::base::bf16_to_float(values[i]);
}

void widen(float* to, const uint16_t* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = trireme::base::bf16_to_float(from[i]);
}

void to_bf16(uint16_t* to, const float* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = trireme::base::float_to_bf16(from[i]);
}

constexpr trireme::base::VectorAdd vector_add{add, add_pair, add_bf16, widen, to_bf16};

}  // namespace
