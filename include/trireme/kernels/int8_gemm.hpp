// A copy of a weight in 8 bits for the decode GEMM (decode_gemm.hpp, GemmArguments::int8): groups
// of `int8_group` elements of an output's row are integers -127 .. 127 times one fp32 scale, the
// group's largest magnitude / 127 (symmetric, to nearest). Products of x and integers are added
// pair by pair, the odd one first, in fp32; a group's sum times its scale is added to the groups
// before it; rounded once at the end. Activations keep their type. bf16: the same bits on every
// instruction set, whatever the rows beside. Layout: panels of 16 outputs one after another; in a
// panel, group after group, 16 scales and then for each pair of k the 16 outputs' pairs. Legend: K
// inputs, N outputs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/base/element_type.hpp"

namespace trireme::kernels {

inline constexpr int64_t int8_group = 64;  // elements of k
inline constexpr int64_t int8_panel = 16;  // outputs; column ranges of products begin at multiples

constexpr int64_t int8_panels(int64_t n) { return (n + int8_panel - 1) / int8_panel; }
// Of the copy of a weight [n, k].
constexpr int64_t int8_bytes(int64_t k, int64_t n) {
  return int8_panels(n) * ((k + int8_group - 1) / int8_group) * int8_panel *
         (static_cast<int64_t>(sizeof(float)) + int8_group);
}

// Values that are quantized to 8 bits.
struct Int8Source {
  base::ElementType type = base::ElementType::f32;
  const void* weight = nullptr;  // [N, K], row-major
  int64_t k = 0;
  int64_t n = 0;
};

// Panels [first, last) of the copy `to`, which has int8_bytes. A
// group with a value that is not finite has a scale that is not; one below 1e-30 counts as zeros.
// Threads take panels of their own.
void quantise(const Int8Source& source, std::byte* to, int64_t first, int64_t last);

}  // namespace trireme::kernels
