// One training step as T1, T2 and T6 have it: forward, backward with recompute, sharded AdamW, on
// random tokens.
//   mpirun -n 2 perf_train [--shape 135M|25M|1B|8B] [--sequences 2] [--tokens 512] [--dtype
//   bf16|fp32] [--steps 5] [--kept-logits BYTES] [--head fp32]
//                          [--recompute -1] [--exchange auto|window|ring] [--micro-batches 1]
//                          [--lora RANK]
//                          [--lengths P+R,P+R,... --micro-batch-tokens 1024]
// --lora: an adapter of all linear layers of the blocks is trained, and the model's weights are
// not.
// --lengths: these sequences (prompt + response tokens, the loss on the response) instead of equal
// ones, dealt out to ranks and packed into micro-batches by the planner that the trainer uses.
// perf_train-gpu does it on GPUs. Rank 0 prints one line per step and, last, one JSON object. The
// first step is warm-up and does not count. tokens_per_cpu_s: the job's tokens over the CPU seconds
// of its busiest rank, what an idle core per rank would give.
#include "torch/torch.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "harness/arguments.hpp"
#include "harness/shapes.hpp"
#include "harness/site.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/heap.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/comm/topology.hpp"
#include "trireme/kernels/log_sum_exp.hpp"
#include "trireme/kernels/tensor_memory.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/model/forward.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/ppo/minibatches.hpp"
#include "trireme/trace/region.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme {
namespace {

struct Setting {
  std::string shape = "135M", dtype = "bf16", exchange = "auto", head = "model";
  int64_t sequences = 2, tokens = 512, steps = 5, recompute = -1, micro_batches = 1,
          micro_batch_tokens = 1024, kept_logits = int64_t{256} << 20, lora = 0;
  bool reduce_once = false;
  std::vector<std::string> lengths;  // "prompt+response"
};

Setting parse(int argc, char** argv) {
  Setting s;
  CLI::App app("Train steps on random tokens");
  app.add_option("--shape", s.shape)
      ->check(CLI::IsMember(perf::shape_names()))
      ->capture_default_str();
  app.add_option("--dtype", s.dtype)->check(CLI::IsMember({"bf16", "fp32"}))->capture_default_str();
  app.add_option("--head", s.head, "type of the logits (model.head_dtype)")
      ->check(CLI::IsMember({"model", "fp32"}))
      ->capture_default_str();
  app.add_option("--exchange", s.exchange)
      ->check(CLI::IsMember({"auto", "window", "ring"}))
      ->capture_default_str();
  app.add_option("--sequences", s.sequences, "per micro-batch and rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--tokens", s.tokens, "of a sequence")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--steps", s.steps)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--recompute", s.recompute, "blocks that are recomputed; -1: all")
      ->capture_default_str();
  app.add_option("--micro-batches", s.micro_batches)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--lora", s.lora, "rank of an adapter; 0: the weights are trained")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--lengths", s.lengths, "prompt+response, ...")->delimiter(',');
  app.add_option("--micro-batch-tokens", s.micro_batch_tokens, "budget, with --lengths")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--kept-logits", s.kept_logits, "bytes (train.logits_memory)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--reduce-once", s.reduce_once, "train.reduce_once");
  perf::parse_or_exit(app, argc, argv);
  return s;
}

zero::ShardedModelOptions options_of(const Setting& s) {
  zero::ShardedModelOptions options;
  options.name = "model";
  options.compute = s.dtype == "bf16" ? config::DType::bf16 : config::DType::f32;
  options.recompute = s.recompute;
  options.reduce_once = s.reduce_once;
  if (s.exchange == "window") options.exchange = comm::ExchangeKind::windows;
  if (s.exchange == "ring") options.exchange = comm::ExchangeKind::mpi_ring;
  return options;
}

struct Sequence {
  int64_t prompt = 1, total = 0;  // tokens; those after the prompt bear a loss
};

std::vector<Sequence> ragged_sequences(const Setting& s) {
  std::vector<Sequence> out;
  for (const std::string& text : s.lengths) {
    const size_t plus = text.find('+');
    VALIDATE(plus != std::string::npos, ExitCode::usage, "--lengths has '", text,
             "': prompt+response is wanted");
    const int64_t prompt = std::stoll(text.substr(0, plus)),
                  response = std::stoll(text.substr(plus + 1));
    VALIDATE(prompt > 0 && response > 0, ExitCode::usage, "--lengths has '", text,
             "': both must be positive");
    out.push_back({prompt, prompt + response});
  }
  return out;
}

