// The reward role: the reward sources of the deck and the frozen reference model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/comm/progress.hpp"
#include "trireme/config/options.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/generate/engine.hpp"
#include "trireme/report/iteration_metrics.hpp"
#include "trireme/reward/model_ranks.hpp"
#include "trireme/reward/reward.hpp"
#include "trireme/text/tokenizer.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::reward {

class Scorer {
 public:
  // Starts the plugins: before any device is touched. `ranks` have the role (ranks.all). Sources
  // that take their time become sources of `progress`, which is also worked on between the
  // micro-batches of models. Collective over `ranks`.
  Scorer(const config::Options& options, const ModelRanks& ranks, const text::Tokenizer& tokenizer,
         const std::filesystem::path& log_folder, at::Device device,
         comm::Progress* progress = nullptr);

  // Makes rules and loads reward models and judges, whose engines are as `engine` says, once the
  // device is current and before the first score(). `trained`: the trained model where these ranks
  // have it, too; a reward model that is an adapter on its base reads that there. Collective over
  // the reward ranks.
  void make_sources(const generate::EngineOptions& engine, const zero::ShardedModel* trained);
  // Loads the frozen reference, for runs whose KL term needs one. Collective over the reward ranks.
  void add_reference(const model::ModelSpec& spec, const zero::ReadRows& read);

  // Other weights for it; sequences that it has had keep their log-probs. Collective over the
  // reward ranks.
  void load_reference(const zero::ReadRows& read);

  // Sources that take their time begin with sequences that score_locally() will have, of prompts
  // with `n` answers each. Local.
  void ask(const Samples& samples, const data::PromptSet& prompts, int64_t iteration, int64_t n);
  // Reference log-probs of sequences that score_with_models() will have, which does the others: any
  // number of calls, each sequence in one of them, and on CPUs the same bits. leave: the pass was
  // left and the scorer does not know them. Collective over the reward ranks.
  comm::Then refer(const Samples& samples);
  bool has_reference() const { return reference_ != nullptr; }
  // Whether refer() has had this rank's sequence `id`, and fill_in() not yet.
  bool knows(uint64_t id) const { return found_.contains(id); }
  // Reward models score the sequences, spread evenly over the ranks, and the reference computes
  // log-probs of those that refer() has not had. Once for all sequences of a batch: the output of a
  // reward model may depend in its last bits on what it scores together. leave: a pass was left.
  // Collective over the reward ranks.
  comm::Then score_with_models(const Samples& samples, const data::PromptSet& prompts,
                               int64_t iteration);
  // Fills reward_parts, with zeros for models. False, on all of them, when some rank was asked to
  // stop: then nothing is filled. With reward.outage = "skip" the samples of prompts that lack an
  // answer, on whatever rank, go over to `skipped`; throws UserError(unfit_environment) where
  // nothing is left on any rank. Collective over the reward ranks.
  bool score_locally(Samples& samples, Samples& skipped, const data::PromptSet& prompts,
                     int64_t iteration);
  // Fills the parts of models, reward and, with a reference, ref_log_probs of samples that
  // score_locally() and score_with_models() have had. Local.
  void fill_in(Samples& samples);
  // Of the time since the last call; a group that was left out counts on the first reward rank.
  PluginCounters take_plugin_counters();
  JudgeCounters take_judge_counters() { return rewards_.take_judge_counters(); }
  // Bytes of this rank that judges take for keys and values when they write.
  int64_t judge_cache_bytes() const;
  // Memory of this rank's models: "reference" and "reward_" + the source's name. A model that
  // judges share is the first one's.
  std::vector<std::pair<std::string, zero::MemoryUse>> memory() const;

 private:
  // What models found of a sequence.
  struct Found {
    std::vector<float> ref_log_probs = {};
    std::vector<float> parts = {};  // by source; 0 for those that are no models
  };
  // A pass of the models.
  comm::Pass pass() const { return {ranks_, progress_, comm::May::leave}; }
  void skip_groups(Samples& samples, Samples& skipped, const std::vector<uint8_t>& missing,
                   int64_t iteration);
  std::vector<Request> requests(const Samples& samples, const data::PromptSet& prompts,
                                int64_t iteration) const;

  config::Options options_;
  ModelRanks model_ranks_;
  comm::CommView ranks_;  // all of them
  text::Tokenizer tokenizer_;
  at::Device device_;
  comm::Progress* progress_;
  std::vector<std::unique_ptr<Source>> made_;  // the plugins, until make_sources()
  Rewards rewards_;
  std::vector<std::string> part_names_;
  std::unique_ptr<zero::ShardedModel> reference_;
  std::unordered_map<uint64_t, Found> found_;
  int64_t skipped_groups_ = 0;  // since take_plugin_counters()
};

// The prompts of a run, read as learn::load_prompts() does; chats have passed
// require_readable_chats(). Collective over world.
data::PromptSet load_prompts(const config::Options& options, const config::Strings& files,
                             const text::Tokenizer& tokenizer, const comm::CommView& world);

// The prompts of eval.dataset, if there is one, and check_labels() of these and of `prompts`: rank
// 0 looks, and logs the warnings. Collective over world; throws on all.
std::optional<data::PromptSet> load_held_out(const config::Options& options,
                                             const data::PromptSet& prompts,
                                             const text::Tokenizer& tokenizer,
                                             const comm::CommView& world);

// metrics.plugins: what reward plugins did since the last call; null where this rank is no reward
// rank. Collective over world.
void add_plugin_metrics(const comm::CommView& world, Scorer* scorer,
                        report::IterationMetrics& metrics);
// metrics.judges likewise.
void add_judge_metrics(const comm::CommView& world, Scorer* scorer,
                       report::IterationMetrics& metrics);

}  // namespace trireme::reward
