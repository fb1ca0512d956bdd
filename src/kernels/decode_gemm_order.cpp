#include "torch/torch.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "trireme/base/philox.hpp"
#include "trireme/base/text.hpp"
#include "trireme/base/isa.hpp"
#include "trireme/kernels/decode_gemm.hpp"

namespace trireme::kernels {
namespace {

constexpr int64_t probe_rows[] = {32, 45, 160};  // of x; the largest last
constexpr int64_t probe_outputs = 384;           // more would only repeat the same order

// x [M, K] and weight [N, K] whose products cancel in pairs far apart: every sum is the rounding errors that its order made and
// nothing else, so another order shows in every output, also after rounding to bf16. (Sums of random numbers hide it: at
// K = 1536 one bf16 output in some 30,000 tells blocks of 512 from blocks of 1024.)
struct Probe {
  at::Tensor x, weight, bias;
};

at::Tensor random_matrix(int64_t rows, int64_t columns, uint64_t seed) {
  at::Tensor out = at::empty({rows, columns}, at::kFloat);
  float* data = out.mutable_data_ptr<float>();
  for (int64_t i = 0; i < rows * columns; i += 4) {
    const auto bits = base::philox({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), 0, 7},
                                   {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    for (int64_t j = 0; j < std::min<int64_t>(4, rows * columns - i); ++j) data[i + j] = base::unit_float(bits[static_cast<size_t>(j)]) * 2 - 1;
  }
  return out;
}

Probe make_probe(ElementType type, int64_t k, int64_t n) {
  const auto dtype = type == ElementType::f32 ? at::kFloat : at::kBFloat16;
  Probe probe{random_matrix(probe_rows[std::size(probe_rows) - 1], k, 1).to(dtype), random_matrix(n, k, 2).to(dtype),
              random_matrix(1, n, 3).mul(1e-6).to(dtype).squeeze(0)};
  std::vector<int64_t> order(static_cast<size_t>(k));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (size_t i = order.size(); i > 1; --i) {  // a fixed shuffle
    std::swap(order[i - 1], order[base::philox({static_cast<uint32_t>(i), 0, 0, 8}, {5, 0})[0] % i]);
  }
  for (size_t pair = 0; 2 * pair + 1 < order.size(); ++pair) {
    probe.x.select(1, order[2 * pair + 1]).copy_(probe.x.select(1, order[2 * pair]));
    probe.weight.select(1, order[2 * pair + 1]).copy_(probe.weight.select(1, order[2 * pair]).neg());
  }
  return probe;
}

bool equal_bits(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), static_cast<size_t>(a.nbytes())) == 0;
}

std::vector<int64_t> candidate_blocks(ElementType type, int64_t k) {
  std::vector<int64_t> blocks;
  const auto add = [&](int64_t block) {
    if (block >= k || block % (64 / static_cast<int64_t>(size_of(type))) == 0) blocks.push_back(block);
  };
  if (type == ElementType::f32) {
    // MKL 2024: 192, but two halves where K is between one and two blocks.
    for (const int64_t block : std::array<int64_t, 7>{192, k / 2, 256, 384, 512, 1024, gemm_padded(k)}) add(block);
  } else {
    for (const int64_t block : std::array<int64_t, 7>{512, 1024, gemm_padded(k), 256, 384, 768, 2048}) add(block);
  }
  return blocks;
}

// LibTorch's products of the first rows of x, for several numbers of rows, are `own` (of all rows).
bool library_agrees(const Probe& probe, const std::optional<at::Tensor>& bias, const at::Tensor& own) {
  return std::ranges::all_of(probe_rows, [&](int64_t rows) {
    const at::Tensor x = probe.x.narrow(0, probe.x.size(0) - rows, rows);
    return equal_bits(at::linear(x, probe.weight, bias), own.narrow(0, own.size(0) - rows, rows));
  });
}

GemmOrder try_orders(ElementType type, int64_t k, int64_t n) {
  at::NoGradGuard no_grad;
  const int64_t outputs = std::min(probe_outputs, n);
  const Probe probe = make_probe(type, k, outputs);
  at::Tensor padded = at::zeros({probe.x.size(0), gemm_padded(k)}, probe.x.options());
  padded.narrow(1, 0, k).copy_(probe.x);
  at::Tensor y = at::empty({probe.x.size(0), outputs}, probe.x.options());
  GemmArguments a;
  a.type = type;
  a.weight = probe.weight.const_data_ptr();
  a.x = padded.const_data_ptr();
  a.y = y.mutable_data_ptr();
  a.m = probe.x.size(0);
  a.k = k;
  a.n = outputs;
  a.ldx = gemm_padded(k);
  a.ldy = outputs;
  const std::vector<int64_t> candidates = candidate_blocks(type, k);
  for (const int64_t block : candidates) {
    a.order.block = block;
    a.bias = nullptr;
    gemm_columns(a, 0, outputs);
    if (!library_agrees(probe, std::nullopt, y)) continue;
    a.bias = probe.bias.const_data_ptr();
    gemm_columns(a, 0, outputs);
    return {block, true, library_agrees(probe, probe.bias, y)};
  }
  return {candidates.front(), false, false};
}

}  // namespace

GemmOrder find_order(ElementType type, int64_t k, int64_t n) {
  using Key = std::tuple<ElementType, int64_t, int64_t, base::Isa>;
  static std::mutex mutex;
  static std::map<Key, GemmOrder> known;
  const std::lock_guard lock(mutex);
  const Key key{type, k, std::min(n, probe_outputs), base::active_isa()};
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known[key] = try_orders(type, k, n);
}

std::string describe(ElementType type, int64_t k, int64_t n, const GemmOrder& order) {
  return base::text(type == ElementType::f32 ? "fp32 " : "bf16 ", k, "x", n, ": blocks of ", std::min(order.block, k),
                    !order.matches_library  ? ", LibTorch adds in another order"
                    : order.matches_with_bias ? ", bits of LibTorch"
                                              : ", bits of LibTorch where there is no bias");
}

}  // namespace trireme::kernels
