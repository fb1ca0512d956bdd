// Tokenizer and JSON on one thread, on text that the program reads: README and the code that this
// file is, or a file.
//   perf_text TOKENIZER_FOLDER [TEXT_FILE] [--benchmark_filter=...]
// `MB/s` of text.
#include <benchmark/benchmark.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/text/json_text.hpp"
#include "trireme/text/tokenizer.hpp"

namespace {

namespace text = trireme::text;

std::string read(const std::string& path) {
  std::ostringstream all;
  all << std::ifstream(path, std::ios::binary).rdbuf();
  EXPECT(!all.str().empty());
  return all.str();
}

void count(benchmark::State& state, size_t bytes) {
  state.counters["MB/s"] = benchmark::Counter(static_cast<double>(bytes) * 1e-6,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

void encode(benchmark::State& state, const text::Tokenizer& tokenizer, const std::string& sample) {
  size_t tokens = 0;
  for (auto _ : state) tokens = tokenizer.encode(sample).size();
  count(state, sample.size());
  state.counters["bytes a token"] =
      static_cast<double>(sample.size()) / static_cast<double>(tokens);
}

void decode(benchmark::State& state, const text::Tokenizer& tokenizer, const std::string& sample) {
  const auto ids = tokenizer.encode(sample);
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer.decode(ids).size());
  count(state, sample.size());
}

void stream(benchmark::State& state, const text::Tokenizer& tokenizer, const std::string& sample) {
  const auto ids = tokenizer.encode(sample);
  for (auto _ : state) {
    text::StreamingDecoder decoder(tokenizer);
    for (const text::TokenId id : ids) benchmark::DoNotOptimize(decoder.push(id).size());
  }
  count(state, sample.size());
}

void record(benchmark::State& state, const std::string& sample) {
  const std::string line =
      text::OrderedJson{{"prompt", sample}, {"label", "42"}, {"level", 3}}.dump();
  for (auto _ : state) benchmark::DoNotOptimize(text::parse_record(line, {"line", 1}).size());
  count(state, line.size());
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc != 2 && argc != 3) {
    std::cerr << "usage: perf_text TOKENIZER_FOLDER [TEXT_FILE] [--benchmark_...]\n";
    return 64;
  }
  const auto tokenizer = text::Tokenizer::load(argv[1]);
  const std::string prose = read(PERF_SOURCE_DIR "/../README.md"),
                    code = read(PERF_SOURCE_DIR "/kernels/text.cpp");
  const std::string file = argc == 3 ? read(argv[2]) : "";
  for (const auto& [name, sample] :
       {std::pair{"prose/", &prose}, {"code/", &code}, {"file/", &file}}) {
    if (sample->empty()) continue;
    const auto add = [&](const char* what, auto&& run) {
      benchmark::RegisterBenchmark((std::string(name) + what).c_str(), run)
          ->Unit(benchmark::kMicrosecond)
          ->MinTime(0.3);
    };
    add("encode",
        [&tokenizer, sample](benchmark::State& state) { encode(state, tokenizer, *sample); });
    add("decode",
        [&tokenizer, sample](benchmark::State& state) { decode(state, tokenizer, *sample); });
    add("decode one by one",
        [&tokenizer, sample](benchmark::State& state) { stream(state, tokenizer, *sample); });
    add("JSON record", [sample](benchmark::State& state) { record(state, *sample); });
  }
  benchmark::RunSpecifiedBenchmarks();
}
