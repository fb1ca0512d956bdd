// The operators that are bound by memory: norm, rotary embedding, gate and their backward passes,
// on one thread.
//   perf_rows [--benchmark_filter=...]   TRIREME_ISA=avx2 for an older processor's
// `GB/s` counts each operand once. Rows of the 135M shape; 8: one decoding step's, in the cache;
// 4096: a micro-batch's.
#include <benchmark/benchmark.h>

#include <string>
#include <type_traits>
#include <vector>

#include "trireme/base/isa.hpp"
#include "trireme/model/row_kernels.hpp"

namespace {

namespace model = trireme::model;

constexpr int64_t hidden = 576, ffn = 1536, heads = 9, head_dim = 64;

// 1 in either type.
template <class T>
std::vector<T> ones(int64_t count) {
  return std::vector<T>(static_cast<size_t>(count), std::is_same_v<T, float> ? T(1) : T(0x3f80));
}

void count(benchmark::State& state, double bytes) {
  state.counters["GB/s"] =
      benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

template <class T>
void norm(benchmark::State& state) {
  const int64_t rows = state.range(0);
  auto x = ones<T>(rows * hidden), weight = ones<T>(hidden), y = x;
  for (auto _ : state) {
    model::rms_norm_rows({x.data(), weight.data(), rows, hidden}, 1e-5f, y.data(), nullptr);
    benchmark::ClobberMemory();
  }
  count(state, 2.0 * static_cast<double>(rows * hidden) * sizeof(T));
}

template <class T>
void norm_backward(benchmark::State& state) {
  const int64_t rows = state.range(0);
  auto x = ones<T>(rows * hidden), weight = ones<T>(hidden), dy = x, dx = x;
  auto inverse = ones<float>(rows), dweight = ones<float>(hidden);
  for (auto _ : state) {
    model::rms_norm_backward_rows({x.data(), weight.data(), rows, hidden}, inverse.data(),
                                  dy.data(), dx.data(), dweight.data());
    benchmark::ClobberMemory();
  }
  count(state, 3.0 * static_cast<double>(rows * hidden) * sizeof(T));
}

template <class T>
void rotate(benchmark::State& state) {
  const int64_t rows = state.range(0);
  auto x = ones<T>(rows * heads * head_dim);
  const auto cos = ones<float>(rows * head_dim / 2), sin = cos;
  std::vector<int64_t> positions(static_cast<size_t>(rows));
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int64_t>(i);
  for (auto _ : state) {
    model::rope_rows(x.data(), x.data(), {rows, heads, head_dim},
                     {positions.data(), cos.data(), sin.data()},
                     state.iterations() % 2 == 0 ? 1.f : -1.f);
    benchmark::ClobberMemory();
  }
  count(state, static_cast<double>(rows * heads * head_dim) * 2 * sizeof(T) +
                   static_cast<double>(rows * head_dim) * 4);
}

template <class T>
void gate(benchmark::State& state) {
  const int64_t values = state.range(0) * ffn;
  auto a = ones<T>(values), up = a, y = a;
  for (auto _ : state) {
    model::swiglu({a.data(), up.data(), values}, y.data());
    benchmark::ClobberMemory();
  }
  count(state, 3.0 * static_cast<double>(values) * sizeof(T));
}

template <class T>
void gate_backward(benchmark::State& state) {
  const int64_t values = state.range(0) * ffn;
  auto a = ones<T>(values), up = a, dy = a, da = a, dup = a;
  for (auto _ : state) {
    model::swiglu_backward({a.data(), up.data(), values}, dy.data(), da.data(), dup.data());
    benchmark::ClobberMemory();
  }
  count(state, 5.0 * static_cast<double>(values) * sizeof(T));
}

template <class T>
void add_all(const std::string& type) {
  const auto add = [&](const char* name, void (*what)(benchmark::State&)) {
    benchmark::RegisterBenchmark((type + "/" + name).c_str(), what)
        ->Arg(8)
        ->Arg(4096)
        ->MinTime(0.3);
  };
  add("norm", norm<T>);
  add("norm_backward", norm_backward<T>);
  add("rotate", rotate<T>);
  add("gate", gate<T>);
  add("gate_backward", gate_backward<T>);
}

}  // namespace

int main(int argc, char** argv) {
  add_all<float>("f32");
  add_all<uint16_t>("bf16");
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