// This rank's micro-batches of one optimizer step; the same number on every rank.
std::vector<std::vector<Sequence>> plan(const Setting& s, const comm::CommView& world) {
  if (s.lengths.empty()) {
    const std::vector<Sequence> equal(static_cast<size_t>(s.sequences), {1, s.tokens});
    return {static_cast<size_t>(s.micro_batches), equal};
  }
  const std::vector<Sequence> all = ragged_sequences(s);
  ppo::PlanInput input;
  for (const Sequence& sequence : all) input.lengths.push_back(sequence.total);
  input.ranks = world.size();
  input.batch_size = static_cast<int64_t>(all.size());
  input.micro_batch_tokens = s.micro_batch_tokens;
  std::vector<std::vector<Sequence>> out;
  const auto steps = ppo::plan_epoch(input);
  for (const auto& bin : steps.front().micro_batches[static_cast<size_t>(world.rank())]) {
    out.emplace_back();
    for (const int64_t i : bin) out.back().push_back(all[static_cast<size_t>(i)]);
  }
  return out;
}

struct MicroBatch {
  model::PackedBatch tokens;
  at::Tensor rows;     // whose hidden states predict a token with a loss
  at::Tensor targets;  // those tokens
};

MicroBatch random_batch(const std::vector<Sequence>& sequences, int64_t vocabulary,
                        at::Device device) {
  std::vector<at::Tensor> ids;
  std::vector<std::span<const int32_t>> spans;
  std::vector<int64_t> rows;
  int64_t start = 0;
  for (const Sequence& sequence : sequences) {
    ids.push_back(at::randint(0, vocabulary, {sequence.total}, at::kInt));
    spans.emplace_back(ids.back().data_ptr<int32_t>(), static_cast<size_t>(sequence.total));
    for (int64_t t = sequence.prompt; t < sequence.total; ++t) rows.push_back(start + t - 1);
    start += sequence.total;
  }
  MicroBatch batch{model::pack(spans, device), at::tensor(rows, at::kLong).to(device), {}};
  if (!rows.empty()) batch.targets = batch.tokens.ids.index_select(0, batch.rows.add(1));
  return batch;
}

// Mean cross-entropy over all ranks' tokens that bear a loss.
zero::Loss language_loss(const MicroBatch& batch, double all_targets, int64_t kept_logits) {
  return [&batch, all_targets, kept_logits](const at::Tensor& hidden, const at::Tensor& weight) {
    const auto out =
        kernels::token_log_probs(hidden.index_select(0, batch.rows), weight, batch.targets, 1.0,
                                 kernels::Entropy::skip, {.kept_bytes = kept_logits});
    return out.log_probs.sum().mul(-1 / all_targets);
  };
}

// Of this process so far: what other work on the machine does not change much.
struct Usage {
  double cpu_seconds = 0;
  int64_t page_faults = 0;
};
Usage usage() {
  rusage now{};
  getrusage(RUSAGE_SELF, &now);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return {seconds(now.ru_utime) + seconds(now.ru_stime), now.ru_minflt};
}

