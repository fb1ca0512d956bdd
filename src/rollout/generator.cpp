#include "torch/torch.hpp"

#include "trireme/rollout/generator.hpp"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/kernels/device_type.hpp"
#include "trireme/kernels/sampling.hpp"
#include "trireme/plan/job.hpp"
#include "trireme/text/logit_bias.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::rollout {
namespace {

generate::EngineOptions engine_options(const config::Options& options, const comm::Roles& roles,
                                       const model::ModelSpec& spec,
                                       const machine::Threads& threads, int64_t kv_memory) {
  generate::EngineOptions engine;
  engine.page_size = options.generate.page_size;
  engine.max_batch = options.generate.max_batch;
  engine.prefill_chunk_tokens = options.generate.max_batch_tokens;
  engine.threads = threads.count;
  engine.cpus = threads.cpus;
  engine.prefix_sharing = options.generate.prefix_sharing;
  engine.fused_operators = options.generate.fused_operators;
  engine.paged_attention = options.generate.paged_attention;
  engine.graphs = options.generate.graphs;
  engine.shared_sums = options.generate.shared_sums;
  engine.speculation_tokens = options.generate.speculation_tokens;
  engine.keep_old_keys = options.train.partial_rollout_kv == config::PartialRolloutKv::keep;
  engine.backend = generate::backend_kind(options.generate.backend);
  engine.kv_bytes =
      plan::kv_cache_bytes(options.generate.kv_memory, spec.shape, roles.tensor_parallel(),
                           config::bytes_per_element(options.model.compute()),
                           options.generate.max_batch, options.max_len(), kv_memory);
  return engine;
}

generate::GeneratorWeights make_weights(const config::Options& options, const comm::Roles& roles,
                                        const model::ModelSpec& spec, at::Device device,
                                        const std::vector<const std::byte*>& shared) {
  const auto type = options.model.compute();
  auto weights =
      shared.empty()
          ? generate::GeneratorWeights(
                spec, type, roles.generators.place(comm::Axis::tensor), roles.tensor_parallel(),
                kernels::on_host(device) ? generate::Place::host : generate::Place::device)
          : generate::GeneratorWeights::aliasing(spec, type);
  if (!shared.empty()) weights.alias(shared);
  if (options.generate.weights == config::RolloutWeights::int8) weights.add_int8(spec);
  return weights;
}

// `truncated`: by top-p or top-k.
Samples sequence_of(generate::Result result, const data::PromptRecord& prompt, int64_t row,
                    bool truncated, int64_t max_len) {
  const auto behind_prompt = [&](auto values) {  // of the answer's tokens -> of all tokens
    values.insert(values.begin(), prompt.ids.size(), {});
    return values;
  };
  SequenceRecord sequence;
  sequence.id = result.id;
  sequence.prompt_row = row;
  sequence.ids.assign(prompt.ids.begin(), prompt.ids.end());
  sequence.ids.insert(sequence.ids.end(), result.output_ids.begin(), result.output_ids.end());
  sequence.action_ranges = {
      {static_cast<int64_t>(prompt.ids.size()), static_cast<int64_t>(sequence.ids.size())}};
  sequence.log_probs = behind_prompt(std::move(result.log_probs));
  if (truncated) sequence.sample_log_probs = behind_prompt(std::move(result.sample_log_probs));
  sequence.versions = behind_prompt(std::move(result.versions));
  sequence.finish_reason = result.finish_reason;
  Samples samples;
  samples.add(sequence, max_len);
  return samples;
}

// A replica of several ranks agrees no more often on what it does next.
constexpr int64_t steps_between_messages = 16;

}  // namespace

int64_t mean_prompt_tokens(const data::PromptSet& prompts) {
  int64_t tokens = 0;
  for (int64_t row = 0; row < prompts.size(); ++row)
    tokens += static_cast<int64_t>(prompts[row].ids.size());
  return tokens / std::max<int64_t>(prompts.size(), 1);
}

Generator::Generator(const config::Options& options, const comm::Roles& roles,
                     const model::ModelSpec& spec, const text::Tokenizer& tokenizer,
                     at::Device device, machine::Threads threads,
                     const std::vector<const std::byte*>& shared)
    : options_(options),
      roles_(roles),
      tokenizer_(tokenizer),
      stops_(text::stops_of(tokenizer, options.rollout.ignore_eos, options.rollout.stop_token_ids,
                            options.rollout.stop, spec.shape.vocab, "rollout.stop_token_ids")),
      biases_(text::token_biases(tokenizer, options.rollout.logit_bias, spec.shape.vocab,
                                 "rollout.logit_bias")),
      spec_(spec),
      threads_(std::move(threads)),
      weights_(make_weights(options, roles, spec, device, shared)) {}

