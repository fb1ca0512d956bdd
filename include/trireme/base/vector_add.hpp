// Sums of arrays for the exchanges of `comm`, at the width of base::active_isa(). One addition per value and step, in the order
// written: the same bits on every instruction set.
#pragma once

#include <cstdint>

namespace trireme::base {

// into[i] += values[i]
void add(float* into, const float* values, int64_t count);
// into[i] += a[i] + b[i]
void add_pair(float* into, const float* a, const float* b, int64_t count);

}  // namespace trireme::base
