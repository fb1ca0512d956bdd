#include "torch/torch.hpp"

#include "trireme/rollout/generator.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "rollout/episodes.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/philox.hpp"
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
  generate::EngineOptions engine =
      generate::engine_options(options.generate, threads.count, threads.cpus);
  engine.max_batch = options.generate.max_batch;
  engine.keep_old_keys = options.train.partial_rollout_kv == config::PartialRolloutKv::keep;
  engine.kv_bytes = plan::kv_cache_bytes(
      options.generate.kv_memory,
      plan::kv_bytes_per_token(spec.shape, roles.tensor_parallel(),
                               config::bytes_per_element(options.model.compute())),
      options.generate.max_batch, options.max_len(), kv_memory);
  return engine;
}

generate::GeneratorWeights make_weights(const config::Options& options, const comm::Roles& roles,
                                        const Policy& policy, at::Device device) {
  const auto& [spec, tokenizer, shared] = policy;
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

// A replica of several ranks agrees no more often on what it does next.
constexpr int64_t steps_between_messages = 16;

}  // namespace

int64_t mean_prompt_tokens(const data::PromptSet& prompts) {
  int64_t tokens = 0;
  for (int64_t row = 0; row < prompts.size(); ++row)
    tokens += static_cast<int64_t>(prompts[row].ids.size());
  return tokens / std::max<int64_t>(prompts.size(), 1);
}

Generator::Generator(const config::Options& options, const comm::Roles& roles, const Policy& policy,
                     const machine::ComputeResources& resources,
                     environment::Environments* environments)
    : options_(options),
      roles_(roles),
      tokenizer_(policy.tokenizer),
      stops_(text::stops_of(tokenizer_, options.rollout.ignore_eos, options.rollout.stop_token_ids,
                            options.rollout.stop, policy.spec.shape.vocab,
                            "rollout.stop_token_ids")),
      biases_(text::token_biases(tokenizer_, options.rollout.logit_bias, policy.spec.shape.vocab,
                                 "rollout.logit_bias")),
      spec_(policy.spec),
      threads_(resources.threads),
      weights_(make_weights(options, roles, policy, resources.device)),
      environments_(environments) {
  if (environments)
    episodes_ = std::make_unique<Episodes>(tokenizer_, stops_.ids, *environments, limit());
}

Generator::~Generator() = default;

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

int64_t Generator::limit() const {
  const int64_t own = in_turns() ? options_.environment.max_tokens : 0;
  return own > 0 ? own : options_.max_len();
}

bool Generator::truncates(const SamplingPlan& plan) const {
  const auto& rollout = options_.rollout;
  return plan.temperature > 0 &&
         kernels::Truncation{rollout.top_p, rollout.top_k, rollout.min_p}.active(spec_.shape.vocab);
}

generate::Request Generator::make_request(std::span<const int32_t> prompt, uint64_t id,
                                          const SamplingPlan& plan) const {
  generate::Request request;
  request.id = id;
  request.prompt.assign(prompt.begin(), prompt.end());
  request.sampling.temperature = plan.temperature;
  request.sampling.top_p = options_.rollout.top_p;
  request.sampling.top_k = options_.rollout.top_k;
  request.sampling.min_p = options_.rollout.min_p;
  request.sampling.repetition_penalty = options_.rollout.repetition_penalty;
  const int64_t room = limit() - static_cast<int64_t>(prompt.size());
  if (in_turns()) request.longest = limit();
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
  if (step % steps_between_messages != 0 && !depends_on_answers()) return Pace::go;
  return static_cast<Pace>(
      roles_.generators.along(comm::Axis::tensor).max(static_cast<int32_t>(mine)));
}

void Generator::submit(uint64_t id, Writing& writing, std::span<const int32_t> prompt,
                       generate::Result begun, int64_t turn_begin) {
  generate::Request request = make_request(prompt, id, writing.plan);
  request.begun = std::move(begun);
  request.turn_begin = turn_begin;
  // A checkpoint of a run that did not truncate yet: its tokens were drawn from the full
  // distribution.
  if (truncates(writing.plan) && request.begun.sample_log_probs.empty())
    request.begun.sample_log_probs = request.begun.log_probs;
  writing.in_engine = true;
  engine_->submit(std::move(request));
}

void Generator::begin_one(uint64_t id, Writing writing) {
  ++unfinished_[writing.number];
  Writing& one = writing_.emplace(id, std::move(writing)).first->second;
  if (in_turns()) {
    wait_for_answer(id);
    if (episodes_) {
      const uint64_t group = group_of(id);  // its episodes begin alike
      const auto bits = base::philox(
          {static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32),
           static_cast<uint32_t>(base::Stream::environment), 0},
          {static_cast<uint32_t>(one.plan.seed), static_cast<uint32_t>(one.plan.seed >> 32)});
      episodes_->begin(id, *one.prompts, one.row, uint64_t{bits[0]} << 32 | bits[1], one.recorded);
    }
    return;
  }
  generate::Result begun;
  if (one.recorded) begun = result_of(*one.recorded, 0);
  one.recorded.reset();
  submit(id, one, (*one.prompts)[one.row].ids, std::move(begun), 0);
}

