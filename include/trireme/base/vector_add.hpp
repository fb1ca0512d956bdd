// Sums of arrays for the exchanges of `comm`, at the width of base::active_isa(). One addition per
// value and step, in the order written: the same bits on every instruction set. bf16 as its bits
// (base/bf16.hpp). Arrays of different types do not overlap.
#pragma once

#include <cstdint>

namespace trireme::base {

// into[i] += values[i]
void add(float* into, const float* values, int64_t count);
// into[i] += a[i] + b[i]
void add_pair(float* into, const float* a, const float* b, int64_t count);
// into[i] += values[i], widened
void add(float* into, const uint16_t* values, int64_t count);
void widen(float* to, const uint16_t* from, int64_t count);
void round(uint16_t* to, const float* from, int64_t count);

}  // namespace trireme::base
