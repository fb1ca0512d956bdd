// The load that RL puts on the generation engine (rows G5, G6): prompts of unequal lengths that
// begin alike, several samples of each, responses of very unequal lengths.
//   perf_rollout --prompts 100,231,... --responses 37,512,... [--samples 8] [--prefix 32] [--shape
//   135M|25M] [--dtype bf16|fp32]
//                [--max-batch 64] [--threads 2]
// --responses has prompts x samples entries, a prompt's samples side by side. Prints one JSON
// object: useful tokens/s (response tokens over the whole time), the share of what could be shared
// of the prompts' work that was, the share of the decode steps' slots that carried a token.
#include "torch/torch.hpp"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "harness/arguments.hpp"
#include "harness/random_weights.hpp"
#include "harness/shapes.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/heap.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/generate/engine.hpp"
#include "trireme/kernels/tensor_memory.hpp"

namespace {

using namespace trireme;

struct Setting {
  std::string shape = "135M", dtype = "bf16";
  std::vector<int64_t> prompts, responses;
  int64_t samples = 8, prefix = 32, max_batch = 64;
  int threads = 2;
};

Setting parse(int argc, char** argv) {
  Setting s;
  CLI::App app("An RL-shaped rollout on random weights and tokens");
  app.add_option("--shape", s.shape)
      ->check(CLI::IsMember(perf::shape_names()))
      ->capture_default_str();
  app.add_option("--dtype", s.dtype)->check(CLI::IsMember({"bf16", "fp32"}))->capture_default_str();
  app.add_option("--prompts", s.prompts, "tokens of each")
      ->check(CLI::PositiveNumber)
      ->delimiter(',')
      ->required();
  app.add_option("--responses", s.responses, "tokens of each sample")
      ->check(CLI::PositiveNumber)
      ->delimiter(',')
      ->required();
  app.add_option("--samples", s.samples, "of a prompt")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--prefix", s.prefix, "tokens that all prompts have in common")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--max-batch", s.max_batch)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--threads", s.threads)->check(CLI::PositiveNumber)->capture_default_str();
  perf::parse_or_exit(app, argc, argv);
  VALIDATE(s.responses.size() == s.prompts.size() * static_cast<size_t>(s.samples), ExitCode::usage,
           "--responses has ", s.responses.size(), " entries: prompts x samples are ",
           s.prompts.size() * static_cast<size_t>(s.samples));
  return s;
}

std::vector<generate::Request> requests(const Setting& s, int64_t vocabulary) {
  std::vector<generate::Request> out;
  for (size_t p = 0; p < s.prompts.size(); ++p) {
    std::vector<int32_t> prompt;
    for (int64_t t = 0; t < s.prompts[p]; ++t) {
      const int64_t own = t < s.prefix ? 0 : static_cast<int64_t>(p) + 1;
      prompt.push_back(static_cast<int32_t>((t * 7919 + own * 104729) % vocabulary));
    }
    for (int64_t i = 0; i < s.samples; ++i) {
      generate::Request request;
      request.id = p * static_cast<uint64_t>(s.samples) + static_cast<uint64_t>(i);
      request.prompt = prompt;
      request.sampling.max_new_tokens = s.responses[request.id];
      out.push_back(std::move(request));
    }
  }
  return out;
}

void run(const Setting& s) {
  at::set_num_threads(s.threads);
  const model::ModelSpec spec = model::describe(perf::shape_of(s.shape), model::HeadKind::language);
  generate::GeneratorWeights weights(spec,
                                     s.dtype == "bf16" ? config::DType::bf16 : config::DType::f32);
  perf::fill_random(spec, weights);
  generate::EngineOptions options;
  options.threads = s.threads;
  options.max_batch = s.max_batch;
  options.kv_bytes = int64_t{4} << 30;
  generate::Engine engine(spec, weights, options);
  const base::Stopwatch watch;
  int64_t finished = 0;
  engine.run(requests(s, spec.shape.vocab), [&finished](const generate::Result&) { ++finished; });
  const double seconds = watch.seconds();
  const auto& c = engine.counters();
  const int64_t useful = std::accumulate(s.responses.begin(), s.responses.end(), int64_t{0});
  VALIDATE(finished == static_cast<int64_t>(s.responses.size()) && c.generated_tokens == useful,
           ExitCode::internal, "the engine gave ", c.generated_tokens, " tokens for ", useful);
  const int64_t prompt_tokens = std::accumulate(s.prompts.begin(), s.prompts.end(), int64_t{0});
  const auto prompts = static_cast<int64_t>(s.prompts.size());
  const int64_t pages =
      s.prefix / options.page_size * options.page_size;  // whole pages of the common prefix
  const int64_t least = prompt_tokens - (prompts - 1) * pages, most = prompt_tokens * s.samples;
  std::printf(
      "{\"shape\": \"%s\", \"dtype\": \"%s\", \"requests\": %zu, \"threads\": %d, \"seconds\": "
      "%.3f, \"useful_tokens_per_s\": %.1f, "
      "\"prefill_tokens\": %lld, \"prefill_saved\": %.4f, \"slots_used\": %.4f, \"page_waste\": "
      "%.4f, \"steps\": %lld, \"preemptions\": %lld}\n",
      s.shape.c_str(), s.dtype.c_str(), s.responses.size(), s.threads, seconds,
      static_cast<double>(useful) / seconds, static_cast<long long>(c.prefill_tokens),
      static_cast<double>(most - c.prefill_tokens) / static_cast<double>(most - least),
      static_cast<double>(c.decode_tokens) /
          static_cast<double>(c.decode_steps * std::min<int64_t>(s.max_batch, finished)),
      static_cast<double>(c.page_room_unused) / static_cast<double>(c.page_room),
      static_cast<long long>(c.steps), static_cast<long long>(c.preemptions));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    trireme::base::keep_freed_memory();  // as the program
    trireme::kernels::use_block_cache();
    run(parse(argc, argv));
  } catch (const trireme::UserError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