void Generator::begin(const data::PromptSet& prompts, const PromptBatch& batch,
                      const SamplingPlan& plan, std::span<const size_t> mine) {
  for (const size_t p : mine) {
    for (int64_t sample = 0; sample < plan.n; ++sample) {
      const uint64_t id = batch.groups[p] << 20 | request_id(0, 0, sample);
      begin_one(id,
                {.prompts = &prompts, .row = batch.rows[p], .number = batch.number, .plan = plan});
    }
  }
}

void Generator::go_on(const data::PromptSet& prompts, const Samples& unfinished, int64_t number,
                      const SamplingPlan& plan) {
  VALIDATE(in_turns() || unfinished.turns.empty(), ExitCode::configuration, "the checkpoint has ",
           unfinished.size(),
           " episodes that are not finished: start with environment.command, as it was saved");
  for (int64_t i = 0; i < unfinished.size(); ++i) {
    const auto s = static_cast<size_t>(i);
    begin_one(unfinished.id[s], {.prompts = &prompts,
                                 .row = unfinished.prompt_row[s],
                                 .number = number,
                                 .plan = plan,
                                 .recorded = unfinished.select(std::vector{i}),
                                 .outside = in_turns() ? unfinished.response_len(i) : 0});
  }
}

std::vector<Finished> Generator::step() {
  const at::NoGradGuard no_grad;
  std::vector<Finished> out;
  if (unanswered_ > 0) out = carry_out_moves();
  const generate::EngineCounters before = engine_->counters();
  const base::Stopwatch watch;
  generate::StepOutput output = engine_->step();
  stepping_ += watch.seconds();
  running_.set(engine_->counters().running);
  waiting_.set(engine_->unfinished() - engine_->counters().running);
  count_step(before);
  if (in_turns()) end_turns(output);
  for (generate::Result& result : output.finished) {
    const Writing writing = take_out(result.id);
    if (roles_.leads_replica()) out.push_back(finished(std::move(result), writing));
  }
  if (roles_.leads_replica())
    base::add_written(
        {std::ssize(out), engine_->counters().generated_tokens - before.generated_tokens});
  return out;
}

// On the replica's first rank.
Finished Generator::finished(generate::Result result, const Writing& writing) const {
  const uint64_t id = result.id;
  const std::vector<int32_t>& prompt = (*writing.prompts)[writing.row].ids;
  const auto length = static_cast<int64_t>(prompt.size() + result.output_ids.size());
  const SequenceParts parts =
      episodes_ ? episodes_->take(id, result)
                : SequenceParts{.prompt = prompt,
                                .ranges = {{static_cast<int64_t>(prompt.size()), length}}};
  return {sequence_of(std::move(result), parts, writing.row, truncates(writing.plan), limit()),
          writing.number};
}

void Generator::count_step(const generate::EngineCounters& before) const {
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
  count("rollout_sum_window_bytes", &generate::EngineCounters::sum_window_bytes);
}

Generator::Writing Generator::take_out(uint64_t id) {
  Writing writing = std::move(writing_.extract(id).mapped());
  if (writing.waits) --unanswered_;
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
  std::vector<uint64_t> in_engine;
  for (const uint64_t id : ids) {
    const Writing writing = take_out(id);
    if (writing.in_engine) in_engine.push_back(id);
    dropped_ += writing.outside;
    if (episodes_) episodes_->close(id);
  }
  dropped_ += engine_->cancel(in_engine);
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
  const auto add = [&](const Writing& writing, int64_t written) {
    if (written == 0) tokens += static_cast<int64_t>((*writing.prompts)[writing.row].ids.size());
    tokens += std::max<int64_t>(1, expected.expected(writing.row) - written);
  };
  for (const generate::Result& result : engine_->standing())
    add(writing_.at(result.id), std::ssize(result.output_ids));
  for (const auto& [id, writing] : writing_) {
    if (!writing.in_engine) add(writing, writing.outside);
  }
  return tokens;
}

Samples Generator::standing(int64_t number) const {
  Samples samples;
  if (!roles_.leads_replica()) return samples;
  std::map<uint64_t, generate::Result> results;
  for (const auto& [id, writing] : writing_) {
    if (writing.number == number) results[id].id = id;
  }
  for (generate::Result& result : engine_->standing()) {
    if (const auto one = results.find(result.id); one != results.end())
      one->second = std::move(result);
  }
  for (auto& [id, result] : results) {
    const Writing& writing = writing_.at(id);
    const std::vector<int32_t>& prompt = (*writing.prompts)[writing.row].ids;
    SequenceParts parts{.prompt = prompt};
    if (episodes_) {
      parts = episodes_->standing(id, result);
    } else {
      const auto begin = static_cast<int64_t>(prompt.size());
      parts.ranges = {{begin, begin + std::ssize(result.output_ids)}};
    }
    result.finish_reason = FinishReason::unfinished;
    samples.append(
        sequence_of(std::move(result), parts, writing.row, truncates(writing.plan), limit()));
  }
  return samples;
}

}  // namespace trireme::rollout
