#include "torch/torch.hpp"

#include "trireme/machine/compute_probe.hpp"

#include <ATen/Parallel.h>

#include <array>
#include <cstring>
#include <string>

#include "trireme/base/bf16.hpp"
#include "trireme/base/isa.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/comm/huge_buffer.hpp"
#include "trireme/kernels/decode_gemm.hpp"
#include "trireme/kernels/parallel.hpp"
#include "trireme/kernels/products.hpp"
#include "trireme/kernels/row_invariant.hpp"

namespace trireme::machine {
namespace {

using config::DType;

constexpr int probe_rounds = 9, fewest_probe_rounds = 5;
constexpr double probe_budget = 0.6;   // seconds, from which on fewer rounds do
constexpr int64_t probe_width = 1024;  // inputs and outputs of the probed layers

// Rounds of both types, after one that makes the libraries' code and fills caches.
template <class Call>
std::vector<TypeSeconds> measure_both(double unit, const Call& call) {
  const auto seconds = [&](DType type, int round) {
    const base::Stopwatch watch;
    call(type, round);
    return watch.seconds() / unit;
  };
  const base::Stopwatch all;
  std::vector<TypeSeconds> out;
  for (int round = -1; round < probe_rounds; ++round) {
    if (round >= fewest_probe_rounds && all.seconds() > probe_budget) break;
    TypeSeconds one;
    one.fp32 = seconds(DType::f32, round + 1);
    one.bf16 = seconds(DType::bf16, round + 1);
    if (round >= 0) out.push_back(one);
  }
  return out;
}

// A layer in training: forward, and both gradients, the weights' into fp32.
struct TrainedLayer {
  TrainedLayer(int64_t rows, at::ScalarType type)
      : x(at::full({rows, probe_width}, 0.5, type)),
        weight(at::full({probe_width, probe_width}, 0.25, type)),
        gradient(at::full({rows, probe_width}, 0.125, type)),
        slot(at::zeros({probe_width, probe_width}, at::kFloat)) {}
  void pass() const {
    const at::Tensor input_gradient = at::empty_like(x);
    kernels::linear(x, weight, std::nullopt);
    kernels::multiply(input_gradient, gradient, weight);
    kernels::multiply(slot, gradient.t(), x, kernels::Sum::add);
  }
  at::Tensor x, weight, gradient, slot;
};

// Weights of a generator in one type, in slices that are read in turn: together they and those of
// the other type are larger than most processors' caches.
class DecodedWeights {
 public:
  DecodedWeights(base::ElementType type, int64_t rows, int64_t columns)
      : rows_(rows),
        columns_(columns),
        type_(type),
        weights_(slices * slice_bytes(), comm::FirstTouch::now, "probes", "use fewer ranks"),
        x_(rows * probe_width * size_of(type), comm::FirstTouch::now, "probes", "use fewer ranks"),
        y_(rows * columns * size_of(type), comm::FirstTouch::now, "probes", "use fewer ranks") {
    constexpr uint32_t small = 0x3c003c00;  // two small numbers as bf16, one as fp32
    for (const comm::HugeBuffer* buffer : {&weights_, &x_}) {
      auto* words = reinterpret_cast<uint32_t*>(buffer->data());
      kernels::parallel_for(
          0, buffer->bytes() / 4, int64_t{1} << 16,
          [&](int64_t first, int64_t last) { std::fill(words + first, words + last, small); });
    }
  }

  void step(int round) const {
    kernels::GemmArguments a;
    a.type = type_;
    a.weight = weights_.data() + round % slices * slice_bytes();
    a.x = x_.data();
    a.y = y_.data();
    a.m = rows_;
    a.k = a.ldx = probe_width;
    a.n = a.ldy = columns_;
    a.order.block = probe_width;
    a.order.tiles = type_ == base::ElementType::bf16 && base::has_matrix_units();
    constexpr int64_t unit = kernels::gemm_column_unit;
    kernels::parallel_for(0, columns_ / unit, 1, [&](int64_t first, int64_t last) {
      kernels::gemm_columns(a, first * unit, last * unit);
    });
  }

 private:
  static constexpr int64_t slices = 8;
  int64_t slice_bytes() const { return probe_width * columns_ * size_of(type_); }

  int64_t rows_, columns_;
  base::ElementType type_;
  comm::HugeBuffer weights_, x_, y_;
};

double median_of(const std::vector<TypeSeconds>& probes, DType type) {
  if (probes.empty()) return 0;
  std::vector<double> values;
  for (const TypeSeconds& one : probes) values.push_back(one.of(type));
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

plan::ComputeSpeed ComputeProbe::speed(DType type) const {
  return {median_of(products, type), median_of(decoding, type)};
}

std::vector<TypeSeconds> probe_products() {
  const at::NoGradGuard no_grad;
  const int64_t rows = std::clamp<int64_t>(128 * at::get_num_threads(), 256, 4096);
  const TrainedLayer fp32(rows, at::kFloat), bf16(rows, at::kBFloat16);
  const double operations = 3 * 2.0 * static_cast<double>(rows * probe_width * probe_width);
  return measure_both(operations,
                      [&](DType type, int) { (type == DType::bf16 ? bf16 : fp32).pass(); });
}

std::vector<TypeSeconds> probe_decoding(int64_t rows) {
  constexpr int64_t most_rows = 128;  // from there on products bound a step, not memory
  const int64_t probed = std::clamp<int64_t>(rows, 1, most_rows),
                columns = probe_width * std::clamp<int64_t>(at::get_num_threads(), 1, 4);
  const DecodedWeights fp32(base::ElementType::f32, probed, columns),
      bf16(base::ElementType::bf16, probed, columns);
  const double share = static_cast<double>(probed) / static_cast<double>(std::max(rows, probed));
  return measure_both(
      static_cast<double>(probe_width * columns) * share,
      [&](DType type, int round) { (type == DType::bf16 ? bf16 : fp32).step(round); });
}

ComputeProbe probe(const comm::CommView& world, const ProbeRoles& roles, const ThreadPlan& threads,
                   int64_t decode_rows) {
  ComputeProbe out;
  world.sleeping_barrier();
  threads.trainer.use();
  if (roles.trainer) out.products = probe_products();
  world.sleeping_barrier();
  if (roles.generator && decode_rows > 0) {
    threads.generator.use();
    out.decoding = probe_decoding(decode_rows);
    threads.trainer.use();
  }
  world.sleeping_barrier();
  return out;
}

}  // namespace trireme::machine
