// What a weight sync does to memory on one thread: strided rows to buckets and back, deltas written
// and applied.
//   perf_weights [--benchmark_filter=...]
// `GB/s` counts the full weights once, however small the delta is. share: changed values in a
// thousand.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "weightsync/delta_stream.hpp"
#include "weightsync/packing.hpp"

namespace {

namespace sync = trireme::weightsync;

constexpr int64_t rows = 4096, columns = 4096, element_bytes = 2, elements = rows * columns;

void count(benchmark::State& state) {
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(elements * element_bytes) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

// A quarter of a matrix' columns, as a tensor-parallel rank takes them.
struct Slice {
  std::vector<std::byte> whole{static_cast<size_t>(4 * elements * element_bytes)};
  std::vector<std::byte> bucket{static_cast<size_t>(elements * element_bytes)};
  std::vector<sync::Piece> pieces{{0, {rows, columns, columns, 4 * columns, columns, 4 * columns}}};
};

void pack(benchmark::State& state) {
  Slice s;
  const void* tensors[] = {s.whole.data()};
  for (auto _ : state) {
    sync::pack(sync::copier_of(false), s.pieces, element_bytes, tensors, s.bucket.data());
    benchmark::ClobberMemory();
  }
  count(state);
}

void unpack(benchmark::State& state) {
  Slice s;
  void* targets[] = {s.whole.data()};
  for (auto _ : state) {
    sync::unpack(sync::copier_of(false), s.pieces, element_bytes, s.bucket.data(), targets);
    benchmark::ClobberMemory();
  }
  count(state);
}

// A bucket before and after a step that changed `share` in a thousand of its values.
struct Change {
  explicit Change(int64_t share)
      : now(before), bits(static_cast<size_t>(elements / 64)), delta(before.size()) {
    std::mt19937_64 draw(1);
    for (int64_t i = 0; i < elements * share / 1000; ++i) {
      const auto at = static_cast<size_t>(draw() % static_cast<uint64_t>(elements));
      now[at * element_bytes] = std::byte{1};
      bits[at / 64] |= uint64_t{1} << at % 64;
    }
  }
  std::vector<std::byte> before{static_cast<size_t>(elements * element_bytes)}, now;
  std::vector<uint64_t> bits;
  std::vector<std::byte> delta;
};

void encode(benchmark::State& state, bool known) {
  Change c(state.range(0));
  size_t size = 0;
  for (auto _ : state) {
    sync::DeltaEncoder encoder(c.delta, element_bytes);
    known ? encoder.add(c.now.data(), c.bits.data(), 0, elements)
          : encoder.add(c.now.data(), c.before.data(), elements);
    size = encoder.finish();
  }
  count(state);
  state.counters["share of full"] = static_cast<double>(size) / static_cast<double>(c.now.size());
}

void apply(benchmark::State& state) {
  Change c(state.range(0));
  sync::DeltaEncoder encoder(c.delta, element_bytes);
  encoder.add(c.now.data(), c.bits.data(), 0, elements);
  c.delta.resize(encoder.finish());
  const std::vector<sync::Piece> whole{{0, {1, elements, 0, elements, 0, elements}}};
  void* targets[] = {c.before.data()};
  for (auto _ : state) {
    benchmark::DoNotOptimize(sync::unpack_delta(whole, element_bytes, c.delta, elements, targets));
    benchmark::ClobberMemory();
  }
  count(state);
}

}  // namespace

int main(int argc, char** argv) {
  const auto add = [](const std::string& name, auto&& what, auto&&... more) {
    return benchmark::RegisterBenchmark(name.c_str(), what, more...)
        ->Unit(benchmark::kMillisecond)
        ->MinTime(0.5);
  };
  add("pack", pack);
  add("unpack", unpack);
  add("delta from both versions", encode, false)->Arg(10)->Arg(100);
  add("delta from changed bits", encode, true)->Arg(10)->Arg(100);
  add("apply delta", apply)->Arg(10)->Arg(100);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
