#include "torch/torch.hpp"

#include "trireme/reward/scorer.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/learn/datasets.hpp"
#include "trireme/learn/exchange.hpp"
#include "trireme/learn/iteration_numbers.hpp"
#include "trireme/learn/scoring.hpp"
#include "trireme/learn/update_step.hpp"
#include "trireme/reward/checks.hpp"
#include "trireme/reward/judge.hpp"
#include "trireme/reward/model_source.hpp"
#include "trireme/reward/reading.hpp"
#include "trireme/reward/reward.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::reward {

Scorer::Scorer(const config::Options& options, const ModelRanks& ranks,
               const text::Tokenizer& tokenizer, const std::filesystem::path& log_folder,
               at::Device device, comm::Progress* progress)
    : options_(options),
      model_ranks_(ranks),
      ranks_(ranks.all),
      tokenizer_(tokenizer),
      device_(device),
      progress_(progress),
      part_names_(source_names(options)) {
  const auto& sources = options.reward.source;
  made_.resize(sources.size());
  // Child processes first: they must not inherit a device context.
  for (size_t i = 0; i < sources.size(); ++i) {
    const std::string& name = part_names_[i];
    if (sources[i].kind == config::RewardKind::plugin) {
      made_[i] = make_plugin(sources[i], name,
                             {.retries = options.reward.retries,
                              .outage = options.reward.outage,
                              .log_dir = log_folder,
                              .rank = ranks_.rank(),
                              .progress = progress,
                              .fault = options.fault.plugin_fault});
    }
  }
  if (progress) progress->add([this] { return rewards_.poll(), int64_t{0}; });
}

void Scorer::make_sources(const generate::EngineOptions& engine,
                          const zero::ShardedModel* trained) {
  const auto& sources = options_.reward.source;
  auto judges = make_judges(options_, {.device = device_,
                                       .engine = engine,
                                       .in_step = !device_.is_cpu() && options_.train.deterministic,
                                       .leads = ranks_.rank() == 0,
                                       .progress = progress_});
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].kind == config::RewardKind::judge) made_[i] = std::move(judges[i]);
    if (sources[i].kind == config::RewardKind::rule) made_[i] = make_rule_of(options_, i);
    if (sources[i].kind == config::RewardKind::model) {
      made_[i] = make_model(sources[i], part_names_[i],
                            {.ranks = model_ranks_,
                             .device = device_,
                             .dtype = options_.model.compute(),
                             .normalize = options_.reward.normalize_enable,
                             .max_len = options_.max_len(),
                             .batch_tokens = options_.rollout_micro_batch_tokens(),
                             .policy_tokenizer = tokenizer_,
                             .node_weights = options_.train.node_weights,
                             .trained = trained,
                             .trained_path = options_.model.path,
                             .progress = progress_});
    }
    rewards_.add(std::move(made_[i]), sources[i].weight);
  }
  if (options_.environment.wanted()) rewards_.add(make_environment_source(), 1);
  made_.clear();
}

void Scorer::add_reference(const model::ModelSpec& spec, const zero::ReadRows& read) {
  reference_ = std::make_unique<zero::ShardedModel>(
      model::frozen(spec), model_ranks_.shard, model_ranks_.copies, device_,
      zero::ShardedModelOptions{.name = "reference",
                                .compute = options_.model.compute(),
                                .node_weights = options_.train.node_weights,
                                .rings = model_ranks_.rings});
  load_reference(read);
}

void Scorer::load_reference(const zero::ReadRows& read) { reference_->load(read); }

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

int64_t Scorer::judge_cache_bytes() const {
  int64_t bytes = 0;
  for (size_t i = 0; i < rewards_.size(); ++i) bytes += rewards_.source(i).cache_bytes();
  return bytes;
}

