#include "torch/torch.hpp"

#include "driver/generator.hpp"

#include <algorithm>
#include <unordered_map>

#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/plan/job.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {
namespace {

generate::EngineOptions engine_options(const config::Options& options, const Roles& roles, const model::ModelSpec& spec,
                                       const Threads& threads, int64_t kv_memory) {
  generate::EngineOptions engine;
  engine.page_size = options.generate.page_size;
  engine.max_batch = options.generate.max_batch;
  engine.prefill_chunk_tokens = options.generate.max_batch_tokens;
  engine.threads = threads.count;
  engine.cpus = threads.cpus;
  engine.prefix_sharing = options.generate.prefix_sharing;
  engine.backend = engine_backend(options.generate.backend);
  engine.kv_bytes =
      plan::kv_cache_bytes(options.generate.kv_memory, spec.shape, roles.tensor_parallel(),
                           config::bytes_per_element(options.model.compute()), options.generate.max_batch, options.max_len(), kv_memory);
  return engine;
}

generate::GeneratorWeights make_weights(const config::Options& options, const Roles& roles, const model::ModelSpec& spec, at::Device device,
                                        const std::vector<const std::byte*>& shared) {
  const auto type = options.model.compute();
  if (shared.empty()) {
    return {spec, type, roles.generators.place(comm::Axis::tensor), roles.tensor_parallel(), device.is_cuda() ? generate::Place::cuda : generate::Place::host};
  }
  auto weights = generate::GeneratorWeights::aliasing(spec, type);
  weights.alias(shared);
  return weights;
}

// Appends a finished request to the samples.
void append(Samples& samples, generate::Result result, const data::PromptRecord& prompt, int64_t row, int64_t max_len) {
  const auto behind_prompt = [&](auto values) {  // of the answer's tokens -> of all tokens
    values.insert(values.begin(), prompt.ids.size(), {});
    return values;
  };
  SequenceRecord sequence;
  sequence.id = result.id;
  sequence.prompt_row = row;
  sequence.ids.assign(prompt.ids.begin(), prompt.ids.end());
  sequence.ids.insert(sequence.ids.end(), result.output_ids.begin(), result.output_ids.end());
  sequence.action_ranges = {{static_cast<int64_t>(prompt.ids.size()), static_cast<int64_t>(sequence.ids.size())}};
  sequence.log_probs = behind_prompt(std::move(result.log_probs));
  sequence.versions = behind_prompt(std::move(result.versions));
  sequence.finish_reason = result.finish_reason;
  samples.add(sequence, max_len);
}

}  // namespace

generate::BackendKind engine_backend(config::GenerateBackend backend) {
  switch (backend) {
    case config::GenerateBackend::automatic: return generate::BackendKind::automatic;
    case config::GenerateBackend::fused: return generate::BackendKind::fused;
    case config::GenerateBackend::torch: return generate::BackendKind::torch;
  }
  throw InternalError("unknown generation backend");
}

int64_t mean_prompt_tokens(const data::PromptSet& prompts) {
  int64_t tokens = 0;
  for (int64_t row = 0; row < prompts.size(); ++row) tokens += static_cast<int64_t>(prompts[row].ids.size());
  return tokens / std::max<int64_t>(prompts.size(), 1);
}

KvNeed kv_need(const config::Options& options, int64_t prompt_tokens, int replicas) {
  const int64_t room = std::max<int64_t>(options.max_len() - prompt_tokens, 0);
  const int64_t wish = options.rollout.max_new_tokens;
  const int64_t most = wish > 0 ? std::min(wish, room) : room;
  const int64_t of_replica = base::ceil_div<int64_t>(options.rollout.batch_size, replicas) * options.rollout.n_samples_per_prompt;
  return {std::min(options.generate.max_batch, of_replica), prompt_tokens + most / 2};
}

std::string kv_shortage(const KvNeed& need, int64_t bytes, int64_t bytes_per_token) {
  const int64_t length = std::max<int64_t>(need.expected_length, 1);
  const int64_t held = bytes / bytes_per_token / length;
  if (held >= need.sequences) return "";
  const auto wanted = static_cast<double>(need.sequences * length * bytes_per_token);
  return base::text("the KV cache of ", base::human_bytes(static_cast<double>(bytes)), " a rank holds ", held, " of the ", need.sequences,
                    " sequences that a replica would decode together (", length, " tokens each, a mean prompt and half of the longest answer): the",
                    " others wait or are computed again. generate.kv_memory = \"", base::human_bytes(wanted),
                    "\" would hold them where memory allows; more generate.tensor_parallel ranks or fewer roles on a rank leave more");
}

std::function<bool(int32_t)> stop_string_predicate(const text::Tokenizer& tokenizer, const std::vector<std::string>& strings) {
  if (strings.empty()) return {};
  size_t longest = 0;
  for (const auto& text : strings) longest = std::max(longest, text.size());
  // Shared by the copies that std::function makes; one predicate serves one request.
  struct State {
    text::StreamingDecoder decoder;
    std::string tail;
  };
  auto state = std::make_shared<State>(State{text::StreamingDecoder(tokenizer, text::Skip::nothing), {}});
  return [state, strings, longest](int32_t token) {
    const std::string piece = state->decoder.push(token);
    const size_t before = state->tail.size();
    state->tail += piece;
    // Only a text that ends in this piece is new: an earlier one may have come while the answer was not yet allowed to end.
    const bool found = !piece.empty() && std::any_of(strings.begin(), strings.end(), [&](const std::string& text) {
      return state->tail.find(text, before + 1 > text.size() ? before + 1 - text.size() : 0) != std::string::npos;
    });
    if (state->tail.size() > longest) state->tail.erase(0, state->tail.size() - longest);
    return found;
  };
}

