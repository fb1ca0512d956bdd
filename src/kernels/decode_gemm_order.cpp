#include "torch/torch.hpp"

#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "trireme/base/philox.hpp"
#include "trireme/base/text.hpp"
#include "trireme/kernels/cpu_features.hpp"
#include "trireme/kernels/decode_gemm.hpp"

namespace trireme::kernels {
namespace {

constexpr int64_t probe_rows = 32;
constexpr int64_t probe_elements = 2 << 20;  // of the weight; more outputs would only repeat the same order

// Uniform in [-1, 1): every product rounds, so another order shows in the bits.
at::Tensor random_matrix(int64_t rows, int64_t columns, ElementType type, uint64_t seed) {
  at::Tensor out = at::empty({rows, columns}, at::kFloat);
  float* data = out.mutable_data_ptr<float>();
  for (int64_t i = 0; i < rows * columns; i += 4) {
    const auto bits = base::philox({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), 0, 7},
                                   {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    for (int64_t j = 0; j < std::min<int64_t>(4, rows * columns - i); ++j) data[i + j] = base::unit_float(bits[static_cast<size_t>(j)]) * 2 - 1;
  }
  return type == ElementType::f32 ? out : out.to(at::kBFloat16);
}

bool equal_bits(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), static_cast<size_t>(a.nbytes())) == 0;
}

GemmOrder try_orders(ElementType type, int64_t k, int64_t n) {
  at::NoGradGuard no_grad;
  const int64_t outputs = std::clamp<int64_t>(probe_elements / k, std::min<int64_t>(n, 64), n);
  const at::Tensor weight = random_matrix(outputs, k, type, 1);
  const at::Tensor x = random_matrix(probe_rows, k, type, 2);
  const at::Tensor expected = at::linear(x, weight);
  at::Tensor padded = at::zeros({probe_rows, gemm_padded(k)}, x.options());
  padded.narrow(1, 0, k).copy_(x);
  at::Tensor y = at::empty_like(expected);
  GemmArguments a;
  a.type = type;
  a.weight = weight.const_data_ptr();
  a.x = padded.const_data_ptr();
  a.y = y.mutable_data_ptr();
  a.m = probe_rows;
  a.k = k;
  a.n = outputs;
  a.ldx = gemm_padded(k);
  a.ldy = outputs;
  const std::vector<int64_t> candidates = type == ElementType::f32
                                              ? std::vector<int64_t>{192, 256, 384, 512, 1024, gemm_padded(k), 320, 336}
                                              : std::vector<int64_t>{512, 1024, gemm_padded(k), 256, 384, 768, 2048};
  for (const int64_t block : candidates) {
    if (block < k && block % gemm_padding != 0) continue;
    a.order.block = block;
    gemm_columns(a, 0, outputs);
    if (equal_bits(y, expected)) return {block, true};
  }
  return {candidates.front(), false};
}

}  // namespace

GemmOrder find_order(ElementType type, int64_t k, int64_t n) {
  using Key = std::tuple<ElementType, int64_t, int64_t, Isa>;
  static std::mutex mutex;
  static std::map<Key, GemmOrder> known;
  const std::lock_guard lock(mutex);
  const Key key{type, k, n, active_isa()};
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known[key] = try_orders(type, k, n);
}

std::string describe(ElementType type, int64_t k, int64_t n, const GemmOrder& order) {
  return base::text(type == ElementType::f32 ? "fp32 " : "bf16 ", k, "x", n, ": blocks of ", std::min(order.block, k),
                    order.matches_library ? ", bits of LibTorch" : ", LibTorch adds in another order");
}

}  // namespace trireme::kernels
