// Decode and prefill speed of the generation engine on random weights of a given shape.
//   perf_decode [threads=2] [fused|torch] [prompt=128] [new=128] [repetitions=3] [batches=1,8,32]
// Prints one line per (dtype, batch): tokens/s while decoding (minimum and median time of the repetitions) and while
// prefilling, and the bytes of weights read per second. "cpu" divides by processor time instead of wall time: with one
// thread it is what an idle core would give, also on a busy machine.
#include "torch/torch.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <sstream>

#include "trireme/base/stopwatch.hpp"
#include "trireme/generate/engine.hpp"

namespace {

using namespace trireme;

struct Arguments {
  int threads = 2;
  generate::BackendKind backend = generate::BackendKind::fused;
  int64_t prompt = 128;
  int64_t tokens = 128;
  int repetitions = 3;
  std::vector<int64_t> batches{1, 8, 32};
};

Arguments parse(int argc, char** argv) {
  Arguments a;
  if (argc > 1) a.threads = std::atoi(argv[1]);
  if (argc > 2 && std::string(argv[2]) == "torch") a.backend = generate::BackendKind::torch;
  if (argc > 3) a.prompt = std::atoll(argv[3]);
  if (argc > 4) a.tokens = std::atoll(argv[4]);
  if (argc > 5) a.repetitions = std::atoi(argv[5]);
  if (argc > 6) {
    a.batches.clear();
    std::istringstream list(argv[6]);
    for (std::string word; std::getline(list, word, ',');) a.batches.push_back(std::atoll(word.c_str()));
  }
  return a;
}

// SmolLM2-135M.
config::ModelShape shape_135m() {
  config::ModelShape s;
  s.vocab = 49152;
  s.hidden = 576;
  s.layers = 30;
  s.heads = 9;
  s.kv_heads = 3;
  s.head_dim = 64;
  s.ffn = 1536;
  s.norm_eps = 1e-5;
  s.tied = true;
  s.max_positions = 2048;
  return s;
}

void fill(const model::ModelSpec& spec, generate::GeneratorWeights& weights) {
  const std::vector<std::byte*> storage = weights.storage();
  std::vector<float> values;
  for (size_t p = 0; p < storage.size(); ++p) {
    const base::Block block = weights.block(p);
    values.resize(static_cast<size_t>(block.elements()));
    model::initial_values(spec, p, block, 1, values.data());
    if (weights.dtype() == config::DType::fp32) {
      std::memcpy(storage[p], values.data(), values.size() * sizeof(float));
    } else {
      for (size_t i = 0; i < values.size(); ++i) reinterpret_cast<uint16_t*>(storage[p])[i] = c10::BFloat16(values[i]).x;
    }
  }
}

struct Times {
  double prefill = 0;
  double decode = 0;
  double decode_cpu = 0;
  double prefill_cpu = 0;
};

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

Times measure(generate::Engine& engine, int64_t batch, const Arguments& a, uint64_t run) {
  for (int64_t i = 0; i < batch; ++i) {
    generate::Request r;
    r.id = run * 1000 + static_cast<uint64_t>(i);
    for (int64_t t = 0; t < a.prompt; ++t) r.prompt.push_back(static_cast<int32_t>((t * 7919 + i * 104729 + static_cast<int64_t>(run) * 31) % 49152));
    r.sampling.max_new_tokens = a.tokens;
    engine.submit(std::move(r));
  }
  Times times;
  const auto before = engine.counters();
  int64_t decoded = 0;  // in steps without prefill
  while (!engine.idle()) {
    const base::Stopwatch watch;
    const double cpu = cpu_seconds();
    const int64_t prefilled = engine.counters().prefill_tokens, decode_tokens = engine.counters().decode_tokens;
    engine.step();
    const bool prefill = engine.counters().prefill_tokens > prefilled;
    if (!prefill) decoded += engine.counters().decode_tokens - decode_tokens;
    (prefill ? times.prefill : times.decode) += watch.seconds();
    (prefill ? times.prefill_cpu : times.decode_cpu) += cpu_seconds() - cpu;
  }
  const auto& after = engine.counters();
  for (double* t : {&times.prefill, &times.prefill_cpu}) *t /= static_cast<double>(after.prefill_tokens - before.prefill_tokens);
  for (double* t : {&times.decode, &times.decode_cpu}) *t /= static_cast<double>(std::max<int64_t>(1, decoded));
  return times;
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments a = parse(argc, argv);
  at::set_num_threads(a.threads);
  const model::ModelSpec spec = model::describe(shape_135m(), model::HeadKind::language);
  for (const auto dtype : {config::DType::bf16, config::DType::fp32}) {
    generate::GeneratorWeights weights(spec, dtype);
    fill(spec, weights);
    generate::EngineOptions options;
    options.threads = a.threads;
    options.backend = a.backend;
    options.kv_bytes = int64_t{2} << 30;
    options.prefix_sharing = false;
    base::Stopwatch start;
    generate::Engine engine(spec, weights, options);
    std::printf("%s: engine ready in %.0f ms\n", std::string(config::to_string(dtype)).c_str(), start.seconds() * 1e3);
    for (const std::string& line : engine.describe()) std::printf("  %s\n", line.c_str());
    for (const int64_t batch : a.batches) {
      std::vector<Times> all;
      for (int r = 0; r < a.repetitions; ++r) all.push_back(measure(engine, batch, a, static_cast<uint64_t>(batch * 100 + r)));
      const auto sorted = [&](auto member) {
        std::vector<double> v;
        for (const Times& t : all) v.push_back(t.*member);
        std::sort(v.begin(), v.end());
        return v;
      };
      const auto decode = sorted(&Times::decode), prefill = sorted(&Times::prefill);
      const auto decode_cpu = sorted(&Times::decode_cpu), prefill_cpu = sorted(&Times::prefill_cpu);
      const double steps = 1 / (decode.front() * static_cast<double>(batch));
      std::printf("%s b=%-3lld %lld+%lld: decode %.1f tok/s (median %.1f, cpu %.1f), weights %.1f GB/s; prefill %.0f tok/s (cpu %.0f)\n",
                  std::string(config::to_string(dtype)).c_str(), static_cast<long long>(batch), static_cast<long long>(a.prompt),
                  static_cast<long long>(a.tokens), 1 / decode.front(), 1 / decode[decode.size() / 2], 1 / decode_cpu.front(),
                  steps * static_cast<double>(weights.bytes()) / 1e9, 1 / prefill.front(),
                  1 / prefill_cpu.front());
      std::fflush(stdout);
    }
  }
  return 0;
}
