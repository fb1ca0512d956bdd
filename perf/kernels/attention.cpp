// The training attention on every instruction set beside LibTorch's scaled_dot_product_attention:
// one packed batch of 4 sequences, forward alone and with the backward pass.
//   perf_attention [--benchmark_filter=...]   threads: OMP_NUM_THREADS; LibTorch as on an older
//   processor: ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2
// `GFLOP/s` counts the products of the causal half. `cpu_ms` is the fastest pass by processor time,
// for machines that others use.
#include "torch/torch.hpp"

#include <benchmark/benchmark.h>

#include <cmath>
#include <ctime>
#include <string>

#include "model/packed_attention.hpp"
#include "trireme/base/isa.hpp"

namespace {

namespace base = trireme::base;
using at::Tensor;

struct Shape {
  const char* name;
  int64_t heads, kv_heads, head_dim, tokens;
};
constexpr Shape shapes[] = {
    {"135m", 9, 3, 64, 512}, {"25m", 6, 2, 64, 256}, {"long", 8, 2, 128, 2048}};
constexpr int64_t sequences = 4;

double now() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

void attention(benchmark::State& state, decltype(&trireme::model::attend_packed) attend,
               base::Isa isa, const Shape& shape, at::ScalarType type, bool backward) {
  base::use_isa(isa);
  const int64_t tokens = sequences * shape.tokens;
  const auto draw = [&](int64_t heads) {
    return at::randn({tokens, heads, shape.head_dim}).to(type).set_requires_grad(backward);
  };
  Tensor q = draw(shape.heads), k = draw(shape.kv_heads), v = draw(shape.kv_heads);
  const Tensor slope = at::randn({tokens, shape.heads, shape.head_dim}).to(type);
  std::vector<int64_t> cu_seqlens{0};
  for (int64_t s = 0; s < sequences; ++s) cu_seqlens.push_back(cu_seqlens.back() + shape.tokens);
  double best = 1e30;
  for (auto _ : state) {
    const double begin = now();
    const Tensor out =
        attend(q, k, v, 1 / std::sqrt(static_cast<double>(shape.head_dim)), cu_seqlens);
    if (backward) {
      out.backward(slope);
      for (Tensor* x : {&q, &k, &v}) x->mutable_grad() = Tensor{};
    }
    best = std::min(best, now() - begin);
  }
  base::use_isa(base::best_isa());
  const double products = backward ? 7 : 2;  // of [S, S / 2] with hd
  state.counters["cpu_ms"] = best;
  state.counters["GFLOP/s"] =
      products * 2 * static_cast<double>(tokens * shape.heads * shape.head_dim * shape.tokens / 2) /
      best * 1e-6;
}

}  // namespace

int main(int argc, char** argv) {
  for (const Shape& shape : shapes) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      for (const bool backward : {false, true}) {
        const std::string name = std::string(shape.name) + (type == at::kFloat ? "/f32" : "/bf16") +
                                 (backward ? "/backward/" : "/forward/");
        const auto add = [&](const std::string& what,
                             decltype(&trireme::model::attend_packed) attend, base::Isa isa) {
          benchmark::RegisterBenchmark((name + what).c_str(), attention, attend, isa, shape, type,
                                       backward)
              ->Unit(benchmark::kMillisecond)
              ->UseRealTime()
              ->MinTime(0.3);
        };
        add("sdpa", trireme::model::attend_by_sequence, base::best_isa());
        for (const auto isa :
             {base::Isa::portable, base::Isa::avx2, base::Isa::avx512, base::Isa::avx512_bf16}) {
          if (isa <= base::best_isa()) add(to_string(isa), trireme::model::attend_packed, isa);
        }
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