Stops stops_of(const text::Tokenizer& tokenizer, bool ignore_eos, const std::vector<int64_t>& ids,
               const std::vector<std::string>& strings, int64_t vocabulary, const std::string& key) {
  Stops stops;
  if (!ignore_eos) stops.ids.assign(tokenizer.eos_ids().begin(), tokenizer.eos_ids().end());
  for (const int64_t id : ids) {
    VALIDATE(id >= 0 && id < vocabulary, ExitCode::configuration, key, " has ", id, ", the model's vocabulary has ", vocabulary,
             " tokens (such a token never comes): correct or remove it");
    stops.ids.push_back(static_cast<int32_t>(id));
  }
  for (const std::string& text : strings) {
    const auto id = tokenizer.token_to_id(text);
    if (id && tokenizer.is_special(*id) && *id < vocabulary) {
      stops.ids.push_back(*id);
    } else if (!text.empty()) {
      stops.strings.push_back(text);
    }
  }
  std::sort(stops.ids.begin(), stops.ids.end());
  stops.ids.erase(std::unique(stops.ids.begin(), stops.ids.end()), stops.ids.end());
  return stops;
}

Generator::Generator(const config::Options& options, const Roles& roles, const model::ModelSpec& spec,
                     const text::Tokenizer& tokenizer, at::Device device, Threads threads, const std::vector<const std::byte*>& shared)
    : options_(options),
      roles_(roles),
      tokenizer_(tokenizer),
      stops_(stops_of(tokenizer, options.rollout.ignore_eos, options.rollout.stop_token_ids, options.rollout.stop,
                      spec.shape.vocab, "rollout.stop_token_ids")),
      spec_(spec),
      threads_(std::move(threads)),
      weights_(make_weights(options, roles, spec, device, shared)) {}

void Generator::start(int64_t kv_memory) {
  const auto engine = engine_options(options_, roles_, spec_, threads_, kv_memory);
  kv_bytes_ = engine.kv_bytes;
  engine_ = std::make_unique<generate::Engine>(spec_, weights_, engine, roles_.generators.along(comm::Axis::tensor));
}

GeneratorMemory Generator::memory() const {
  const auto& counters = engine_->counters();
  return {weights_.bytes(), counters.pages_peak * counters.page_bytes, counters.pages_peak};
}

generate::Request Generator::make_request(const data::PromptRecord& prompt, uint64_t id, const SamplingPlan& plan) const {
  generate::Request request;
  request.id = id;
  request.prompt = prompt.ids;
  request.sampling.temperature = plan.temperature;
  request.sampling.top_p = options_.rollout.top_p;
  request.sampling.top_k = options_.rollout.top_k;
  const int64_t room = options_.max_len() - static_cast<int64_t>(prompt.ids.size());
  const int64_t wish = options_.rollout.max_new_tokens;
  request.sampling.max_new_tokens = wish > 0 ? std::min(wish, room) : room;
  request.sampling.min_new_tokens = options_.rollout.min_new_tokens;
  request.sampling.seed = plan.seed;
  request.sampling.stop_ids = stops_.ids;
  request.stop = stop_string_predicate(tokenizer_, stops_.strings);
  return request;
}

Samples Generator::rollout(const data::PromptSet& prompts, const PromptBatch& batch, const SamplingPlan& plan) {
  threads_.use();
  meter_.start();
  const at::NoGradGuard no_grad;
  std::vector<generate::Request> requests;
  std::unordered_map<uint64_t, int64_t> row_of;
  for (size_t p = 0; p < batch.rows.size(); ++p) {
    if (static_cast<int>(p) % roles_.replicas() != roles_.generators.place(comm::Axis::data)) continue;
    const int64_t row = batch.rows[p];
    for (int64_t sample = 0; sample < plan.n; ++sample) {
      const uint64_t id = request_id(batch.iteration, batch.first_ordinal + static_cast<int64_t>(p), sample);
      requests.push_back(make_request(prompts[row], id, plan));
      row_of.emplace(id, row);
    }
  }
  Samples samples;
  const generate::EngineCounters before = engine_->counters();
  engine_->run(std::move(requests), [&](generate::Result result) {
    if (!roles_.leads_replica()) return;
    const int64_t row = row_of.at(result.id);
    append(samples, std::move(result), prompts[row], row, options_.max_len());
  });
  meter_.stop();
  trace::count("prompt_tokens_computed", engine_->counters().prefill_tokens - before.prefill_tokens);
  trace::count("tokens_decoded", engine_->counters().decode_tokens - before.decode_tokens);
  trace::counter("kv_pages_peak", static_cast<double>(engine_->counters().pages_peak));
  return samples.sorted();
}

}  // namespace trireme::driver
