// Decode and prefill speed of the generation engine on random weights of a given shape.
//   perf_decode [--shape 135M|25M|1B|8B] [--dtype bf16,fp32] [--batch 1,8,32] [--prompt 128] [--new
//   128] [--backend fused|torch]
//               [--weights model,int8] [--threads 2] [--repetitions 3] [--graphs 1|0]
//               [--fused-operators 1|0] [--window TOKENS]
//   mpirun -n 2 perf_decode --threads 1 --sums shared,gathered ...    a replica of so many
//   tensor-parallel ranks, by both ways of adding up in turn
// perf_decode-gpu does it on a GPU, by the backend for these. Prints one JSON object per type and
// batch: tokens/s while decoding (best and median of the repetitions) and while prefilling, and the
// bytes of weights read per second. tokens_per_cpu_s divides by processor time instead of wall
// time: with one thread it is what an idle core would give, also on a busy machine.
#include "torch/torch.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harness/arguments.hpp"
#include "harness/random_weights.hpp"
#include "harness/shapes.hpp"
#include "harness/site.hpp"
#include "trireme/base/heap.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/config/options.hpp"
#include "trireme/generate/engine.hpp"
#include "trireme/kernels/tensor_memory.hpp"

namespace {

using namespace trireme;

struct Setting {
  std::string shape = "135M", backend = "fused";
  std::vector<std::string> dtypes{"bf16", "fp32"}, weights{"model"}, sums{"shared"};
  std::vector<int64_t> batches{1, 8, 32};
  int threads = 2, repetitions = 3;
  bool graphs = true, fused_operators = true;
  int64_t prompt = 128, tokens = 128;
  int64_t window = 0;  // tokens that every layer sees; 0: all
};

Setting parse(int argc, char** argv) {
  Setting s;
  CLI::App app("Decode and prefill on random weights and tokens");
  app.add_option("--shape", s.shape)
      ->check(CLI::IsMember(perf::shape_names()))
      ->capture_default_str();
  app.add_option("--dtype", s.dtypes)
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--weights", s.weights, "int8: copies in 8 bits")
      ->check(CLI::IsMember({"model", "int8"}))
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--sums", s.sums, "between ranks: in memory that they share, or gathered by MPI")
      ->check(CLI::IsMember({"shared", "gathered"}))
      ->delimiter(',');
  app.add_option("--batch", s.batches)
      ->check(CLI::PositiveNumber)
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--prompt", s.prompt, "tokens")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--new", s.tokens, "tokens")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--window", s.window, "tokens that every layer sees (0: all)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--backend", s.backend)
      ->check(CLI::IsMember({"fused", "torch"}))
      ->capture_default_str();
  app.add_option("--threads", s.threads)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--fused-operators", s.fused_operators,
                 "on a GPU: several operators of a layer by one product or kernel")
      ->capture_default_str();
  app.add_option("--graphs", s.graphs, "on a GPU: steps of decoding recorded and launched as one")
      ->capture_default_str();
  app.add_option("--repetitions", s.repetitions)->check(CLI::PositiveNumber)->capture_default_str();
  perf::parse_or_exit(app, argc, argv);
  return s;
}

struct Times {
  double prefill = 0;
  double decode = 0;
  double decode_cpu = 0;
  double prefill_cpu = 0;
};

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

Times measure(generate::Engine& engine, int64_t vocab, int64_t batch, const Setting& a,
              uint64_t run) {
  for (int64_t i = 0; i < batch; ++i) {
    generate::Request r;
    r.id = run * 1000 + static_cast<uint64_t>(i);
    for (int64_t t = 0; t < a.prompt; ++t)
      r.prompt.push_back(
          static_cast<int32_t>((t * 7919 + i * 104729 + static_cast<int64_t>(run) * 31) % vocab));
    r.sampling.max_new_tokens = a.tokens;
    engine.submit(std::move(r));
  }
  Times times;
  const auto before = engine.counters();
  int64_t decoded = 0;  // in steps of all sequences: of a long batch the last prompts are computed
                        // while the first answers grow, and the first answers end before the last
  while (!engine.idle()) {
    const base::Stopwatch watch;
    const double cpu = cpu_seconds();
    const int64_t prefilled = engine.counters().prefill_tokens,
                  decode_tokens = engine.counters().decode_tokens;
    engine.step();
    const bool prefill = engine.counters().prefill_tokens > prefilled;
    const int64_t decoding = engine.counters().decode_tokens - decode_tokens;
    if (!prefill && decoding < batch) continue;
    if (!prefill) decoded += decoding;
    (prefill ? times.prefill : times.decode) += watch.seconds();
    (prefill ? times.prefill_cpu : times.decode_cpu) += cpu_seconds() - cpu;
  }
  VALIDATE(decoded > 0, ExitCode::usage, "no step decodes ", batch,
           " sequences at once: answers of ", a.tokens,
           " tokens end before all prompts are computed; ask for more (--new)");
  const auto& after = engine.counters();
  for (double* t : {&times.prefill, &times.prefill_cpu})
    *t /= static_cast<double>(after.prefill_tokens - before.prefill_tokens);
  for (double* t : {&times.decode, &times.decode_cpu}) *t /= static_cast<double>(decoded);
  return times;
}

// What is measured beside other such.
struct Variant {
  std::string weights, sums;
};

// Of a cache for all sequences, with pages to spare.
int64_t cache_bytes(const config::ModelShape& shape, const generate::EngineOptions& options,
                    const Setting& a, int64_t element) {
  return options.max_batch * (a.prompt + a.tokens + 2 * options.page_size) * 2 * shape.layers *
         shape.kv_heads * shape.head_dim * element;
}