void Generator::start(int64_t kv_memory) {
  const auto engine = engine_options(options_, roles_, spec_, threads_, kv_memory);
  kv_bytes_ = engine.kv_bytes;
  engine_ = std::make_unique<generate::Engine>(spec_, weights_, engine,
                                               roles_.generators.along(comm::Axis::tensor));
}

GeneratorMemory Generator::memory() const {
  const auto& counters = engine_->counters();
  return {weights_.bytes(), counters.pages_peak * counters.page_bytes, counters.pages_peak};
}

GeneratorWork Generator::take_work() {
  const auto& counters = engine_->counters();
  const GeneratorWork all{counters.steps,
                          counters.generated_tokens,
                          counters.preemptions,
                          counters.shared_tokens,
                          stepping_,
                          counters.proposed_tokens,
                          counters.accepted_tokens,
                          dropped_,
                          counters.page_room,
                          counters.page_room_unused};
  const GeneratorWork before = std::exchange(reported_, all);
  return {all.steps - before.steps,
          all.tokens - before.tokens,
          all.preemptions - before.preemptions,
          all.shared_tokens - before.shared_tokens,
          all.seconds - before.seconds,
          all.proposed_tokens - before.proposed_tokens,
          all.accepted_tokens - before.accepted_tokens,
          all.dropped_tokens - before.dropped_tokens,
          all.page_room - before.page_room,
          all.page_room_unused - before.page_room_unused};
}

generate::Request Generator::make_request(const data::PromptRecord& prompt, uint64_t id,
                                          const SamplingPlan& plan) const {
  generate::Request request;
  request.id = id;
  request.prompt = prompt.ids;
  request.sampling.temperature = plan.temperature;
  request.sampling.top_p = options_.rollout.top_p;
  request.sampling.top_k = options_.rollout.top_k;
  request.sampling.min_p = options_.rollout.min_p;
  request.sampling.repetition_penalty = options_.rollout.repetition_penalty;
  const int64_t room = options_.max_len() - static_cast<int64_t>(prompt.ids.size());
  const int64_t wish = options_.rollout.max_new_tokens;
  request.sampling.max_new_tokens = wish > 0 ? std::min(wish, room) : room;
  request.sampling.min_new_tokens = options_.rollout.min_new_tokens;
  request.sampling.seed = plan.seed;
  request.sampling.stop_ids = stops_.ids;
  request.sampling.logit_bias = biases_;
  request.stop = text::stop_string_predicate(tokenizer_, stops_.strings);
  return request;
}

Pace Generator::agree(Pace mine, int64_t step) const {
  if (roles_.tensor_parallel() == 1) return mine;
  if (step % steps_between_messages != 0) return Pace::go;
  return static_cast<Pace>(
      roles_.generators.along(comm::Axis::tensor).max(static_cast<int32_t>(mine)));
}

void Generator::submit(const data::PromptSet& prompts, int64_t row, int64_t number,
                       generate::Request request) {
  const generate::SamplingParams& sampling = request.sampling;
  const bool truncated =
      sampling.temperature > 0 &&
      kernels::Truncation{sampling.top_p, sampling.top_k, sampling.min_p}.active(spec_.shape.vocab);
  // A checkpoint of a run that did not truncate yet: its tokens were drawn from the full
  // distribution.
  if (truncated && request.begun.sample_log_probs.empty())
    request.begun.sample_log_probs = request.begun.log_probs;
  writing_.emplace(request.id, Writing{&prompts, row, number, truncated});
  ++unfinished_[number];
  engine_->submit(std::move(request));
}

void Generator::begin(const data::PromptSet& prompts, const PromptBatch& batch,
                      const SamplingPlan& plan, std::span<const size_t> mine) {
  for (const size_t p : mine) {
    const int64_t row = batch.rows[p];
    for (int64_t sample = 0; sample < plan.n; ++sample) {
      const uint64_t id = batch.groups[p] << 20 | request_id(0, 0, sample);
      submit(prompts, row, batch.number, make_request(prompts[row], id, plan));
    }
  }
}

void Generator::go_on(const data::PromptSet& prompts, const Samples& unfinished, int64_t number,
                      const SamplingPlan& plan) {
  for (int64_t i = 0; i < unfinished.size(); ++i) {
    const auto s = static_cast<size_t>(i);
    const int64_t row = unfinished.prompt_row[s];
    generate::Request request = make_request(prompts[row], unfinished.id[s], plan);
    const auto first = unfinished.begin(i) + unfinished.prompt_len[s],
               last = unfinished.begin(i) + unfinished.length(i);
    request.begun.output_ids.assign(unfinished.ids.begin() + first, unfinished.ids.begin() + last);
    request.begun.log_probs.assign(unfinished.log_probs.begin() + first,
                                   unfinished.log_probs.begin() + last);
    if (!unfinished.sample_log_probs.empty()) {
      request.begun.sample_log_probs.assign(unfinished.sample_log_probs.begin() + first,
                                            unfinished.sample_log_probs.begin() + last);
    }
    request.begun.versions.assign(unfinished.version.begin() + first,
                                  unfinished.version.begin() + last);
    submit(prompts, row, number, std::move(request));
  }
}

