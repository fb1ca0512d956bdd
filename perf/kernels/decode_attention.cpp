// The attention of the generation engine over a paged cache (rows G1 to G4 at long contexts): one
// layer of the 135M shape and of one with heads of 128, decoding one or several texts and
// prefilling 512 positions, shared among threads as the engine shares it.
//   perf_decode_attention [--threads=1,2] [--isa=avx2,portable] [--benchmark_filter=...]
// `GB/s` counts keys and values once for each text and step (decoding: what is read), `GFLOP/s`
// both products. `decode_4096_window_1024` reads as much as `decode_1x1024` does.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "generate/attention_units.hpp"
#include "generate/thread_team.hpp"
#include "trireme/base/isa.hpp"
#include "trireme/kernels/decode_attention.hpp"

namespace {

namespace base = trireme::base;
using namespace trireme::generate;
using namespace trireme::kernels;

struct Shape {
  const char* name;
  int64_t kv_heads, group, head_dim;
};
constexpr Shape shapes[] = {{"135m", 3, 3, 64}, {"heads128", 8, 4, 128}, {"mha", 8, 1, 64}};
constexpr int64_t page_tiles = 16, page_tokens = page_tiles * tile_tokens;
constexpr int64_t together = 16;  // as the engine

// Pages of `texts` texts, a KV head after another, in shuffled order, and the queries of the step.
struct Step {
  Step(const Shape& its_shape, ElementType its_type, int64_t texts, int64_t rows, int64_t keys)
      : shape(its_shape), type(its_type) {
    const int64_t pages = (keys + page_tokens - 1) / page_tokens,
                  bytes = static_cast<int64_t>(size_of(type));
    head_bytes = page_tiles * tile_elements(shape.head_dim) * bytes;
    cache.resize(static_cast<size_t>(texts * pages * shape.kv_heads * head_bytes));
    row = shape.kv_heads * shape.group * shape.head_dim;
    q.resize(static_cast<size_t>(texts * rows * row * bytes));
    out.resize(q.size());
    fill(cache);
    fill(q);
    for (int64_t p = 0; p < texts * pages; ++p)
      starts.push_back(cache.data() + p * shape.kv_heads * head_bytes);
    std::shuffle(starts.begin(), starts.end(), std::mt19937(1));
    for (int64_t t = 0; t < texts; ++t) {
      batch.sequences.push_back({{}, keys - rows, rows});
      first_page.push_back(static_cast<size_t>(t * pages));
      for (int64_t i = 0; i < rows; ++i) batch.ids.push_back(0);
    }
  }
  // Small numbers as fp32 and as bf16.
  static void fill(std::vector<std::byte>& memory) {
    std::mt19937 random(2);
    for (size_t i = 0; i < memory.size(); i += 4) {
      const uint32_t bits = 0x3d003d00 + (random() & 0x807f807f);
      std::memcpy(memory.data() + i, &bits, sizeof bits);
    }
  }

  AttentionArguments arguments(const AttentionUnit& unit, int64_t window) {
    const int64_t at = (unit.first_row * row + unit.kv_head * shape.group * shape.head_dim) *
                       static_cast<int64_t>(size_of(type));
    return {.type = type,
            .pages = starts.data() + first_page[unit.sequence],
            .offset = unit.kv_head * head_bytes,
            .tiles_per_page = page_tiles,
            .keys = unit.keys,
            .rows = unit.rows,
            .row_stride = row,
            .q = q.data() + at,
            .out = out.data() + at,
            .group = shape.group,
            .head_dim = shape.head_dim,
            .scale = 1 / std::sqrt(static_cast<float>(shape.head_dim)),
            .window = window};
  }

