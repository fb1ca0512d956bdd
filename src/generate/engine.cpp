#include "torch/torch.hpp"

#include "trireme/generate/engine.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "engine_checks.hpp"
#include "fused_backend.hpp"
#include "scheduler.hpp"
#include "torch_backend.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/config/options.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::generate {
namespace {

BackendKind backend_of(const EngineOptions& options, const GeneratorWeights& weights) {
  const bool fused = options.backend == BackendKind::fused ||
                     (options.backend == BackendKind::automatic && weights.place() == Place::host);
  VALIDATE(fused || options.speculation_tokens == 0, ExitCode::configuration,
           "guesses of next tokens (generate.speculation_tokens, --speculation-tokens) need the "
           "fused generation kernels, whose rows do not depend "
           "on how many are computed together; LibTorch's products do: set 0, or generate on CPUs "
           "with the fused backend");
  VALIDATE(fused || weights.int8_bytes() == 0, ExitCode::configuration,
           "weights in 8 bits (generate.weights, --weights) are for the fused generation kernels: "
           "take \"model\", or the fused backend");
  if (options.backend == BackendKind::automatic)
    return fused ? BackendKind::fused : BackendKind::torch;
  VALIDATE(options.backend != BackendKind::fused || weights.place() == Place::host,
           ExitCode::configuration,
           "the fused generation kernels run on the host, but the weights are on a GPU: set "
           "generate.backend = \"auto\" or \"torch\"");
  return options.backend;
}

// The ids of a sequence and of its guesses, each once.
std::vector<int32_t> distinct_ids(std::span<const int32_t> tokens,
                                  std::span<const int32_t> guessed) {
  std::vector<int32_t> out(tokens.begin(), tokens.end());
  out.insert(out.end(), guessed.begin(), guessed.end());
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

[[noreturn]] void refuse_logits(const DrawRequest& request) {
  throw UserError(
      ExitCode::bad_data,
      base::text(
          "the logits of request ", request.request, " at position ", request.position,
          " are not finite: the weights are damaged or training diverged (look at grad_norm, lower "
          "the learning rate)"));
}

// Prompts begin when a 32nd of the batch is free where steps without prompts are recorded: at worst
// 1 % fewer sequences run, where recording gains nothing (docs/design/0018-recorded-steps.md).
constexpr int64_t burst_share = 32;

// Pages of the cache: the same number on every tensor-parallel rank. Collective.
int64_t page_count(const EngineOptions& options, int64_t page_bytes, const comm::CommView& comm) {
  const int64_t pages = comm.min(options.kv_bytes / page_bytes);
  VALIDATE(pages >= 1, ExitCode::configuration, "the KV cache of ",
           base::human_bytes(static_cast<double>(options.kv_bytes)), " does not hold one page of ",
           options.page_size, " tokens (", base::human_bytes(static_cast<double>(page_bytes)),
           "): give the generator more KV memory");
  return pages;
}

}  // namespace

struct Engine::Impl {
  Impl(const model::ModelSpec& model_spec, const GeneratorWeights& rank_weights,
       const EngineOptions& engine_options, const comm::CommView& comm)
      : spec(model_spec),
        weights(rank_weights),
        options(engine_options),
        shape(local_shape(model_spec, rank_weights)),
        kind(backend_of(options, weights)),
        team(options.threads > 0 ? options.threads : at::get_num_threads(), options.cpus),
        page_bytes(kind == BackendKind::fused ? FusedBackend::page_bytes(shape, options.page_size)
                                              : TorchBackend::page_bytes(shape, options.page_size)),
        pages(page_count(options, page_bytes, comm)),
        scheduler(
            options, pages, [this](int32_t from, int32_t to) { backend->copy_page(from, to); },
            cache_rules(spec)),
        version(weights.version()) {
    scheduler.counters().page_bytes = page_bytes;
    if (kind == BackendKind::fused) {
      backend = std::make_unique<FusedBackend>(spec, weights, pages, options.page_size, team, comm,
                                               options.shared_sums);
    } else {
      backend = std::make_unique<TorchBackend>(spec, weights, pages, options, comm);
    }
    if (backend->records_steps())
      scheduler.begin_together(std::max<int64_t>(1, options.max_batch / burst_share));
  }

