// Matrix products for generation with ONE summation order along K, whatever the batch: row b of y
// depends on row b of x alone, bit for bit. The order is that of LibTorch's own GEMM (found by
// find_order), so a decode step at batch 1 gives the bits that the trainer's packed forward pass
// gives.
//
// Order: k is cut into blocks of `block`; inside a block products are added one after another
// (fp32: fma per k; bf16: per pair of k, the odd one first, as VDPBF16PS does, or per k as well, or
// as matrix units do: in steps of 32 the even and the odd ones apart, each from zero, their sum
// then added); block sums are added in order; bf16 results are rounded once at the end. SIMD runs
// across outputs, never along K. Weights are read in their stored row-major layout [out, in]. Bits:
// bf16 the same on every instruction set (products of two bf16 are exact in fp32; only VDPBF16PS
// takes numbers below 2^-126 for zeros); fp32 the same wherever products_are_fused(). Legend: M
// rows of x, K inputs, N outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "trireme/base/element_type.hpp"

namespace trireme::kernels {

using base::ElementType;
using base::size_of;

struct GemmOrder {
  int64_t block = 192;  // elements of k; a multiple of 64 bytes, or >= K
  bool matches_library =
      false;  // true: find_order saw equal bits in the trainer's product, without a bias
  bool matches_with_bias = false;
  bool tiles = false;      // bf16: as matrix units add (AMX), all of K in one block; only where
                           // base::has_matrix_units()
  bool ascending = false;  // bf16: element after element, as an fp32 product of widened values
                           // adds, instead of pair by pair
  int64_t rows_differ_at =
      0;  // > 0: the trainer's own results depend on the number of rows, seen at this one
};

// Rows of x are zero-padded to a multiple of this many elements, so that kernels read whole
// vectors.
inline constexpr int64_t gemm_padding = 32;
constexpr int64_t gemm_padded(int64_t k) {
  return (k + gemm_padding - 1) / gemm_padding * gemm_padding;
}

enum class GemmOutput : uint8_t {
  element,  // rounded to the element type
  f32,      // the fp32 sums
};

struct GemmArguments {
  ElementType type = ElementType::f32;
  const void* weight = nullptr;  // [N, K] row-major, dense
  const void* int8 = nullptr;    // its copy in 8 bits (int8_gemm.hpp), taken in its place; column
                                 // ranges then begin at multiples of int8_panel
  const void* bias = nullptr;  // [N] or null; fp32: the sum starts from it, bf16: added before the
                               // one rounding (as LibTorch)
  const void* x =
      nullptr;        // [M, ldx], zero from K to gemm_padded(K); order.tiles: that part is not read
  void* y = nullptr;  // [M, ldy]
  int64_t m = 0;
  int64_t k = 0;
  int64_t n = 0;
  int64_t ldx = 0;  // >= gemm_padded(k); order.tiles: >= k
  int64_t ldy = 0;
  GemmOrder order;
  GemmOutput output = GemmOutput::element;
};

// fp32 products are added with one rounding, under the instruction set in use: everywhere but for
// base::Isa::portable on x86-64, whose baseline has no fused multiply-add; there a product is
// rounded before it is added.
bool products_are_fused();

// Columns [first, last) of y = x weight^T + bias. Threads take disjoint column ranges; the ranges
// do not change the result.
void gemm_columns(const GemmArguments& arguments, int64_t first, int64_t last);
// Column ranges start at multiples of this for full speed.
inline constexpr int64_t gemm_column_unit = 32;
// And where threads take disjoint rows instead, by pointers to them: these.
inline constexpr int64_t gemm_row_unit = 32;

// Finds the block length that reproduces the trainer's own product (row_invariant.hpp) bit by bit
// for this K and N on this machine, by trying candidates on data that show every difference; then
// multiplies what a run multiplies (one row, single sequences, micro-batches, all outputs of the
// layer) with the current number of LibTorch's threads and looks whether a row's result depends on
// the number of rows. When nothing fits, matches_library = false. Cached per (type, K, N, ISA,
// threads); some milliseconds each.
GemmOrder find_order(ElementType type, int64_t k, int64_t n);
// "bf16 576x1536: blocks of 512, bits of LibTorch"; "bf16 576x1536: tiles (AMX), bits of the
// trainer's products"
std::string describe(ElementType type, int64_t k, int64_t n, const GemmOrder& order);

}  // namespace trireme::kernels
