// The decode GEMM in plain C++: the same order of additions as the vector kernels, for any processor.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/decode_gemm_kernels.hpp"

// With FMA in hardware std::fma is one instruction; elsewhere the C library's exact one is called.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define TRIREME_FMA_CLONES __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define TRIREME_FMA_CLONES
#endif

namespace trireme::kernels {
namespace {

constexpr int64_t width = 16;  // outputs side by side

float from_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

uint16_t to_bf16(float value) {
  if (value != value) return 0x7fc0;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float element(const GemmArguments& a, const void* from, int64_t at) {
  return a.type == ElementType::f32 ? static_cast<const float*>(from)[at] : from_bf16(static_cast<const uint16_t*>(from)[at]);
}

// The place of element k in the order of additions: bf16 pairs add their odd element first, unless the order is ascending.
int64_t ordered(const GemmArguments& a, int64_t k) { return a.type == ElementType::f32 || a.order.ascending ? k : k ^ 1; }

// sums[j] += x[i] * w[i][j] for i in order; w [count][16].
TRIREME_FMA_CLONES void add_products(const float* x, const float* w, int64_t count, float* sums) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < width; ++j) sums[j] = std::fma(x[i], w[i * width + j], sums[j]);
  }
}

struct Panel {
  std::vector<float> weights;  // [K padded][16] in the order of additions
  std::vector<float> x;        // one row, in the order of additions
};

void load_panel(const GemmArguments& a, int64_t column, Panel& panel) {
  const int64_t padded = gemm_padded(a.k);
  panel.weights.assign(static_cast<size_t>(padded * width), 0.f);
  for (int64_t j = 0; j < std::min(width, a.n - column); ++j) {
    for (int64_t k = 0; k < a.k; ++k) {
      panel.weights[static_cast<size_t>(ordered(a, k) * width + j)] = element(a, a.weight, (column + j) * a.k + k);
    }
  }
}

void store(const GemmArguments& a, int64_t row, int64_t column, const float* totals) {
  for (int64_t j = 0; j < std::min(width, a.n - column); ++j) {
    const int64_t at = row * a.ldy + column + j;
    float sum = totals[j];
    if (a.type == ElementType::bf16 && a.bias != nullptr) sum += element(a, a.bias, column + j);
    if (a.type == ElementType::bf16 && a.output == GemmOutput::element) {
      static_cast<uint16_t*>(a.y)[at] = to_bf16(sum);
    } else {
      static_cast<float*>(a.y)[at] = sum;
    }
  }
}

void multiply_row(const GemmArguments& a, int64_t row, int64_t column, Panel& panel) {
  const int64_t padded = gemm_padded(a.k);
  panel.x.resize(static_cast<size_t>(padded));
  for (int64_t k = 0; k < padded; ++k) panel.x[static_cast<size_t>(ordered(a, k))] = element(a, a.x, row * a.ldx + k);
  float totals[width] = {};
  if (a.type == ElementType::f32 && a.bias != nullptr) {
    for (int64_t j = 0; j < std::min(width, a.n - column); ++j) totals[j] = element(a, a.bias, column + j);
  }
  for (int64_t begin = 0; begin < padded; begin += a.order.block) {
    const int64_t count = std::min(a.order.block, padded - begin);
    float sums[width] = {};
    add_products(panel.x.data() + begin, panel.weights.data() + begin * width, count, sums);
    for (int64_t j = 0; j < width; ++j) totals[j] += sums[j];
  }
  store(a, row, column, totals);
}

}  // namespace

void gemm_columns_portable(const GemmArguments& a, int64_t first, int64_t last) {
  thread_local Panel panel;
  for (int64_t column = first; column < last; column += width) {
    load_panel(a, column, panel);
    for (int64_t row = 0; row < a.m; ++row) multiply_row(a, row, column, panel);
  }
}

}  // namespace trireme::kernels
