// The decode GEMM (rows G1 to G3 without attention): all matrices of a step of the 135M shape, each
// read once, beside a plain read of the same memory.
//   perf_decode_gemm [--threads=1,2] [--isa=avx2,portable] [--batch=1,8,32] [--type=f32,bf16,int8]
//   [--clock=cpu] [--benchmark_filter=...]
// int8: weights in 8 bits, activations in bf16.
// `GB/s` counts the weights' bytes; `of_read` is its share of the read bandwidth just measured with
// as many threads; `tok/s` is the bound that these products set on a rollout. --clock=cpu takes the
// processor time of the busiest thread and leaves the barriers between matrices out, for machines
// that others use too.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <map>
#include <string>
#include <vector>

#include "generate/thread_team.hpp"
#include "trireme/base/isa.hpp"
#include "trireme/comm/huge_buffer.hpp"
#include "trireme/kernels/decode_gemm.hpp"
#include "trireme/kernels/int8_gemm.hpp"

namespace {

namespace base = trireme::base;
using trireme::comm::FirstTouch;
using trireme::comm::HugeBuffer;
using trireme::generate::ThreadTeam;
using namespace trireme::kernels;

struct Matrix {
  int64_t n, k;
};
constexpr int64_t layers = 30;
constexpr Matrix block[] = {{576, 576},  {192, 576},  {192, 576}, {576, 576},
                            {1536, 576}, {1536, 576}, {576, 1536}};
constexpr Matrix head{49152, 576};
constexpr int64_t largest_k = 1536, largest_n = 49152, largest_batch = 240;

std::vector<Matrix> matrices() {
  std::vector<Matrix> out;
  for (int64_t l = 0; l < layers; ++l) out.insert(out.end(), std::begin(block), std::end(block));
  out.push_back(head);
  return out;
}
// Types of the weights; int8: with activations in bf16.
enum class Weights { f32, bf16, int8 };
int64_t bytes_of(const Matrix& m, Weights type) {
  return type == Weights::int8 ? int8_bytes(m.k, m.n) : m.n * m.k * (type == Weights::f32 ? 4 : 2);
}
int64_t bytes(Weights type) {
  int64_t out = 0;
  for (const Matrix& m : matrices()) out += bytes_of(m, type);
  return out;
}
int64_t elements() {
  int64_t out = 0;
  for (const Matrix& m : matrices()) out += m.n * m.k;
  return out;
}

struct Memory {
  static constexpr const char* remedy = "use a machine with more memory";
  HugeBuffer weights{elements() * 4, FirstTouch::now, "weights", remedy},
      x{largest_batch * largest_k * 4, FirstTouch::now, "x", remedy},
      y{largest_batch * largest_n * 4, FirstTouch::now, "y", remedy};
  Memory() {
    // Small numbers as fp32 and as bf16.
    const uint32_t bits = 0x3c013c00;
    for (const HugeBuffer* buffer : {&weights, &x}) {
      const int64_t bytes = buffer == &weights ? elements() * 4 : largest_batch * largest_k * 4;
      for (int64_t i = 0; i < bytes; i += 4) std::memcpy(buffer->data() + i, &bits, sizeof bits);
    }
  }
};
Memory& memory() {
  static Memory all;
  return all;
}
ThreadTeam& team(int threads) {
  static std::map<int, ThreadTeam> teams;
  return teams.try_emplace(threads, threads).first->second;
}

bool cpu_clock = false;
double now() {
  timespec time{};
  clock_gettime(cpu_clock ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Seconds that `body(thread)` takes on all threads of a team.
template <class Body>
double timed(ThreadTeam& threads, const Body& body) {
  std::vector<double> busy(static_cast<size_t>(threads.size()));
  const double begin = now();
  threads.run([&](int thread) { busy[static_cast<size_t>(thread)] = body(thread); });
  return cpu_clock ? *std::max_element(busy.begin(), busy.end()) : now() - begin;
}

// The fastest of several plain reads of `bytes` of the weights, in GB/s.
double read_bandwidth(int threads, int64_t bytes) {
  typedef uint64_t Block __attribute__((vector_size(16)));
  double best = 0;
  for (int repetition = 0; repetition < 3; ++repetition) {
    const double seconds = timed(team(threads), [&](int thread) {
      const double begin = now();
      const auto [first, last] = team(threads).share(thread, bytes, 4096);
      Block sums[8] = {};
      for (int64_t at = first; at + 128 <= last; at += 128) {
        const auto* from = reinterpret_cast<const Block*>(memory().weights.data() + at);
        for (int i = 0; i < 8; ++i) sums[i] ^= from[i];
      }
      for (Block& sum : sums) benchmark::DoNotOptimize(sum);
      return now() - begin;
    });
    best = std::max(best, static_cast<double>(bytes) / seconds * 1e-9);
  }
  return best;
}

struct Setting {
  base::Isa isa;
  bool tiles;
  Weights type;
  int64_t batch;
  int threads;
};

double run_step(const Setting& s, ThreadTeam& threads) {
  return timed(threads, [&](int thread) {
    double busy = 0;
    GemmArguments a;
    a.type = s.type == Weights::f32 ? ElementType::f32 : ElementType::bf16;
    a.x = memory().x.data();
    a.y = memory().y.data();
    a.m = s.batch;
    a.order.block = s.type == Weights::f32 ? 192 : s.tiles ? 1 << 30 : 512;
    a.order.tiles = s.tiles;
    const std::byte* weight = memory().weights.data();
    for (const Matrix& m : matrices()) {
      a.weight = weight;
      a.int8 = s.type == Weights::int8 ? weight : nullptr;
      a.k = m.k;
      a.n = m.n;
      a.ldx = gemm_padded(m.k);
      a.ldy = m.n;
      const auto [first, last] = threads.share(thread, m.n, gemm_column_unit);
      const double begin = now();
      gemm_columns(a, first, last);
      busy += now() - begin;
      weight += bytes_of(m, s.type);
      if (!cpu_clock) threads.barrier(thread);
    }
    return busy;
  });
}

void step(benchmark::State& state, const Setting& s) {
  base::use_isa(s.isa);
  const int64_t all = bytes(s.type);
  double best = 0;
  const double read_before = read_bandwidth(s.threads, all);
  for (auto _ : state) { best = std::max(best, 1 / run_step(s, team(s.threads))); }
  const double read = std::max(read_before, read_bandwidth(s.threads, all));
  const double rate = static_cast<double>(all) * best * 1e-9;
  state.counters["GB/s"] = rate;
  state.counters["of_read"] = rate / read;
  state.counters["tok/s"] = static_cast<double>(s.batch) * best;
  state.counters["GFLOP/s"] = 2e-9 * static_cast<double>(elements() * s.batch) * best;
}

// "--name=a,b" is taken out of the arguments.
std::string option(int& argc, char** argv, const std::string& name, std::string value) {
  for (int i = 1; i < argc; ++i) {
    if (!std::string(argv[i]).starts_with("--" + name + "=")) continue;
    value = std::string(argv[i]).substr(name.size() + 3);
    std::copy(argv + i + 1, argv + argc, argv + i);
    --argc;
    --i;
  }
  return "," + value + ",";
}

}  // namespace

int main(int argc, char** argv) {
  const std::string threads = option(argc, argv, "threads", "1,2"),
                    isas = option(argc, argv, "isa", "portable,avx2,avx512,avx512_bf16,amx");
  const std::string batches = option(argc, argv, "batch", "1,8,32"),
                    types = option(argc, argv, "type", "f32,bf16,int8");
  cpu_clock = option(argc, argv, "clock", "wall") == ",cpu,";
  const auto listed = [](const std::string& list, const std::string& word) {
    return list.find("," + word + ",") != std::string::npos;
  };
  for (const int count : {1, 2, 4, 8}) {
    for (const auto type : {Weights::f32, Weights::bf16, Weights::int8}) {
      for (const int64_t batch : {1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64, 240}) {
        for (const auto& [word, isa] :
             {std::pair<std::string, base::Isa>{"portable", base::Isa::portable},
              {"avx2", base::Isa::avx2},
              {"avx512", base::Isa::avx512},
              {"avx512_bf16", base::Isa::avx512_bf16},
              {"amx", base::Isa::avx512_bf16}}) {
          const bool tiles = word == "amx";
          if (tiles && (type != Weights::bf16 || !base::has_matrix_units())) continue;
          const std::string name = type == Weights::f32    ? "f32"
                                   : type == Weights::bf16 ? "bf16"
                                                           : "int8";
          if (isa > base::best_isa() || !listed(isas, word) ||
              !listed(threads, std::to_string(count)) || !listed(batches, std::to_string(batch)) ||
              !listed(types, name)) {
            continue;
          }
          benchmark::RegisterBenchmark((word + "/" + name + "/b" + std::to_string(batch) +
                                        "/threads" + std::to_string(count))
                                           .c_str(),
                                       step, Setting{isa, tiles, type, batch, count})
              ->Unit(benchmark::kMillisecond)
              ->UseRealTime()
              ->MinTime(0.5);
        }
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
