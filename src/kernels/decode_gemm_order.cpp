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

#include "trireme/base/checked.hpp"
#include "trireme/base/isa.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/base/text.hpp"
#include "trireme/kernels/decode_gemm.hpp"
#include "trireme/kernels/products.hpp"
#include "trireme/kernels/row_invariant.hpp"
#include "trireme/kernels/scalar_type.hpp"

namespace trireme::kernels {
namespace {

constexpr int64_t all_rows = 520;      // of the probe's x
constexpr int64_t compared_rows = 64;  // with our own kernel
constexpr int64_t probe_rows[] = {
    1, 2, 3, 17, 45, 63, 64, 65, 100, 129, 160, 200, 257, 384, 513};  // sequences and micro-batches
constexpr int64_t wide_rows[] = {128, 1024};        // with all outputs of the layer
constexpr int64_t probe_outputs = 384;              // more would only repeat the same order
constexpr int64_t most_operations = 6'000'000'000;  // of one product at the start, per thread

// x [M, K] and weight [N, K] whose products cancel in pairs far apart: every sum is the rounding
// errors that its order made and nothing else, so another order shows in every output, also after
// rounding to bf16. (Sums of random numbers hide it: at K = 1536 one bf16 output in some 30,000
// tells blocks of 512 from blocks of 1024.)
struct Probe {
  at::Tensor x, weight, bias;
};

at::Tensor random_matrix(int64_t rows, int64_t columns, uint64_t seed) {
  at::Tensor out = at::empty({rows, columns}, at::kFloat);
  float* data = out.mutable_data_ptr<float>();
  for (int64_t i = 0; i < rows * columns; i += 4) {
    const auto bits =
        base::philox({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), 0, 7},
                     {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    for (int64_t j = 0; j < std::min<int64_t>(4, rows * columns - i); ++j)
      data[i + j] = base::unit_float(bits[static_cast<size_t>(j)]) * 2 - 1;
  }
  return out;
}

Probe make_probe(ElementType type, int64_t k, int64_t n) {
  const auto dtype = scalar_type(type);
  Probe probe{random_matrix(all_rows, k, 1).to(dtype), random_matrix(n, k, 2).to(dtype),
              random_matrix(1, n, 3).mul(1e-6).to(dtype).squeeze(0)};
  std::vector<int64_t> order(static_cast<size_t>(k));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (size_t i = order.size(); i > 1; --i) {  // a fixed shuffle
    std::swap(order[i - 1],
              order[base::philox({static_cast<uint32_t>(i), 0, 0, 8}, {5, 0})[0] % i]);
  }
  for (size_t pair = 0; 2 * pair + 1 < order.size(); ++pair) {
    probe.x.select(1, order[2 * pair + 1]).copy_(probe.x.select(1, order[2 * pair]));
    probe.weight.select(1, order[2 * pair + 1])
        .copy_(probe.weight.select(1, order[2 * pair]).neg());
  }
  return probe;
}

bool equal_bits(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), static_cast<size_t>(a.nbytes())) == 0;
}

std::vector<int64_t> candidate_blocks(ElementType type, int64_t k) {
  std::vector<int64_t> blocks;
  const auto add = [&](int64_t block) {
    if (block >= k || block % (64 / static_cast<int64_t>(size_of(type))) == 0)
      blocks.push_back(block);
  };
  if (type == ElementType::f32) {
    // MKL 2024: 192, but two halves where K is between one and two blocks.
    for (const int64_t block :
         std::array<int64_t, 7>{192, k / 2, 256, 384, 512, 1024, gemm_padded(k)})
      add(block);
  } else {
    for (const int64_t block :
         std::array<int64_t, 7>{512, 1024, gemm_padded(k), 256, 384, 768, 2048})
      add(block);
  }
  return blocks;
}

at::Tensor trained(const Probe& probe, int64_t first, int64_t rows,
                   const std::optional<at::Tensor>& bias) {
  return kernels::linear(probe.x.narrow(0, first, rows), probe.weight, bias);
}

// A number of rows with which the trainer's results of a row are not those that it has among all
// rows of the probe; 0: none.
int64_t dependence_on_rows(const Probe& probe, const at::Tensor& all, int64_t n) {
  const int64_t total = probe.x.size(0);
  for (const int64_t rows : probe_rows) {
    const int64_t first = total - rows;
    if (!equal_bits(trained(probe, first, rows, std::nullopt), all.narrow(0, first, rows)))
      return rows;
  }
  // The whole width of the layer and as many rows as a micro-batch has: the library cuts large
  // products in other ways. The outputs of the probe are repeated, so every column is known.
  const int64_t outputs = probe.weight.size(0), copies = base::ceil_div(n, outputs);
  const int64_t affordable = most_operations * at::get_num_threads() / (2 * probe.x.size(1) * n);
  const at::Tensor wide =
      copies > 1 ? probe.weight.repeat({copies, 1}).narrow(0, 0, n) : probe.weight;
  for (const int64_t rows : wide_rows) {
    if (rows > std::max<int64_t>(affordable, wide_rows[0])) continue;
    const at::Tensor x = probe.x.repeat({base::ceil_div(rows, total), 1}).narrow(0, 0, rows);
    const at::Tensor got = kernels::linear(x, wide, std::nullopt);
    for (int64_t row = 0; row < rows; row += total) {
      const int64_t count = std::min(total, rows - row);
      for (int64_t column = 0; column < n; column += outputs) {
        const int64_t width = std::min(outputs, n - column);
        if (!at::equal(got.narrow(0, row, count).narrow(1, column, width),
                       all.narrow(0, 0, count).narrow(1, 0, width)))
          return rows;
      }
    }
  }
  return 0;
}

GemmOrder try_orders(ElementType type, int64_t k, int64_t n) {
  at::NoGradGuard no_grad;
  const int64_t outputs = std::min(probe_outputs, n);
  const Probe probe = make_probe(type, k, outputs);
  at::Tensor padded = at::zeros({compared_rows, gemm_padded(k)}, probe.x.options());
  padded.narrow(1, 0, k).copy_(probe.x.narrow(0, 0, compared_rows));
  at::Tensor y = at::empty({compared_rows, outputs}, probe.x.options());
  GemmArguments a;
  a.type = type;
  a.weight = probe.weight.const_data_ptr();
  a.x = padded.const_data_ptr();
  a.y = y.mutable_data_ptr();
  a.m = compared_rows;
  a.k = k;
  a.n = outputs;
  a.ldx = gemm_padded(k);
  a.ldy = outputs;
  a.order.ascending = type == ElementType::bf16 && !multiplies_bf16(at::kCPU);
  a.order.tiles = type == ElementType::bf16 && base::has_matrix_units();
  const at::Tensor all = trained(probe, 0, probe.x.size(0), std::nullopt);
  const at::Tensor with_bias = trained(probe, 0, probe.x.size(0), probe.bias);
  const std::vector<int64_t> candidates =
      a.order.tiles ? std::vector{gemm_padded(k)}
                    : candidate_blocks(a.order.ascending ? ElementType::f32 : type, k);
  for (const int64_t block : candidates) {
    if (type == ElementType::bf16 && block < k && block % gemm_padding != 0) continue;
    a.order.block = block;
    a.bias = nullptr;
    gemm_columns(a, 0, outputs);
    if (!equal_bits(y, all.narrow(0, 0, compared_rows))) continue;
    GemmOrder found = a.order;
    found.rows_differ_at = dependence_on_rows(probe, all, n);
    found.matches_library = found.rows_differ_at == 0;
    a.bias = probe.bias.const_data_ptr();
    gemm_columns(a, 0, outputs);
    found.matches_with_bias =
        found.matches_library && equal_bits(y, with_bias.narrow(0, 0, compared_rows));
    return found;
  }
  GemmOrder none = a.order;
  none.block = candidates.front();
  return none;
}

}  // namespace