std::vector<Finished> Generator::step() {
  const at::NoGradGuard no_grad;
  const generate::EngineCounters before = engine_->counters();
  const base::Stopwatch watch;
  generate::StepOutput output = engine_->step();
  stepping_ += watch.seconds();
  running_.set(engine_->counters().running);
  waiting_.set(engine_->unfinished() - engine_->counters().running);
  const auto count = [&](trace::Name name, int64_t generate::EngineCounters::*which) {
    trace::count(name, engine_->counters().*which - before.*which);
  };
  count("prompt_tokens_computed", &generate::EngineCounters::prefill_tokens);
  count("tokens_decoded", &generate::EngineCounters::decode_tokens);
  count("tokens_kept_from_older_weights", &generate::EngineCounters::old_tokens);
  count("rollout_steps", &generate::EngineCounters::steps);
  count("rollout_uploads", &generate::EngineCounters::uploads);
  count("rollout_device_waits", &generate::EngineCounters::device_waits);
  count("rollout_attention_calls", &generate::EngineCounters::attention_calls);
  count("rollout_paged_attention_calls", &generate::EngineCounters::paged_attention_calls);
  count("rollout_graph_steps", &generate::EngineCounters::graph_steps);
  count("rollout_graphs_recorded", &generate::EngineCounters::graphs_recorded);
  count("rollout_attention_parts", &generate::EngineCounters::attention_parts);
  count("rollout_whole_row_steps", &generate::EngineCounters::whole_row_steps);
  count("rollout_sum_bytes", &generate::EngineCounters::sum_bytes);
  count("rollout_sum_host_bytes", &generate::EngineCounters::sum_host_bytes);
  if (roles_.leads_replica())
    base::add_written({std::ssize(output.finished),
                       engine_->counters().generated_tokens - before.generated_tokens});
  std::vector<Finished> finished;
  for (generate::Result& result : output.finished) {
    const Writing writing = take_out(result.id);
    if (!roles_.leads_replica()) continue;
    finished.push_back({sequence_of(std::move(result), (*writing.prompts)[writing.row], writing.row,
                                    writing.truncated, options_.max_len()),
                        writing.number});
  }
  return finished;
}

Generator::Writing Generator::take_out(uint64_t id) {
  const Writing writing = writing_.at(id);
  writing_.erase(id);
  if (--unfinished_.at(writing.number) == 0) unfinished_.erase(writing.number);
  return writing;
}

std::vector<uint64_t> Generator::leave_longer(int64_t longest, int64_t step) {
  if (roles_.tensor_parallel() > 1) {
    longest = step % steps_between_messages == 0
                  ? roles_.generators.along(comm::Axis::tensor).min(longest)
                  : any_length;
  }
  if (longest == any_length) return {};
  std::set<uint64_t> groups;
  for (const uint64_t id : engine_->longer(longest)) groups.insert(group_of(id));
  if (groups.empty()) return {};
  std::vector<uint64_t> ids;
  for (const auto& [id, writing] : writing_) {
    if (groups.contains(group_of(id))) ids.push_back(id);
  }
  std::ranges::sort(ids);  // alike on all ranks of the replica
  for (const uint64_t id : ids) take_out(id);
  dropped_ += engine_->cancel(ids);
  if (!roles_.leads_replica()) return {};
  return {groups.begin(), groups.end()};
}

void Generator::begin_stretch() {
  threads_.use();
  meter_.start();
}

void Generator::end_stretch() {
  meter_.stop();
  trace::counter("kv_pages_peak", static_cast<double>(engine_->counters().pages_peak));
}

int64_t Generator::outstanding(const generate::AnswerLengths& expected) const {
  int64_t tokens = 0;
  for (const generate::Result& result : engine_->standing()) {
    const Writing& writing = writing_.at(result.id);
    const auto written = static_cast<int64_t>(result.output_ids.size());
    if (written == 0) tokens += static_cast<int64_t>((*writing.prompts)[writing.row].ids.size());
    tokens += std::max<int64_t>(1, expected.expected(writing.row) - written);
  }
  return tokens;
}

Samples Generator::standing(int64_t number) const {
  Samples samples;
  if (!roles_.leads_replica()) return samples;
  for (generate::Result& result : engine_->standing()) {
    result.finish_reason = FinishReason::unfinished;
    const Writing& writing = writing_.at(result.id);
    if (writing.number != number) continue;
    samples.append(sequence_of(std::move(result), (*writing.prompts)[writing.row], writing.row,
                               writing.truncated, options_.max_len()));
  }
  return samples;
}

}  // namespace trireme::rollout
