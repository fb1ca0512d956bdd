// The optimizer's pass over a shard (row T7): norm, clipping, AdamW, the cast to bf16 and which of
// its values changed; ours beside the same by LibTorch's fused AdamW.
//   perf_adamw [--benchmark_filter=...]   threads: OMP_NUM_THREADS
// `GB/s` counts what ours has to move: the gradient twice, master, moments and bf16 weights in and
// out, a bit a value. Read it beside `copy`, which moves as many bytes.
#include "torch/torch.hpp"

#include "trireme/kernels/adamw.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_adamw.h>
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "trireme/base/isa.hpp"
#include "trireme/kernels/parallel.hpp"

namespace {

namespace kernels = trireme::kernels;
using at::Tensor;

constexpr double bytes_moved = 2 * 4 + 3 * 8 + 4 + 1.0 / 8;
constexpr int64_t elements = int64_t{1} << 25;

struct State {
  Tensor master = at::randn({elements}), gradient = at::randn({elements}),
         moment1 = at::zeros({elements}), moment2 = at::zeros({elements});
  Tensor compute = master.to(at::kBFloat16);
};

void count(benchmark::State& state) {
  state.counters["GB/s"] = benchmark::Counter(bytes_moved * static_cast<double>(elements) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

void ours(benchmark::State& state) {
  State s;
  std::vector<uint64_t> changed(elements / 64);
  kernels::AdamWShard shard{s.master.mutable_data_ptr<float>(),
                            s.moment1.mutable_data_ptr<float>(),
                            s.moment2.mutable_data_ptr<float>(),
                            s.gradient.const_data_ptr<float>(),
                            static_cast<uint16_t*>(s.compute.mutable_data_ptr()),
                            nullptr,
                            changed.data(),
                            elements};
  kernels::AdamWStep step;
  step.lr = 1e-6;
  step.step = 0;
  for (auto _ : state) {
    const double norm = std::sqrt(kernels::squared_norm(shard.gradient, elements));
    step.clip_factor = kernels::clip_factor(norm, 1);
    ++step.step;
    benchmark::DoNotOptimize(kernels::adamw(shard, step));
  }
  count(state);
}

void libtorch(benchmark::State& state) {
  State s;
  const Tensor steps = at::zeros({});
  for (auto _ : state) {
    const Tensor factor = (1 / (s.gradient.norm() + 1e-6)).clamp_max(1);
    s.gradient.mul_(factor);
    steps.add_(1);
    at::_fused_adamw_({s.master}, {s.gradient}, {s.moment1}, {s.moment2}, {}, {steps}, 1e-6, 0.9,
                      0.95, 0.0, 1e-8, false, false);
    const Tensor now = s.master.to(at::kBFloat16);
    benchmark::DoNotOptimize(now.ne(s.compute));
    s.compute = now;
  }
  count(state);
}

// As many bytes read and written by copies in equal shares.
void copy(benchmark::State& state) {
  const auto half = static_cast<int64_t>(bytes_moved * static_cast<double>(elements) / 2);
  std::vector<char> from(static_cast<size_t>(half), 1), to(static_cast<size_t>(half), 2);
  for (auto _ : state) {
    kernels::parallel_for(0, half, int64_t{1} << 22, [&](int64_t first, int64_t last) {
      std::memcpy(to.data() + first, from.data() + first, static_cast<size_t>(last - first));
    });
    benchmark::ClobberMemory();
  }
  count(state);
}

}  // namespace

int main(int argc, char** argv) {
  trireme::base::cap_libraries();  // TRIREME_ISA
  const auto add = [](const char* name, void (*what)(benchmark::State&)) {
    benchmark::RegisterBenchmark(name, what)
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime()
        ->MinTime(2);
  };
  add("norm+clip+adamw+cast+changed", ours);
  add("libtorch", libtorch);
  add("copy", copy);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