GemmOrder find_order(ElementType type, int64_t k, int64_t n) {
  using Key = std::tuple<ElementType, int64_t, int64_t, base::Isa, int>;
  static std::mutex mutex;
  static std::map<Key, GemmOrder> known;
  const std::lock_guard lock(mutex);
  const Key key{type, k, n, base::active_isa(), at::get_num_threads()};
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known[key] = try_orders(type, k, n);
}

std::string describe(ElementType type, int64_t k, int64_t n, const GemmOrder& order) {
  const std::string how = order.tiles
                              ? "tiles (AMX)"
                              : base::text("blocks of ", std::min(order.block, k),
                                           order.ascending ? ", element after element" : "");
  return base::text(type == ElementType::f32 ? "fp32 " : "bf16 ", k, "x", n, ": ", how,
                    order.rows_differ_at > 0
                        ? base::text(", LibTorch's results depend on the number of rows (seen at ",
                                     order.rows_differ_at, ")")
                    : !order.matches_library ? (order.tiles ? ", the trainer adds in another order"
                                                            : ", LibTorch adds in another order")
                    : order.tiles && order.matches_with_bias ? ", bits of the trainer's products"
                    : order.matches_with_bias                ? ", bits of LibTorch"
                                              : ", bits of LibTorch where there is no bias");
}

}  // namespace trireme::kernels
