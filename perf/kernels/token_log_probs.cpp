// The log-prob and entropy head (row T8): ours in vocabulary chunks beside log_softmax(linear),
// forward and backward.
//   perf_head [--benchmark_filter=...]   threads: OMP_NUM_THREADS
// `temporary_MiB` is the peak of memory that one pass takes beyond its inputs and the gradients
// that it returns.
#include "torch/torch.hpp"

#include "trireme/kernels/token_log_probs.hpp"

#include <ATen/TensorOperators.h>
#include <benchmark/benchmark.h>
#include <malloc.h>
#include <sys/resource.h>

#include <fstream>
#include <string>

#include "trireme/base/isa.hpp"
#include "trireme/kernels/log_sum_exp.hpp"

namespace {

using at::Tensor;

constexpr int64_t rows = 512;
constexpr int64_t width = 576;

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}
// Starts the high-water mark anew; false where the kernel does not offer it.
bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}
double status_mib(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return std::stod(line.substr(key.size() + 1)) / 1024;
  }
  return 0;
}

struct Problem {
  Problem(int64_t vocabulary, at::ScalarType type)
      : hidden(at::randn({rows, width}).to(type)),
        weight((at::randn({vocabulary, width}) * 0.05).to(type)),
        targets(at::randint(vocabulary, {rows}, at::kLong)) {
    hidden.set_requires_grad(true);
    weight.set_requires_grad(true);
  }
  double gradient_mib() const {
    return static_cast<double>((hidden.numel() + weight.numel()) * hidden.element_size()) /
           (1024 * 1024);
  }
  Tensor hidden, weight, targets;
};

Tensor naive(const Problem& p) {
  const Tensor all = at::log_softmax(at::linear(p.hidden, p.weight).to(at::kFloat), 1);
  return all.gather(1, p.targets.unsqueeze(1)).squeeze(1);
}
Tensor chunked(const Problem& p) {
  return trireme::kernels::token_log_probs(p.hidden, p.weight, p.targets, 1.0,
                                           trireme::kernels::Entropy::skip)
      .log_probs;
}
Tensor kept(const Problem& p) {
  return trireme::kernels::token_log_probs(p.hidden, p.weight, p.targets, 1.0,
                                           trireme::kernels::Entropy::skip,
                                           {.kept_bytes = int64_t{1} << 30})
      .log_probs;
}
Tensor chunked_with_entropy(const Problem& p) {
  return trireme::kernels::token_log_probs(p.hidden, p.weight, p.targets, 1.0,
                                           trireme::kernels::Entropy::value)
      .log_probs;
}

void head(benchmark::State& state, Tensor (*log_probs)(const Problem&), at::ScalarType type) {
  const Problem p(state.range(0), type);
  const auto pass = [&] {
    log_probs(p).sum().backward();
    p.hidden.mutable_grad() = Tensor{};
    p.weight.mutable_grad() = Tensor{};
  };
  pass();
  malloc_trim(0);  // memory kept from the first pass would hide what the second one takes
  const double before = status_mib("VmRSS:");
  const bool measured = reset_peak();
  pass();
  const double peak = measured ? status_mib("VmHWM:") : peak_mib();
  for (auto _ : state) pass();
  state.counters["temporary_MiB"] = peak - before - p.gradient_mib();
  state.counters["GFLOP/s"] =
      benchmark::Counter(6.0 * static_cast<double>(rows * width * state.range(0)) * 1e-9,
                         benchmark::Counter::kIsIterationInvariantRate);
}

void add(const char* name, Tensor (*log_probs)(const Problem&), at::ScalarType type) {
  benchmark::RegisterBenchmark(name, head, log_probs, type)
      ->Arg(49152)
      ->Arg(128256)
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime()
      ->MinTime(2);
}

}  // namespace

int main(int argc, char** argv) {
  trireme::base::cap_libraries();  // TRIREME_ISA
  add("f32/log_softmax(linear)", naive, at::kFloat);
  add("f32/chunks", chunked, at::kFloat);
  add("f32/chunks, logits kept", kept, at::kFloat);
  add("f32/chunks+entropy", chunked_with_entropy, at::kFloat);
  add("bf16/log_softmax(linear)", naive, at::kBFloat16);
  add("bf16/chunks", chunked, at::kBFloat16);
  add("bf16/chunks, logits kept", kept, at::kBFloat16);
  add("bf16/chunks+entropy", chunked_with_entropy, at::kBFloat16);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
