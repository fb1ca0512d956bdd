#include "torch/torch.hpp"

#include "driver/generator.hpp"

#include <algorithm>
#include <unordered_map>

#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {
namespace {

generate::EngineOptions engine_options(const config::Options& options, const Roles& roles, const model::ModelSpec& spec,
                                       int threads, int64_t kv_memory) {
  generate::EngineOptions engine;
  engine.page_size = options.generate.page_size;
  engine.max_batch = options.generate.max_batch;
  engine.prefill_chunk_tokens = options.generate.max_batch_tokens;
  engine.threads = threads;
  engine.prefix_sharing = options.generate.prefix_sharing;
  engine.backend = engine_backend(options.generate.backend);
  engine.kv_bytes = kv_cache_bytes(options.generate.kv_memory, spec, roles.tensor_parallel, options.model.dtype,
                                   options.generate.max_batch, options.max_len(), kv_memory);
  return engine;
}

// Appends a finished request to the samples.
void append(Samples& samples, const generate::Result& result, const data::PromptRecord& prompt, int64_t row) {
  samples.id.push_back(result.id);
  samples.prompt_row.push_back(row);
  samples.prompt_len.push_back(static_cast<int32_t>(prompt.ids.size()));
  samples.finish_reason.push_back(result.finish_reason);
  samples.ids.insert(samples.ids.end(), prompt.ids.begin(), prompt.ids.end());
  samples.ids.insert(samples.ids.end(), result.output_ids.begin(), result.output_ids.end());
  samples.action_mask.resize(samples.action_mask.size() + prompt.ids.size(), 0);
  samples.action_mask.resize(samples.action_mask.size() + result.output_ids.size(), 1);
  samples.log_probs.resize(samples.log_probs.size() + prompt.ids.size(), 0.0f);
  samples.log_probs.insert(samples.log_probs.end(), result.log_probs.begin(), result.log_probs.end());
  samples.version.resize(samples.version.size() + prompt.ids.size(), -1);
  samples.version.insert(samples.version.end(), result.versions.begin(), result.versions.end());
  samples.cu_seqlens.push_back(static_cast<int64_t>(samples.ids.size()));
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

int64_t kv_cache_bytes(const config::MemoryShare& share, const model::ModelSpec& spec, int tensor_parallel,
                       config::DType dtype, int64_t sequences, int64_t max_len, int64_t free) {
  const auto& shape = spec.shape;
  const int64_t heads = base::ceil_div<int64_t>(shape.kv_heads, tensor_parallel);
  const int64_t per_token = 2 * shape.layers * heads * shape.head_dim * config::bytes_per_element(dtype);
  const int64_t useful = base::round_up<int64_t>(max_len + 1, 256) * sequences * per_token;
  if (share.bytes > 0) return std::min(share.bytes, useful);
  const auto granted = static_cast<int64_t>(share.fraction * static_cast<double>(free));
  return std::min(std::max(granted, per_token * (max_len + 256)), useful);
}

std::function<bool(int32_t)> stop_string_predicate(const data::Tokenizer& tokenizer, const std::vector<std::string>& strings) {
  if (strings.empty()) return {};
  size_t longest = 0;
  for (const auto& text : strings) longest = std::max(longest, text.size());
  // Shared by the copies that std::function makes; one predicate serves one request.
  struct State {
    data::StreamingDecoder decoder;
    std::string tail;
  };
  auto state = std::make_shared<State>(State{data::StreamingDecoder(tokenizer), {}});
  return [state, strings, longest](int32_t token) {
    const std::string piece = state->decoder.push(token);
    state->tail += piece;
    const bool found = std::any_of(strings.begin(), strings.end(),
                                   [&](const std::string& text) { return state->tail.find(text) != std::string::npos; });
    if (state->tail.size() > longest) state->tail.erase(0, state->tail.size() - longest);
    return found;
  };
}

Generator::Generator(const config::Options& options, const Roles& roles, const model::ModelSpec& spec,
                     const data::Tokenizer& tokenizer, at::Device device, int threads, int64_t kv_memory)
    : options_(options),
      roles_(roles),
      tokenizer_(tokenizer),
      threads_(threads),
      weights_(spec, options.model.dtype, roles.tensor_ranks->rank(), roles.tensor_parallel,
               device.is_cuda() ? generate::Place::cuda : generate::Place::host),
      engine_(std::make_unique<generate::Engine>(spec, weights_, engine_options(options, roles, spec, threads, kv_memory),
                                                 roles.tensor_ranks.view())) {}

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
  request.sampling.seed = plan.seed;
  if (!options_.rollout.ignore_eos) {
    const auto ends = tokenizer_.eos_ids();
    request.sampling.stop_ids.assign(ends.begin(), ends.end());
  }
  request.stop = stop_string_predicate(tokenizer_, options_.rollout.stop);
  return request;
}

Samples Generator::rollout(const data::PromptSet& prompts, const PromptBatch& batch, const SamplingPlan& plan) {
  at::set_num_threads(threads_);
  const at::NoGradGuard no_grad;
  std::vector<generate::Request> requests;
  std::unordered_map<uint64_t, int64_t> row_of;
  for (size_t p = 0; p < batch.rows.size(); ++p) {
    if (static_cast<int>(p) % roles_.replicas != roles_.replica) continue;
    const int64_t row = batch.rows[p];
    for (int64_t sample = 0; sample < plan.n; ++sample) {
      const uint64_t id = request_id(batch.iteration, batch.first_ordinal + static_cast<int64_t>(p), sample);
      requests.push_back(make_request(prompts[row], id, plan));
      row_of.emplace(id, row);
    }
  }
  Samples samples;
  engine_->run(std::move(requests), [&](const generate::Result& result) {
    if (!roles_.leads_replica()) return;
    const int64_t row = row_of.at(result.id);
    append(samples, result, prompts[row], row);
  });
  trace::counter("kv_pages_peak", static_cast<double>(engine_->counters().pages_peak));
  return samples.sorted();
}

}  // namespace trireme::driver
