#include "torch/torch.hpp"

#include "trireme/reward/scorer.hpp"

#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/learn/scoring.hpp"
#include "trireme/learn/update_step.hpp"
#include "trireme/reward/reward.hpp"
#include "trireme/reward/model_source.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::reward {

Scorer::Scorer(const config::Options& options, const comm::CommView& ranks, std::shared_ptr<comm::RingMemory> rings, const text::Tokenizer& tokenizer,
             const std::filesystem::path& log_folder, at::Device device, std::function<bool()> stop)
    : options_(options), ranks_(ranks), rings_(std::move(rings)), tokenizer_(tokenizer), device_(device), part_names_(source_names(options)) {
  const auto& sources = options.reward.source;
  made_.resize(sources.size());
  // Child processes first: they must not inherit a device context.
  for (size_t i = 0; i < sources.size(); ++i) {
    const std::string& name = part_names_[i];
    if (sources[i].kind == config::RewardKind::plugin) {
      made_[i] = make_plugin(sources[i], name,
                                    {.retries = static_cast<int>(options.reward.retries),
                                     .log_dir = log_folder,
                                     .rank = ranks_.rank(),
                                     .stop = stop,
                                     .fault = options.fault.plugin_fault});
    }
  }
}

void Scorer::make_sources() {
  const auto& sources = options_.reward.source;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].kind == config::RewardKind::rule) made_[i] = make_rule(sources[i], part_names_[i]);
    if (sources[i].kind == config::RewardKind::model) {
      made_[i] = make_model(sources[i], part_names_[i],
                                   {.ranks = ranks_,
                                    .device = device_,
                                    .dtype = options_.model.compute(),
                                    .normalize = options_.reward.normalize_enable,
                                    .max_len = options_.max_len(),
                                    .batch_tokens = options_.rollout_micro_batch_tokens(),
                                    .policy_tokenizer = options_.tokenizer_path(),
                                    .rings = rings_});
    }
    rewards_.add(std::move(made_[i]), sources[i].weight);
  }
  made_.clear();
}

void Scorer::add_reference(const model::ModelSpec& spec, const zero::ReadRows& read) {
  reference_ = std::make_unique<zero::ShardedModel>(
      spec, ranks_, std::nullopt, device_,
      zero::ShardedModelOptions{.name = "reference",
                                .compute = options_.model.compute(),
                                .training = zero::Training::frozen,
                                .rings = rings_});
  reference_->load(read);
}

std::vector<std::pair<std::string, zero::MemoryUse>> Scorer::memory() const {
  std::vector<std::pair<std::string, zero::MemoryUse>> out;
  if (reference_) out.emplace_back("reference", reference_->memory());
  for (size_t i = 0; i < rewards_.size(); ++i) {
    if (const int64_t bytes = rewards_.source(i).weight_bytes(); bytes > 0) {
      zero::MemoryUse use;
      use.weights = bytes;
      out.emplace_back("reward_" + part_names_[i], use);
    }
  }
  return out;
}

std::vector<Request> Scorer::requests(const Samples& samples, const data::PromptSet& prompts, int64_t iteration) const {
  std::vector<Request> requests;
  for (int64_t i = 0; i < samples.size(); ++i) {
    const auto s = static_cast<size_t>(i);
    const data::PromptRecord& prompt = prompts[samples.prompt_row[s]];
    const auto ids = samples.tokens_of(i);
    Request request;
    request.id = samples.id[s];
    request.prompt = prompt.prompt;
    request.response = tokenizer_.decode(ids.subspan(static_cast<size_t>(samples.prompt_len[s])), text::Skip::special);
    if (!prompt.messages.empty()) request.messages = data::messages_json(prompt.messages);
    request.label = prompt.label;
    request.extra = prompt.extra;
    request.finish_reason = samples.finish_reason[s];
    request.iteration = iteration;
    request.ids.assign(ids.begin(), ids.end());
    request.prompt_len = samples.prompt_len[s];
    requests.push_back(std::move(request));
  }
  return requests;
}

void Scorer::ask(const Samples& samples, const data::PromptSet& prompts, int64_t iteration) {
  if (rewards_.takes_time()) rewards_.ask(requests(samples, prompts, iteration));
}

bool Scorer::score_locally(Samples& samples, const data::PromptSet& prompts, int64_t iteration) {
  const trace::Region region{"reward sources"};
  auto parts = rewards_.score_locally(requests(samples, prompts, iteration), [this](bool mine) { return ranks_.max(int32_t{mine}) > 0; });
  if (parts) samples.reward_parts = std::move(*parts);
  return parts.has_value();
}

void Scorer::score_with_models(Samples& samples, const data::PromptSet& prompts, int64_t iteration) {
  if (rewards_.has_models()) {
    const trace::Region region{"reward models"};
    rewards_.score_with_models(requests(samples, prompts, iteration), samples.reward_parts);
  }
  samples.reward = rewards_.sum(samples.reward_parts);
  if (!reference_) return;
  const trace::Region region{"reference log-probs"};
  const at::Tensor log_probs = learn::action_log_probs(*reference_, samples, ranks_, options_.rollout_micro_batch_tokens(),
                                                learn::scoring_temperature(options_), device_);
  const float* first = log_probs.const_data_ptr<float>();
  samples.ref_log_probs.assign(first, first + samples.tokens());
}

}  // namespace trireme::reward
