// Matrix products of activations and weights, for training and scoring, in fp32 or bf16.
//
// bf16 where the processor does not multiply it natively: operands are widened to fp32 block by
// block (products of two bf16 numbers are exact in fp32), multiplied by the library's fp32 product,
// and results are rounded once. The library's own bf16 products are 5 (AVX-512) to 500 times (AVX2)
// slower than fp32 there. Legend: M rows, K summed, N columns.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace trireme::kernels {

// True where products of bf16 run at the device's own rate: on GPUs, and on processors with
// AVX512-BF16 as long as base::active_isa() allows it. Every processor with AMX has AVX512-BF16.
bool multiplies_bf16(at::Device device);

// Whether native products of bf16 with a result in fp32 (weight gradients, those of the head's
// input) are added there unrounded, by the product itself. That is so, unless it is switched off,
// on GPUs (device_product.hpp), and on hosts where base::has_matrix_units() and LibTorch's library
// is MKL: on other hosts MKL's product of this kind is several times slower than one that rounds to
// bf16 and an addition. On hosts bits depend neither on threads nor on where operands lie.
// Process-wide; on at first, not to be switched while kernels run.
bool exact_products(at::Device device);
void use_exact_products(bool wanted);

enum class Sum : uint8_t {
  overwrite,
  add,  // to what `out` holds; out must be f32
};

// out [M, N] = a [M, K] b [K, N]. a and b are both f32 or both bf16, with any strides; out is of
// their type, or f32. Not differentiable. Sums are in fp32; no promise about their order. bf16 into
// fp32: rounded to bf16 first, but where exact_products() or widened operands.
void multiply(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
              Sum sum = Sum::overwrite);

// Least rows of a block of multiply_rows() on CPUs: sequential kernels of the library take other
// paths for fewer (MKL: fewer than 4 rows on AMD, 16 with AVX-512 and 56 with AVX2 on Intel). And
// the unit that blocks are cut at: the rows that a kernel leaves over are added in another order
// (MKL: by 6 with AVX2 on Intel, by 4 in the compatible mode that `portable` sets).
inline constexpr int64_t block_rows = 96;
inline constexpr int64_t row_unit = 48;

// Error of the product of device_product.hpp on this device, by LibTorch's fp32 product;
// empty: nothing, or there is none. Waits for the device.
std::string exact_product_problem(at::Device device);

// out [M, N] = x [M, K] weight [N, K]^T + bias [N], fp32 or bf16. fp32 and widened bf16: on CPUs
// row i of out depends on row i of x alone, bit for bit: blocks of at least block_rows rows, cut at
// row_unit, go to sequential products, one per thread, because the library's threaded ones cut the
// work (also along K) by the number of rows and threads; rows left over are a block with zero rows.
// bf16: the bias is added in fp32 before the rounding. bf16 on CPUs with matrix units
// (base::has_matrix_units()): by the kernel that generates (decode_gemm.hpp), each row by itself,
// because the library cuts K there by rows, columns and threads. Not differentiable.
void multiply_rows(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight,
                   const std::optional<at::Tensor>& bias);

}  // namespace trireme::kernels