void report(const Setting& s, const comm::CommView& world, double tokens,
            std::vector<double> seconds, std::vector<double> cpu_seconds,
            const zero::ShardedModel& model) {
  std::sort(seconds.begin(), seconds.end());
  std::sort(cpu_seconds.begin(), cpu_seconds.end());
  const auto peaks = world.gather_values(trace::host_memory().peak);
  const double wait = world.max(model.counters().wait_seconds);
  if (world.rank() != 0) return;
  const auto memory = model.memory();
  std::printf(
      "{\"shape\": \"%s\", \"dtype\": \"%s\", \"lora\": %ld, \"ranks\": %d, \"sequences\": %ld, "
      "\"tokens\": %ld, "
      "\"micro_batches\": %ld, "
      "\"recompute\": %ld, \"exchange\": \"%s\", \"steps\": %zu, \"tokens_per_s_best\": %.1f, "
      "\"tokens_per_s_median\": %.1f, \"tokens_per_cpu_s_best\": %.1f, "
      "\"peak_bytes\": %ld, \"fp32_state_bytes\": %ld, \"weight_bytes\": %ld, \"exchange_bytes\": "
      "%ld, \"wait_s\": %.2f}\n",
      s.shape.c_str(), s.dtype.c_str(), static_cast<long>(s.lora), world.size(),
      static_cast<long>(s.sequences), static_cast<long>(s.tokens),
      static_cast<long>(s.micro_batches), static_cast<long>(s.recompute),
      model.exchange_kind().c_str(), seconds.size(), tokens / seconds.front(),
      tokens / seconds[seconds.size() / 2], tokens / cpu_seconds.front(),
      static_cast<long>(*std::max_element(peaks.begin(), peaks.end())),
      static_cast<long>(memory.master + memory.gradients + memory.moments),
      static_cast<long>(memory.weights), static_cast<long>(memory.exchange), wait);
}

void run(const Setting& s) {
  const comm::Session session;
  const auto& world = session.world();
  const perf::Site site = perf::enter_site(comm::discover(world).local_rank);
  if (!site.is_gpu) at::set_num_threads(1);  // beside a GPU they draw the initial weights
  auto spec = model::describe(perf::shape_of(s.shape), model::HeadKind::language);
  if (s.head == "fp32") spec.head_type = config::HeadType::fp32;
  if (s.lora > 0) {
    model::Adapter adapter;
    adapter.rank = s.lora;
    adapter.alpha = 2 * static_cast<double>(s.lora);
    adapter.targets = {"all-linear"};
    spec = model::with_adapter(spec, adapter, "--lora");
  }
  zero::ShardedModel model(spec, world, std::nullopt, site.device, options_of(s));
  model.load([&spec](size_t p, const base::Block& block, float* out) {
    model::initial_values(spec, p, block, 1, out);
  });
  at::manual_seed(static_cast<uint64_t>(world.rank()));
  std::vector<MicroBatch> batches;
  for (const auto& sequences : plan(s, world))
    batches.push_back(random_batch(sequences, spec.shape.vocab, site.device));
  double all_tokens = 0, all_targets = 0;
  for (const MicroBatch& batch : batches) {
    all_tokens += static_cast<double>(batch.tokens.tokens());
    all_targets += static_cast<double>(batch.rows.numel());
  }
  all_tokens = world.sum(all_tokens);
  all_targets = world.sum(all_targets);
  zero::AdamWOptions adam;
  adam.lr = 1e-6;

  std::vector<double> seconds, cpu_seconds;
  for (int64_t step = 0; step <= s.steps; ++step) {
    world.barrier();
    const base::Stopwatch watch;
    const Usage before = usage();
    for (int64_t left = std::ssize(batches); const MicroBatch& batch : batches) {
      model.forward_backward(batch.tokens, language_loss(batch, all_targets, s.kept_logits),
                             zero::reduce_before(--left));
    }
    const double passes = watch.seconds();
    const auto result = model.step(adam);
    world.barrier();
    const double total = watch.seconds();
    const Usage after = usage();
    const double cpu = world.max(after.cpu_seconds - before.cpu_seconds);
    if (step > 0) {
      seconds.push_back(total);
      cpu_seconds.push_back(cpu);
    }
    if (world.rank() == 0) {
      std::printf(
          "step %ld: %.3f s (passes %.3f, optimizer %.3f), %.1f tokens/s, cpu %.3f s, faults %ld, "
          "norm %.4g, changed "
          "%.2f %%\n",
          static_cast<long>(step), total, passes, total - passes, all_tokens / total, cpu,
          static_cast<long>(after.page_faults - before.page_faults), result.grad_norm,
          100.0 * static_cast<double>(result.changed_values) /
              static_cast<double>(result.elements));
      std::fflush(stdout);
    }
  }
  report(s, world, all_tokens, seconds, cpu_seconds, model);
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  try {
    trireme::base::keep_freed_memory();  // as the program
    trireme::kernels::use_block_cache();
    trireme::run(trireme::parse(argc, argv));
  } catch (const trireme::UserError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