  void check(const Request& request) const;
  int64_t longest(const Request& request) const {
    const int64_t one_turn =
        static_cast<int64_t>(request.prompt.size()) + request.sampling.max_new_tokens;
    return std::min(request.longest > 0 ? request.longest : one_turn, spec.shape.longest());
  }
  StepBatch make_batch(const StepPlan& plan) const;
  std::vector<DrawRequest> draws(const StepPlan& plan, std::vector<Sequence*>& owners) const;
  void take(Sequence& sequence, std::span<const DrawRequest> requests, std::span<const Drawn> drawn,
            std::span<const int32_t> proposed, StepOutput& out);
  bool append(Sequence& sequence, const Drawn& drawn, StepOutput& out);
  bool finished(Sequence& sequence, int32_t token) const;
  StepOutput step();

  const model::ModelSpec& spec;
  const GeneratorWeights& weights;
  EngineOptions options;
  LocalShape shape;
  BackendKind kind;
  ThreadTeam team;
  int64_t page_bytes;
  int64_t pages;
  Scheduler scheduler;
  std::unique_ptr<StepBackend> backend;
  int32_t version;
  std::unordered_set<uint64_t> ids;  // of unfinished requests
};

void Engine::Impl::check(const Request& request) const {
  check_request(request, spec.shape);
  const int64_t needed = base::ceil_div(longest(request) - 1, options.page_size);
  VALIDATE(needed <= pages, ExitCode::configuration, "request ", request.id, " may grow to ",
           longest(request), " tokens = ", needed, " KV pages of ", options.page_size,
           " tokens, more than the ", pages, " pages that ",
           base::human_bytes(static_cast<double>(options.kv_bytes)),
           " hold: give the generator more KV memory or lower max_new_tokens");
  VALIDATE(!ids.contains(request.id), ExitCode::internal, "request id ", request.id,
           " was submitted twice");
}

StepBatch Engine::Impl::make_batch(const StepPlan& plan) const {
  StepBatch batch;
  for (const PlannedRows& planned : plan.rows) {
    const Sequence& s = *planned.sequence;
    batch.sequences.push_back({s.pages, s.computed, planned.rows, s.length(), s.request.adapter});
    for (int64_t i = s.computed; i < s.computed + planned.rows; ++i) {
      batch.ids.push_back(i < s.length() ? s.tokens[static_cast<size_t>(i)]
                                         : planned.proposed[static_cast<size_t>(i - s.length())]);
      batch.positions.push_back(i);
    }
    if (!planned.draws) continue;
    for (int64_t behind = std::ssize(planned.proposed); behind >= 0; --behind) {
      batch.logit_rows.push_back(static_cast<int32_t>(std::ssize(batch.ids) - 1 - behind));
    }
  }
  return batch;
}

std::vector<DrawRequest> Engine::Impl::draws(const StepPlan& plan,
                                             std::vector<Sequence*>& owners) const {
  std::vector<DrawRequest> out;
  // Of the token behind the sequence's last one and so many guesses.
  const auto add = [&](Sequence& s, int64_t row, const KeptLogits& kept,
                       std::span<const int32_t> guessed) {
    const int64_t guesses = std::ssize(guessed);
    const SamplingParams& p = s.request.sampling;
    const bool may_end = s.turn_tokens() + guesses >= p.min_new_tokens;
    out.push_back({row, kept, &p, s.request.id, static_cast<uint32_t>(s.length() + guesses),
                   may_end ? std::span<const int32_t>{} : p.stop_ids});
    if (p.repetition_penalty != 1) out.back().seen = distinct_ids(s.tokens, guessed);
    owners.push_back(&s);
  };
  int64_t next = 0;
  for (const PlannedRows& planned : plan.rows) {
    if (!planned.draws) continue;
    for (int64_t guesses = 0; guesses <= std::ssize(planned.proposed); ++guesses)
      add(*planned.sequence, next++, nullptr,
          std::span(planned.proposed).first(static_cast<size_t>(guesses)));
  }
  for (Sequence* s : plan.forked) add(*s, 0, s->prompt_logits, {});
  return out;
}

StepOutput Engine::Impl::step() {
  StepOutput out;
  if (scheduler.idle()) return out;
  trace::Region region{"generate step"};
  if (version != weights.version()) {
    if (options.keep_old_keys) {
      scheduler.preempt_prompts();
    } else {
      scheduler.preempt_all();
    }
    version = weights.version();
  }
  const StepPlan plan = scheduler.plan();
  const StepBatch batch = make_batch(plan);
  std::vector<Sequence*> owners;
  const std::vector<DrawRequest> requests = draws(plan, owners);
  const std::vector<Drawn> drawn = backend->step(batch, requests);

  EngineCounters& counters = scheduler.counters();
  backend->report(counters);
  ++counters.steps;
  if (std::ranges::any_of(plan.rows, [](const PlannedRows& r) { return r.sequence->decoding(); }))
    ++counters.decode_steps;
  scheduler.computed(plan, [&](const Sequence& s) {
    return backend->keep(
        requests[static_cast<size_t>(std::ranges::find(owners, &s) - owners.begin())].row);
  });
  size_t next = 0;
  for (const PlannedRows& planned : plan.rows) {
    if (!planned.draws) continue;
    const size_t count = 1 + planned.proposed.size();
    take(*planned.sequence, std::span(requests).subspan(next, count),
         std::span(drawn).subspan(next, count), planned.proposed, out);
    next += count;
  }
  for (Sequence* s : plan.forked) {
    take(*s, std::span(requests).subspan(next, 1), std::span(drawn).subspan(next, 1), {}, out);
    ++next;
  }
  return out;
}

// The token behind its last one, and those behind guesses that were drawn too.
void Engine::Impl::take(Sequence& sequence, std::span<const DrawRequest> requests,
                        std::span<const Drawn> drawn, std::span<const int32_t> proposed,
                        StepOutput& out) {
  size_t accepted = 0;
  for (;; ++accepted) {
    if (!std::isfinite(drawn[accepted].log_prob)) refuse_logits(requests[accepted]);
    if (!append(sequence, drawn[accepted], out)) return;
    if (accepted == proposed.size() || drawn[accepted].id != proposed[accepted]) break;
    scheduler.accept(sequence);
  }
  scheduler.settle(sequence, std::ssize(proposed), static_cast<int64_t>(accepted));
}

// False: the sequence ended and is gone.
bool Engine::Impl::append(Sequence& sequence, const Drawn& drawn, StepOutput& out) {
  sequence.prompt_logits.reset();
  sequence.tokens.push_back(drawn.id);
  Result& result = sequence.result;
  result.output_ids.push_back(drawn.id);
  result.log_probs.push_back(drawn.log_prob);
  if (drawn.sample_log_prob) result.sample_log_probs.push_back(*drawn.sample_log_prob);
  result.versions.push_back(version);
  ++scheduler.counters().generated_tokens;
  out.tokens.push_back({result.id, drawn.id, drawn.log_prob});
  if (!finished(sequence, drawn.id)) return true;
  if (sequence.request.longest > 0 && result.finish_reason != FinishReason::length) {
    out.paused.push_back(
        {result.id,
         {result.output_ids.end() - sequence.turn_tokens(), result.output_ids.end()},
         result.finish_reason});
    scheduler.pause(&sequence);
    return false;
  }
  ids.erase(result.id);
  out.finished.push_back(scheduler.retire(&sequence));
  return false;
}

bool Engine::Impl::finished(Sequence& sequence, int32_t token) const {
  const Request& request = sequence.request;
  const bool stopped =
      std::ranges::find(request.sampling.stop_ids, token) != request.sampling.stop_ids.end();
  // The predicate sees every token, the stop token too: a decoder behind it must not miss one.
  const int64_t tokens = sequence.turn_tokens();
  const bool stop_string =
      request.stop && request.stop(token) && tokens > request.sampling.min_new_tokens;
  const bool full =
      tokens >= request.sampling.max_new_tokens || sequence.length() >= longest(request);
  sequence.result.finish_reason = stopped       ? FinishReason::stop
                                  : stop_string ? FinishReason::stop_string
                                                : FinishReason::length;
  return stopped || stop_string || full;
}

Engine::Engine(const model::ModelSpec& spec, const GeneratorWeights& weights,
               const EngineOptions& options, const comm::CommView& tensor_parallel) {
  check_options(options);
  EXPECT(weights.degree() == tensor_parallel.size() && weights.rank() == tensor_parallel.rank());
  VALIDATE(spec.head == model::HeadKind::language, ExitCode::configuration,
           "a model with a score head cannot generate text");
  impl_ = std::make_unique<Impl>(spec, weights, options, tensor_parallel);
}

Engine::~Engine() = default;

void Engine::submit(Request request) {
  impl_->check(request);
  if (request.stop) {
    for (const int32_t token :
         std::span(request.begun.output_ids).subspan(static_cast<size_t>(request.turn_begin)))
      request.stop(token);  // its decoder must not miss one
  }
  const int64_t longest = impl_->longest(request);
  impl_->backend->reserve_positions(longest);
  impl_->ids.insert(request.id);
  impl_->scheduler.add(std::move(request), longest);
}

StepOutput Engine::step() { return impl_->step(); }

void Engine::resume(uint64_t request, std::span<const int32_t> tokens,
                    std::function<bool(int32_t)> stop) {
  check_tokens(request, tokens, impl_->spec.shape);
  impl_->scheduler.resume(request, tokens, std::move(stop));
}

Result Engine::finish(uint64_t request) {
  impl_->ids.erase(request);
  return impl_->scheduler.finish(request);
}

bool Engine::idle() const { return impl_->scheduler.idle(); }
int64_t Engine::unfinished() const { return impl_->scheduler.unfinished(); }
std::vector<Result> Engine::standing() const { return impl_->scheduler.standing(); }
std::vector<uint64_t> Engine::queue() const { return impl_->scheduler.queue(); }
std::vector<uint64_t> Engine::longer(int64_t tokens) const {
  return impl_->scheduler.longer(tokens);
}

int64_t Engine::cancel(std::span<const uint64_t> requests) {
  int64_t tokens = 0;
  for (const uint64_t id : requests) {
    impl_->ids.erase(id);
    tokens += impl_->scheduler.cancel(id);
  }
  return tokens;
}

void Engine::arrange(std::span<const uint64_t> order) { impl_->scheduler.arrange(order); }
void Engine::begin_anew() { impl_->scheduler.preempt_all(); }

void Engine::run(std::vector<Request> requests, const std::function<void(Result)>& on_finish) {
  for (Request& request : requests) {
    EXPECT(request.longest == 0);
    submit(std::move(request));
  }
  while (!idle()) {
    StepOutput out = step();
    for (Result& result : out.finished) on_finish(std::move(result));
  }
}

void Engine::release() {
  impl_->scheduler.preempt_all();
  impl_->backend->release_cache();
}

const EngineCounters& Engine::counters() const { return impl_->scheduler.counters(); }

std::vector<std::string> Engine::differences_from_training() const {
  return impl_->backend->differences();
}

std::vector<std::string> Engine::describe() const {
  std::vector<std::string> lines = impl_->backend->describe();
  const std::string memory = impl_->weights.describe_memory();
  if (!memory.empty()) lines.push_back("weights of " + memory);
  lines.push_back(
      base::text("KV cache of ", impl_->pages, " pages of ", impl_->options.page_size, " tokens, ",
                 base::human_bytes(static_cast<double>(impl_->options.kv_bytes)), " at most"));
  return lines;
}

BackendKind backend_kind(config::GenerateBackend backend) {
  switch (backend) {
    case config::GenerateBackend::automatic: return BackendKind::automatic;
    case config::GenerateBackend::fused: return BackendKind::fused;
    case config::GenerateBackend::torch: return BackendKind::torch;
  }
  throw InternalError("unknown generation backend");
}

EngineOptions engine_options(const config::GenerateOptions& options, int threads,
                             const std::vector<int>& cpus) {
  EngineOptions engine;
  engine.page_size = options.page_size;
  engine.prefill_chunk_tokens = options.max_batch_tokens;
  engine.threads = threads;
  engine.cpus = cpus;
  engine.prefix_sharing = options.prefix_sharing;
  engine.backend = backend_kind(options.backend);
  engine.fused_operators = options.fused_operators;
  engine.paged_attention = options.paged_attention;
  engine.graphs = options.graphs;
  engine.shared_sums = options.shared_sums;
  engine.speculation_tokens = options.speculation_tokens;
  return engine;
}

}  // namespace trireme::generate
