// Draws of the next token from a row of logits on one thread: greedy, plain and truncated, as the
// CPU engine makes them.
//   perf_draw [--benchmark_filter=...]
// `GB/s` counts the logits once.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "trireme/base/bf16.hpp"
#include "trireme/base/isa.hpp"
#include "trireme/kernels/sampling.hpp"

namespace {

namespace base = trireme::base;
namespace kernels = trireme::kernels;

struct Logits {
  Logits(int64_t count, kernels::ElementType type)
      : values(static_cast<size_t>(count)), halves(static_cast<size_t>(count)) {
    std::mt19937 draw(1);
    std::normal_distribution<float> normal(0, 3);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = normal(draw);
      halves[i] = base::float_to_bf16(values[i]);
    }
    row = {
        type,
        type == kernels::ElementType::f32 ? static_cast<const void*>(values.data()) : halves.data(),
        count};
  }
  std::vector<float> values;
  std::vector<uint16_t> halves;
  kernels::LogitsRow row;
};

void count(benchmark::State& state, const Logits& logits) {
  const double bytes = static_cast<double>(logits.row.count) *
                       (logits.row.type == kernels::ElementType::f32 ? 4 : 2);
  state.counters["GB/s"] =
      benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void greedy(benchmark::State& state, kernels::ElementType type) {
  const Logits logits(state.range(0), type);
  for (auto _ : state) benchmark::DoNotOptimize(kernels::argmax(logits.row));
  count(state, logits);
}

void plain(benchmark::State& state, kernels::ElementType type) {
  const Logits logits(state.range(0), type);
  std::vector<kernels::LogSumExp> after;
  float uniform = 0;
  for (auto _ : state) {
    after.clear();
    kernels::accumulate(logits.row, 1, after);
    uniform = uniform < 0.9f ? uniform + 0.1f : 0.05f;
    const auto choice = kernels::choose_slice({&after.back(), 1}, after.back(), uniform);
    benchmark::DoNotOptimize(kernels::choose_index(logits.row, 1, after, choice.target));
  }
  count(state, logits);
}

void truncated(benchmark::State& state, kernels::ElementType type,
               const kernels::Truncation& truncation) {
  const Logits logits(state.range(0), type);
  std::vector<kernels::LogSumExp> after;
  for (auto _ : state) {
    after.clear();
    kernels::accumulate(logits.row, 1, after);
    std::vector<kernels::Candidate> candidates;
    for (const float band : {8.f, 11.f, 16.f, 40.f, std::numeric_limits<float>::infinity()}) {
      candidates.clear();
      const float threshold = after.back().max - band;
      kernels::collect_candidates(logits.row, 0, 1, threshold, candidates);
      if (kernels::sufficient(candidates, truncation, after.back(), threshold)) break;
    }
    benchmark::DoNotOptimize(
        kernels::draw_truncated(std::move(candidates), truncation, after.back(), 0.4f));
  }
  count(state, logits);
}

}  // namespace

int main(int argc, char** argv) {
  for (const auto type : {kernels::ElementType::f32, kernels::ElementType::bf16}) {
    const auto add = [&](const std::string& name, auto&& what, auto&&... more) {
      benchmark::RegisterBenchmark(
          ((type == kernels::ElementType::f32 ? "f32/" : "bf16/") + name).c_str(), what, type,
          more...)
          ->Arg(49152)
          ->Arg(128256)
          ->Unit(benchmark::kMicrosecond)
          ->MinTime(0.3);
    };
    add("greedy", greedy);
    add("plain", plain);
    add("top_k 50", truncated, kernels::Truncation{1, 50});
    add("top_p 0.9", truncated, kernels::Truncation{0.9, 0});
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