  Shape shape;
  ElementType type;
  int64_t head_bytes = 0, row = 0;
  std::vector<std::byte> cache, q, out;
  std::vector<const std::byte*> starts;
  std::vector<size_t> first_page;
  StepBatch batch;
};

struct Setting {
  Shape shape;
  ElementType type;
  base::Isa isa;
  int threads;
  int64_t texts, rows, keys, window;
};

void attention(benchmark::State& state, const Setting& s) {
  base::use_isa(s.isa);
  Step step(s.shape, s.type, s.texts, s.rows, s.keys);
  ThreadTeam team(s.threads);
  const AttentionUnits shared = share_attention(step.batch, s.shape.kv_heads, s.threads, together);
  int64_t floats = 0;
  std::vector<int64_t> parts_at;
  for (const AttentionUnit& unit : shared.units) {
    parts_at.push_back(floats);
    floats += unit.chunks * part_floats(unit.rows, s.shape.group, s.shape.head_dim);
  }
  std::vector<float> parts(static_cast<size_t>(floats));
  std::vector<std::atomic<int64_t>> done(shared.units.size());
  for (auto _ : state) {
    team.run([&](int thread) {
      if (shared.parts.empty()) {
        deal(std::ssize(shared.units), thread, s.threads, [&](int64_t u) {
          attend(step.arguments(shared.units[static_cast<size_t>(u)], s.window));
        });
        return;
      }
      deal(std::ssize(shared.parts), thread, s.threads, [&](int64_t i) {
        const auto [unit, chunk] = shared.parts[static_cast<size_t>(i)];
        const AttentionArguments a = step.arguments(shared.units[unit], s.window);
        attend_chunk(a, chunk, parts.data() + parts_at[unit]);
        if (++done[unit] % a.chunks() == 0) merge_chunks(a, parts.data() + parts_at[unit]);
      });
    });
  }
  base::use_isa(base::best_isa());
  const auto steps = static_cast<double>(state.iterations());
  const auto seen = static_cast<double>(s.texts * (s.keys * s.rows - s.rows * (s.rows - 1) / 2));
  state.counters["GB/s"] = benchmark::Counter(steps * static_cast<double>(step.cache.size()) * 1e-9,
                                              benchmark::Counter::kIsRate);
  state.counters["GFLOP/s"] = benchmark::Counter(
      steps * seen * static_cast<double>(step.row) * 4e-9, benchmark::Counter::kIsRate);
}

// The values of --name=a,b, taken out of the command line.
std::vector<std::string> option(int& argc, char** argv, const std::string& name,
                                const std::string& otherwise) {
  std::string text = otherwise;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.starts_with("--" + name + "=")) {
      text = argument.substr(name.size() + 3);
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  std::vector<std::string> out;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) out.push_back(part);
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const auto threads = option(argc, argv, "threads", "1,2");
  const auto isas = option(argc, argv, "isa", base::to_string(base::best_isa()));
  struct Load {
    const char* name;
    int64_t texts, rows, keys, window = 0;
  };
  constexpr Load loads[] = {{"decode_1x1024", 1, 1, 1024},
                            {"decode_1x8192", 1, 1, 8192},
                            {"decode_4096_window_1024", 1, 1, 4096, 1024},
                            {"decode_8x512", 8, 1, 512},
                            {"decode_8x2048", 8, 1, 2048},
                            {"prefill_512", 1, 512, 512},
                            {"prefill_512_at_8192", 1, 512, 8192}};
  for (const Shape& shape : shapes) {
    for (const auto type : {ElementType::f32, ElementType::bf16}) {
      for (const Load& load : loads) {
        for (const std::string& isa_name : isas) {
          for (const std::string& count : threads) {
            for (const auto isa : {base::Isa::portable, base::Isa::avx2, base::Isa::avx512,
                                   base::Isa::avx512_bf16}) {
              if (to_string(isa) != isa_name || isa > base::best_isa()) continue;
              const Setting setting{shape,      type,      isa,       std::stoi(count),
                                    load.texts, load.rows, load.keys, load.window};
              const std::string name = std::string(shape.name) +
                                       (type == ElementType::f32 ? "/f32/" : "/bf16/") + load.name +
                                       "/" + isa_name + "/threads:" + count;
              benchmark::RegisterBenchmark(name.c_str(), attention, setting)
                  ->Unit(benchmark::kMicrosecond)
                  ->UseRealTime()
                  ->MinTime(0.1);
            }
          }
        }
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