std::vector<Request> Scorer::requests(const Samples& samples, const data::PromptSet& prompts,
                                      int64_t iteration) const {
  std::vector<Request> requests;
  for (int64_t i = 0; i < samples.size(); ++i) {
    const auto s = static_cast<size_t>(i);
    const auto ids = samples.tokens_of(i);
    Request request = request_for(prompts, samples.prompt_row[s]);
    request.id = samples.id[s];
    request.response = tokenizer_.decode(ids.subspan(static_cast<size_t>(samples.prompt_len[s])),
                                         text::Skip::special);
    request.finish_reason = samples.finish_reason[s];
    request.iteration = iteration;
    request.ids.assign(ids.begin(), ids.end());
    request.prompt_len = samples.prompt_len[s];
    if (!samples.turns.empty()) {
      request.turn_rewards = reward_of(samples.turns[s]);
      const auto begin = samples.action_mask.begin() + samples.begin(i);
      request.turn_tokens = std::count(begin, begin + samples.length(i), uint8_t{1});
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

void Scorer::ask(const Samples& samples, const data::PromptSet& prompts, int64_t iteration,
                 int64_t n) {
  if (!rewards_.takes_time()) return;
  std::vector<Request> asked = requests(samples, prompts, iteration);
  for (Request& request : asked) request.answers = n;
  rewards_.ask(asked);
}

bool Scorer::score_locally(Samples& samples, Samples& skipped, const data::PromptSet& prompts,
                           int64_t iteration) {
  const trace::Region region{"reward sources"};
  const auto any_stopped = [this](bool mine) {
    if (progress_) progress_->meet(ranks_);  // ranks whose sources are done help others meanwhile
    return ranks_.max(int32_t{mine}) > 0;
  };
  auto scores = rewards_.score_locally(requests(samples, prompts, iteration), any_stopped);
  if (!scores) return false;
  samples.reward_parts = std::move(scores->parts);
  samples.reward_metrics = std::move(scores->metrics);
  samples.judgements = std::move(scores->judgements);
  if (options_.reward.outage == config::PluginOutage::skip)
    skip_groups(samples, skipped, scores->missing, iteration);
  return true;
}

// Estimators compare the samples of a prompt, which may lie on several ranks: a prompt is left out
// as a whole.
void Scorer::skip_groups(Samples& samples, Samples& skipped, const std::vector<uint8_t>& missing,
                         int64_t iteration) {
  std::vector<uint64_t> mine;
  for (size_t i = 0; i < missing.size(); ++i) {
    if (missing[i]) mine.push_back(group_of(samples.id[i]));
  }
  const auto all = ranks_.all_gather<uint64_t>(mine);
  if (all.empty()) return;
  const std::set<uint64_t> groups(all.begin(), all.end());
  std::vector<int64_t> kept, left_out;
  for (int64_t i = 0; i < samples.size(); ++i) {
    (groups.contains(group_of(samples.id[static_cast<size_t>(i)])) ? left_out : kept).push_back(i);
  }
  skipped.append(samples.select(left_out));
  for (const int64_t i : left_out) found_.erase(samples.id[static_cast<size_t>(i)]);
  samples = samples.select(kept);
  VALIDATE(
      ranks_.sum(samples.size()) > 0, ExitCode::unfit_environment, "iteration ", iteration,
      ": the reward plugins answered for none of the ", groups.size(),
      " prompts, so nothing is left to learn from (reward.outage = \"skip\"): correct the plugin "
      "(its messages are in logs/plugin-*.log), ",
      "or let the run wait for it with reward.outage = \"wait\"");
  if (ranks_.rank() != 0) return;
  skipped_groups_ += std::ssize(groups);
  log::warning(base::text("iteration ", iteration, ": prompts left out: ", groups.size(),
                          ", for want of a plugin's answer (reward.outage = \"skip\")"));
}

PluginCounters Scorer::take_plugin_counters() {
  PluginCounters counters = rewards_.take_counters();
  counters.skipped_groups = std::exchange(skipped_groups_, 0);
  return counters;
}

comm::Then Scorer::refer(const Samples& samples) {
  learn::Exchange exchange(ranks_);
  learn::SharedOut shared = exchange.share_out(samples);  // models compute on tokens
  {
    const trace::Region region{"reference log-probs"};
    const at::Tensor log_probs = learn::action_log_probs(
        *reference_, shared.share, {pass(), options_.rollout_micro_batch_tokens(), device_},
        learn::scoring_temperature(options_));
    if (!log_probs.defined()) return comm::Then::leave;
    const float* first = log_probs.const_data_ptr<float>();
    shared.share.ref_log_probs.assign(first, first + shared.share.tokens());
  }
  const Samples all = exchange.give_back(shared);
  for (int64_t i = 0; i < all.size(); ++i) {
    const auto first = all.ref_log_probs.begin() + all.begin(i);
    found_[all.id[static_cast<size_t>(i)]].ref_log_probs.assign(first, first + all.length(i));
  }
  return comm::Then::go_on;
}

comm::Then Scorer::score_with_models(const Samples& samples, const data::PromptSet& prompts,
                                     int64_t iteration) {
  if (reference_) {
    std::vector<int64_t> others;
    for (int64_t i = 0; i < samples.size(); ++i) {
      if (!knows(samples.id[static_cast<size_t>(i)])) others.push_back(i);
    }
    if (refer(samples.select(others)) == comm::Then::leave) return comm::Then::leave;
  }
  if (!rewards_.has_models()) return comm::Then::go_on;
  learn::Exchange exchange(ranks_);
  learn::SharedOut shared = exchange.share_out(samples);
  {
    const trace::Region region{"reward models"};
    const auto then = rewards_.score_with_models(requests(shared.share, prompts, iteration),
                                                 shared.share.reward_parts);
    if (then == comm::Then::leave) return then;
  }
  const Samples all = exchange.give_back(shared);
  for (int64_t i = 0; i < all.size(); ++i) {
    Found& found = found_[all.id[static_cast<size_t>(i)]];
    for (const auto& rewards : all.reward_parts)
      found.parts.push_back(rewards.empty() ? 0 : rewards[static_cast<size_t>(i)]);
  }
  return comm::Then::go_on;
}

void Scorer::fill_in(Samples& samples) {
  for (int64_t i = 0; i < samples.size() && (reference_ || rewards_.has_models()); ++i) {
    const auto place = found_.find(samples.id[static_cast<size_t>(i)]);
    VALIDATE(place != found_.end(), ExitCode::internal, "no model has had sequence ",
             samples.id[static_cast<size_t>(i)]);
    const Found found = std::move(place->second);
    found_.erase(place);
    for (size_t part = 0; part < found.parts.size(); ++part) {
      if (rewards_.source(part).collective())
        samples.reward_parts[part][static_cast<size_t>(i)] = found.parts[part];
    }
    samples.ref_log_probs.insert(samples.ref_log_probs.end(), found.ref_log_probs.begin(),
                                 found.ref_log_probs.end());
  }
  samples.reward = rewards_.sum(samples.reward_parts);
}

data::PromptSet load_prompts(const config::Options& options, const config::Strings& files,
                             const text::Tokenizer& tokenizer, const comm::CommView& world) {
  auto prompts = learn::load_prompts(options, files, tokenizer, world);
  require_readable_chats(options, files, tokenizer, prompts, world);
  return prompts;
}

std::optional<data::PromptSet> load_held_out(const config::Options& options,
                                             const data::PromptSet& prompts,
                                             const text::Tokenizer& tokenizer,
                                             const comm::CommView& world) {
  std::optional<data::PromptSet> held_out;
  if (const auto& files = options.eval.dataset; !files.empty())
    held_out = load_prompts(options, files, tokenizer, world);
  std::vector<const data::PromptSet*> sets{&prompts};
  if (held_out) sets.push_back(&*held_out);
  comm::fail_together_on_root(world, [&] {
    for (const std::string& warning : check_labels(options, sets)) log::warning(warning);
    for (const std::string& line : check_judges(options, sets)) log::detail(line);
  });
  return held_out;
}

void add_plugin_metrics(const comm::CommView& world, Scorer* scorer,
                        report::IterationMetrics& metrics) {
  PluginCounters all;
  double longest = 0;
  for (const auto& one :
       world.gather_values(scorer ? scorer->take_plugin_counters() : PluginCounters{})) {
    all += one;
    longest = std::max(longest, one.wait_seconds);
  }
  metrics.plugins = {{"requests", static_cast<double>(all.requests)},
                     {"retries", static_cast<double>(all.retries)},
                     {"restarts", static_cast<double>(all.restarts)},
                     {"skipped_groups", static_cast<double>(all.skipped_groups)},
                     {"wait_seconds", longest}};
}

void add_judge_metrics(const comm::CommView& world, Scorer* scorer,
                       report::IterationMetrics& metrics) {
  JudgeCounters all;
  double longest = 0;
  for (const auto& one :
       world.gather_values(scorer ? scorer->take_judge_counters() : JudgeCounters{})) {
    all += one;
    longest = std::max(longest, one.seconds);
  }
  metrics.judges = {{"votes", static_cast<double>(all.votes)},
                    {"without_score", static_cast<double>(all.without_score)},
                    {"too_long", static_cast<double>(all.too_long)},
                    {"tokens", static_cast<double>(all.tokens)},
                    {"prompt_tokens", static_cast<double>(all.prompt_tokens)},
                    {"shared_tokens", static_cast<double>(all.shared_tokens)},
                    {"seconds", longest}};
}

}  // namespace trireme::reward