config::ModelShape shape_of(const Setting& a) {
  config::ModelShape shape = perf::shape_of(a.shape);
  shape.max_positions = std::max(shape.max_positions, a.prompt + a.tokens);
  if (a.window > 0) {
    shape.window = a.window;
    shape.windowed.assign(static_cast<size_t>(shape.layers), true);
  }
  return shape;
}

// Of the repetitions' times per token.
void print(const std::string& dtype, const Variant& variant, int ranks, int64_t batch,
           const Setting& a, int64_t weight_bytes, const std::vector<Times>& all) {
  const auto sorted = [&](auto member) {
    std::vector<double> v;
    for (const Times& t : all) v.push_back(t.*member);
    std::sort(v.begin(), v.end());
    return v;
  };
  const auto decode = sorted(&Times::decode);
  const double steps = 1 / (decode.front() * static_cast<double>(batch));
  std::printf(
      "{\"shape\": \"%s\", \"dtype\": \"%s\", \"weights\": \"%s\", \"ranks\": %d, \"sums\": "
      "\"%s\", \"batch\": %lld, \"prompt\": %lld, \"new\": %lld, \"window\": %lld, \"threads\": "
      "%d, "
      "\"decode_tokens_per_s_best\": %.1f, \"decode_tokens_per_s_median\": %.1f, "
      "\"decode_tokens_per_cpu_s_best\": %.1f, "
      "\"weight_gb_per_s\": %.1f, \"prefill_tokens_per_s_best\": %.0f, "
      "\"prefill_tokens_per_cpu_s_best\": %.0f}\n",
      a.shape.c_str(), dtype.c_str(), variant.weights.c_str(), ranks, variant.sums.c_str(),
      static_cast<long long>(batch), static_cast<long long>(a.prompt),
      static_cast<long long>(a.tokens), static_cast<long long>(a.window), a.threads,
      1 / decode.front(), 1 / decode[decode.size() / 2], 1 / sorted(&Times::decode_cpu).front(),
      steps * static_cast<double>(weight_bytes) / 1e9, 1 / sorted(&Times::prefill).front(),
      1 / sorted(&Times::prefill_cpu).front());
  std::fflush(stdout);
}

void run(const Setting& a) {
  std::optional<comm::Session> session;  // of a launcher's ranks
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) session.emplace();
  const comm::CommView replica = session ? session->world() : comm::CommView();
  const bool talks = replica.rank() == 0;
  at::set_num_threads(a.threads);
  const perf::Site site = perf::enter_site(std::max(0, replica.rank()));
  const model::ModelSpec spec = model::describe(shape_of(a), model::HeadKind::language);
  std::vector<Variant> variants;
  for (const std::string& products : a.weights) {
    for (const std::string& sums : a.sums) variants.push_back({products, sums});
  }
  for (const std::string& name : a.dtypes) {
    std::vector<generate::GeneratorWeights> weights;
    std::vector<std::unique_ptr<generate::Engine>> engines;
    weights.reserve(variants.size());
    for (const Variant& variant : variants) {
      weights.emplace_back(spec, name == "bf16" ? config::DType::bf16 : config::DType::f32,
                           replica.rank(), replica.size(),
                           site.is_gpu ? generate::Place::device : generate::Place::host);
      if (variant.weights == "int8") weights.back().add_int8(spec);
      perf::fill_random(spec, weights.back());
      base::Stopwatch start;
      weights.back().quantise();
      const double quantised = start.seconds();
      generate::EngineOptions options;
      options.threads = a.threads;
      options.backend = a.backend == "fused" && !site.is_gpu ? generate::BackendKind::fused
                                                             : generate::BackendKind::torch;
      options.max_batch = std::max(options.max_batch, std::ranges::max(a.batches));
      const int64_t cache =
          cache_bytes(spec.shape, options, a, config::bytes_per_element(weights.back().dtype()));
      options.kv_bytes = site.is_gpu ? cache : std::max(int64_t{2} << 30, cache);
      options.prefix_sharing = false;
      if (site.is_gpu)
        options.prefill_chunk_tokens =
            config::GenerateOptions{}.max_batch_tokens;  // all prompts before the first answer ends
      options.graphs = a.graphs;
      options.fused_operators = a.fused_operators;
      options.shared_sums = variant.sums == "shared";
      start.restart();
      engines.push_back(std::make_unique<generate::Engine>(spec, weights.back(), options, replica));
      if (!talks) continue;
      std::printf("%s, %s: copies in %.0f ms, engine ready in %.0f ms\n", name.c_str(),
                  variant.weights.c_str(), quantised * 1e3, start.seconds() * 1e3);
      for (const std::string& line : engines.back()->describe())
        std::printf("  %s\n", line.c_str());
    }
    for (const int64_t batch : a.batches) {
      std::vector<std::vector<Times>> all(engines.size());
      for (int r = 0; r < a.repetitions; ++r) {  // the engines in turn
        for (size_t e = 0; e < engines.size(); ++e) {
          all[e].push_back(measure(*engines[e], spec.shape.vocab, batch, a,
                                   static_cast<uint64_t>(batch * 100 + r)));
        }
      }
      for (size_t e = 0; talks && e < engines.size(); ++e) {
        const int64_t read =
            weights[e].int8_bytes() > 0 ? weights[e].int8_bytes() : weights[e].bytes();
        print(name, variants[e], replica.size(), batch, a, read, all[e]);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    base::keep_freed_memory();  // as the program
    kernels::use_block_cache();
    run(parse(argc, argv));
  } catch (const UserError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
