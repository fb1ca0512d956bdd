// The decode GEMM and the decode attention against double on every instruction set, without
// LibTorch; where both are on hand, tests/unit/generate/decode_{gemm,attention}_test.cpp compare
// bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/instruction_sets.hpp"
#include "trireme/kernels/decode_attention.hpp"
#include "trireme/kernels/decode_gemm.hpp"
#include "values.hpp"

namespace trireme::test {
namespace {

using namespace kernels;

// Values of one element type, and the same in double.
struct Operand {
  Operand(ElementType type, const std::vector<float>& from)
      : f32(from), bits(to_bf16(from)), is_bf16(type == ElementType::bf16) {}
  const void* data() const { return is_bf16 ? static_cast<const void*>(bits.data()) : f32.data(); }
  const void* at(int64_t i) const {
    return is_bf16 ? static_cast<const void*>(bits.data() + i) : f32.data() + i;
  }
  double operator[](int64_t i) const {
    const auto index = static_cast<size_t>(i);
    return static_cast<double>(is_bf16 ? from_bf16(bits[index]) : f32[index]);
  }
  std::vector<float> f32;
  std::vector<uint16_t> bits;
  bool is_bf16;
};

// [rows, k] with each row padded to gemm_padded(k) by zeros.
std::vector<float> padded_rows(uint64_t stream, int64_t rows, int64_t k) {
  std::vector<float> out(static_cast<size_t>(rows * gemm_padded(k)));
  const std::vector<float> values = normals(stream, rows * k);
  for (int64_t r = 0; r < rows; ++r)
    std::copy_n(values.begin() + r * k, k, out.begin() + r * gemm_padded(k));
  return out;
}

class DecodePlain : public testing::TestWithParam<ElementType> {};

TEST_P(DecodePlain, TheProductIsThatInDouble) {
  struct Shape {
    int64_t m, k, n;
  };
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    for (const auto [m, k, n] : {Shape{1, 1, 1}, {3, 31, 17}, {9, 257, 50}, {33, 600, 70}}) {
      const int64_t row = gemm_padded(k);
      const Operand x(GetParam(), padded_rows(1, m, k)), weight(GetParam(), normals(2, n * k)),
          bias(GetParam(), normals(3, n));
      std::vector<float> y(static_cast<size_t>(m * n), -7.f);
      GemmArguments a{.type = GetParam(),
                      .weight = weight.data(),
                      .bias = bias.data(),
                      .x = x.data(),
                      .y = y.data(),
                      .m = m,
                      .k = k,
                      .n = n,
                      .ldx = row,
                      .ldy = n,
                      .order = {},
                      .output = GemmOutput::f32};
      gemm_columns(a, 0, n);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double want = bias[j], size = std::abs(want);
          for (int64_t t = 0; t < k; ++t) {
            want += x[i * row + t] * weight[j * k + t];
            size += std::abs(x[i * row + t] * weight[j * k + t]);
          }
          ASSERT_NEAR(static_cast<double>(y[static_cast<size_t>(i * n + j)]), want, 1e-6 * size)
              << base::to_string(isa) << " " << m << "x" << k << "x" << n << ", " << i << ", " << j;
        }
      }
    }
  }
}

// softmax(q k / sqrt(head size)) v of one head, in double.
std::vector<double> attention_in_double(const Operand& q, const Operand& k, const Operand& v,
                                        int64_t head, int64_t keys, int64_t size) {
  const double scale = 1 / std::sqrt(static_cast<double>(size));
  std::vector<double> weights, out(static_cast<size_t>(size));
  for (int64_t t = 0; t < keys; ++t) {
    double score = 0;
    for (int64_t d = 0; d < size; ++d) score += q[head * size + d] * k[t * size + d];
    weights.push_back(scale * score);
  }
  const double top = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& w : weights) sum += w = std::exp(w - top);
  for (int64_t t = 0; t < keys; ++t) {
    for (int64_t d = 0; d < size; ++d)
      out[static_cast<size_t>(d)] += weights[static_cast<size_t>(t)] / sum * v[t * size + d];
  }
  return out;
}

TEST_P(DecodePlain, AttentionIsThatInDouble) {
  constexpr int64_t longest = 70, group = 3;
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    for (const int64_t size : {16, 24, 64}) {
      const Operand q(GetParam(), normals(4, group * size)),
          k(GetParam(), normals(5, longest * size)), v(GetParam(), normals(6, longest * size));
      const int64_t tiles = (longest + tile_tokens - 1) / tile_tokens;
      const auto tile_bytes = static_cast<size_t>(tile_elements(size)) * size_of(GetParam());
      std::vector<std::byte> page(static_cast<size_t>(tiles) * tile_bytes);
      for (int64_t t = 0; t < longest; ++t) {
        store_kv(GetParam(), page.data() + static_cast<size_t>(t / tile_tokens) * tile_bytes, t,
                 k.at(t * size), v.at(t * size), size);
      }
      const std::byte* pages[] = {page.data()};
      for (const int64_t keys :
           {int64_t{1}, int64_t{2}, int64_t{15}, int64_t{16}, int64_t{33}, longest}) {
        Operand got(GetParam(), std::vector<float>(static_cast<size_t>(group * size)));
        attend({.type = GetParam(),
                .pages = pages,
                .tiles_per_page = tiles,
                .keys = keys,
                .q = q.data(),
                .out = const_cast<void*>(got.data()),
                .group = group,
                .head_dim = size,
                .scale = 1 / std::sqrt(static_cast<float>(size))});
        for (int64_t head = 0; head < group; ++head) {
          const auto want = attention_in_double(q, k, v, head, keys, size);
          for (int64_t d = 0; d < size; ++d) {
            ASSERT_NEAR(got[head * size + d], want[static_cast<size_t>(d)],
                        GetParam() == ElementType::f32 ? 5e-6 : 2e-2)
                << base::to_string(isa) << ", head size " << size << ", " << keys << " keys";
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, DecodePlain, testing::Values(ElementType::f32, ElementType::bf16),
                         [](const auto& tested) {
                           return tested.param == ElementType::f32 ? "fp32" : "bf16";
                         });

}  // namespace
}  // namespace trireme::test
