// A deck as plain structs: one per section, the initialiser of a member is the default
// of its key, and the member's path in `Options` is the key's dotted name (`actor.adam.lr` is
// Options::actor.adam.lr). The meaning of each key stands once, in the key table
// (src/config/keys_*.cpp, see key_table.hpp and docs/user/deck_keys.md); here only what C++ code
// needs. Names and defaults are OpenRLHF's where it has the key; departures are marked in the key
// table. std::nullopt is "none" in a deck.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/config/choices.hpp"

namespace trireme::config {

using Strings = std::vector<std::string>;
using Range = std::array<double, 2>;  // [low, high]

// Seconds; a deck writes 90, "90s", "30m", "1h30m" or "2:00:00".
struct Duration {
  double seconds = 0;
  bool operator==(const Duration&) const = default;
};
// Bytes; a deck writes 4194304 or "4 MiB" (B, KB, MB, GB, TB, KiB, MiB, GiB, TiB).
struct Bytes {
  int64_t count = 0;
  bool operator==(const Bytes&) const = default;
};
// When to save: every so many iterations, every so many seconds, or as often as it pays (both 0).
struct SaveInterval {
  SaveInterval(int64_t every = 0) : iterations(every) {}
  int64_t iterations = 0;  // 0: not by their number
  double seconds = 0;      // 0: not by time
  bool automatic = false;
  bool operator==(const SaveInterval&) const = default;
};
// Memory to use: a fraction of what is free (0 < x <= 1) or a number of bytes.
struct MemoryShare {
  double fraction = 0;  // used when bytes == 0
  int64_t bytes = 0;
  bool operator==(const MemoryShare&) const = default;
};

struct RunOptions {
  std::string name;  // empty: the deck's file name
  std::string dir = "run";
  int64_t seed = 42;
  Device device = Device::automatic;
  InstructionSet isa = InstructionSet::automatic;
  int64_t iterations = 0;  // 0: train.num_episodes passes over the data
  Duration walltime;       // 0: no limit of our own
  Duration term_grace{30};
  StopWithin stop_within = StopWithin::step;
  Duration hang_timeout{300};
  Duration io_timeout{1800};
  int64_t mismatch_check = 64;   // collectives between two checks; 0: off
  std::string threads = "auto";  // auto | phase | a number
  PinThreads pin_threads = PinThreads::automatic;
  MemoryCheck memory_check = MemoryCheck::refuse;
  LogLevel log_level = LogLevel::info;
  bool production = false;
  bool take_over = false;
  bool operator==(const RunOptions&) const = default;
};

// Texts; resolve_ranks (ranks.hpp) turns them into rank lists.
struct RanksOptions {
  std::string trainer, generator, reward;
  bool operator==(const RanksOptions&) const = default;
};

struct ModelOptions {
  std::string path;   // the actor's weights, HF layout
  std::string shape;  // a config.json or its folder: random weights of this shape instead of `path`
  std::string tokenizer;  // empty: model.path
  ComputeType dtype = ComputeType::automatic;
  HeadType head_dtype = HeadType::model;
  int64_t max_len = 0;  // 0: data.max_len
  bool operator==(const ModelOptions&) const = default;

  DType compute() const { return compute_type(dtype); }  // once settled (machine/compute_type.hpp)
  DType logits() const { return head_dtype == HeadType::fp32 ? DType::f32 : compute(); }
};

struct AdamOptions {
  double lr = 1e-6;
  Range betas{0.9, 0.95};
  double eps = 1e-8, weight_decay = 0;
  bool operator==(const AdamOptions&) const = default;
};

// One optimizer's parameters, its gradient clip and learning-rate schedule; actor and critic have
// the same keys.
struct OptimizerOptions {
  AdamOptions adam;
  LrScheduler lr_scheduler = LrScheduler::cosine_with_min_lr;
  double warmup_ratio = 0.03;
  double min_lr_ratio = 0.1;
  double max_norm = 1.0;  // 0: no clip
  Strings freeze;         // patterns of parameters' names (model::freeze)
  bool operator==(const OptimizerOptions&) const = default;
};

// A low-rank adapter that is trained in the place of the actor's weights. Its defaults are peft's;
// rank 0 and no path: none.
struct LoraOptions {
  std::string path;  // folder of an adapter to go on with
  int64_t rank = 0;
  double alpha = 16;
  bool rslora = false;
  Strings targets{"all-linear"};
  double dropout = 0;
  Strings modules_to_save;
  bool wanted() const { return rank > 0 || !path.empty(); }
  bool operator==(const LoraOptions&) const = default;
};

struct ActorOptions : OptimizerOptions {
  LoraOptions lora;
  double eps_clip = 0.2;
  std::optional<Range> eps_clip_low_high;
  std::optional<double> dual_clip;
  PolicyLoss policy_loss_type = PolicyLoss::ppo;
  LossAggregation loss_agg_mode = LossAggregation::token_mean;
  std::optional<double> loss_scale_factor;  // none: the longest answer, in tokens
  bool loss_count_empty = false;
  std::optional<double> delta;
  std::optional<double> cispo_ratio_min;
  double cispo_ratio_max = 5;
  double sapo_tau_pos = 1, sapo_tau_neg = 1.05;
  std::optional<double> gspo_log_ratio_max = 10;
  std::optional<double> off_policy_threshold;  // none: no sequence is left out
  std::optional<double> top_entropy_quantile;  // none: all tokens
  double positive_nll_coef = 0;
  std::optional<double> entropy_coef;  // none: entropy is not computed; 0: computed and logged
  double ptx_coef = 0;                 // 0: no language-model loss beside the policy loss
  int64_t ptx_batch_size = 0;          // sequences per optimizer step; 0: train.batch_size
  bool operator==(const ActorOptions&) const = default;

  // Lower and upper clip distance: eps_clip_low_high, else eps_clip twice.
  Range clip() const { return eps_clip_low_high.value_or(Range{eps_clip, eps_clip}); }
};

struct CriticOptions : OptimizerOptions {
  CriticOptions() { adam.lr = 9e-6; }
  std::string path;  // empty: the first reward model, else the actor with a new head
  LoraOptions lora;
  std::optional<double> value_clip = 0.5;
  int64_t freezing_steps = -1;
  bool save_value_network = false;
  bool operator==(const CriticOptions&) const = default;
};

struct ReferenceOptions {
  std::string path;        // empty: model.path
  int64_t sync_every = 0;  // iterations; 0: the reference stays
  bool operator==(const ReferenceOptions&) const = default;
};

// One [[reward.source]]; keys of other kinds must keep their defaults.
struct RewardSource {
  RewardKind kind = RewardKind::rule;
  std::string name;  // empty: kind and index, "rule0"
  double weight = 1;
  // kind = "rule"
  Rule rule = Rule::exact;
  std::string pattern;
  std::string label_key;  // empty: data.label_key
  bool case_sensitive = true;
  double score_right = 1;
  double score_wrong = 0;
  std::string format_pattern;
  double format_weight = 0;
  int64_t length_target = 0;
  double length_weight = 0;
  // kind = "model" or "judge"
  std::string path;
  int64_t max_len = 0;  // 0: data.max_len; of a judge twice that
  // kind = "model"
  int64_t batch_tokens = 0;  // 0: rollout.micro_batch_tokens
  // kind = "plugin"
  Strings command;
  int64_t processes = 1;  // on each reward rank
  Duration timeout{60};
  bool whole_groups = false;
  // kind = "judge"
  std::string prompt_template;
  std::string system;
  std::string chat_template_kwargs;  // JSON object
  std::string score_pattern = "[-+]?\\d+(?:\\.\\d+)?";
  ScoreMatch score_match = ScoreMatch::last;
  Strings score_words;  // "WORD=NUMBER"
  std::optional<Range> score_range;
  double no_score = 0;
  int64_t votes = 1;
  VoteRule vote_rule = VoteRule::mean;
  double temperature = 0;
  int64_t max_new_tokens = 256;
  int64_t max_batch = 16;
  bool operator==(const RewardSource&) const = default;
};

struct RewardOptions {
  std::vector<RewardSource> source;
  std::optional<Range> clip_range = Range{-10, 10};
  bool normalize_enable = false;
  std::optional<int64_t> overlong_buffer_len;
  double overlong_penalty_factor = 1;
  std::optional<double> stop_properly_penalty_coef;
  int64_t retries = 3;
  PluginOutage outage = PluginOutage::stop;
  bool operator==(const RewardOptions&) const = default;
};

// Programs that answer the policy's turns, on each generator rank; no command: an answer is one
// turn.
struct EnvironmentOptions {
  Strings command;
  int64_t processes = 1;  // on each generator rank
  int64_t max_turns = 16;
  int64_t max_tokens = 0;  // of an episode; 0: data.max_len
  Duration timeout{60};    // of a process
  Duration max_time;       // that an episode waits in all; 0: no limit
  int64_t retries = 3;
  PluginOutage outage = PluginOutage::stop;
  double broken_reward = 0;
  ToolCalls tool_calls = ToolCalls::none;
  std::string tool_pattern;
  Strings tools;  // names of tools whose calls are counted by name
  TurnRewards rewards = TurnRewards::turns;
  bool wanted() const { return !command.empty(); }
  bool operator==(const EnvironmentOptions&) const = default;
};

struct RolloutOptions {
  int64_t batch_size = 1024;  // prompts per iteration
  int64_t over_sampling = 0;  // prompts beyond them that are written
  int64_t n_samples_per_prompt = 1;
  double temperature = 1;
  double top_p = 1;
  int64_t top_k = 0;  // 0: off
  double min_p = 0;   // 0: off
  double repetition_penalty = 1;
  int64_t max_new_tokens = 0;  // 0: what max_len leaves after the prompt
  int64_t min_new_tokens = 1;
  bool ignore_eos = false;
  Strings stop;
  std::vector<int64_t> stop_token_ids;
  Strings logit_bias;
  int64_t micro_batch_tokens = 0;  // 0: train.micro_batch_tokens
  int64_t save_samples = 0;        // per iteration; -1: all
  int64_t queue_messages = 1024;   // from one rank to another
  Bytes queue_bytes{int64_t{64} << 20};
  bool operator==(const RolloutOptions&) const = default;
};

struct DataOptions {
  Strings prompt_dataset;  // ppo
  std::vector<double> prompt_probs;
  Strings dataset;  // sft, rm, dpo
  std::vector<double> dataset_probs;
  Strings pretrain_dataset;  // ppo, with actor.ptx_coef
  std::vector<double> pretrain_probs;
  std::string text_key = "text";
  std::string prompt_key = "prompt";
  std::string messages_key = "messages";
  std::string response_key = "response";
  std::string completion_key = "completion";
  std::string label_key = "label";
  std::string chosen_key = "chosen";
  std::string rejected_key = "rejected";
  std::string margin_key = "margin";
  bool apply_chat_template = false;
  std::string chat_template_kwargs;  // JSON object
  std::string date;                  // YYYY-MM-DD; empty: the day on which the run began
  AddSpecialTokens special_tokens = AddSpecialTokens::once;
  std::string system_prompt;
  int64_t max_len = 2048;  // tokens of prompt and response together
  int64_t max_samples = 100'000'000;
  Overlong overlong_prompt = Overlong::skip;
  bool shuffle = true;
  bool operator==(const DataOptions&) const = default;
};

struct AdvantageOptions {
  Estimator estimator = Estimator::gae;
  double gamma = 1;
  double lambd = 1;
  std::optional<double> lambd_value;  // of the critic's returns; none: lambd
  double length_adaptive_alpha = 0;   // 0: lambd for every length
  AdvantageGaps gaps = AdvantageGaps::skip;
  bool no_std_norm = false;
  bool mask_truncated = false;
  bool is_correction_enable = false;
  CorrectionType is_correction_type = CorrectionType::tis;
  CorrectionLevel is_correction_level =
      CorrectionLevel::token;  // these three count when the type is `custom`
  CorrectionMode is_correction_mode = CorrectionMode::clip;
  CorrectionGate is_correction_gating = CorrectionGate::ratio;
  Range is_correction_threshold{0.5, 5.0};
  std::optional<int64_t>
      mask_older_than;  // versions of the weights; none: no token is left out for its age
  bool operator==(const AdvantageOptions&) const = default;
};

struct KlOptions {
  double init_coef = 0.01;
  std::optional<double> target;  // none: the coefficient stays
  int64_t horizon = 10000;
  KlEstimator estimator = KlEstimator::k1;
  bool use_loss = false;
  bool unbiased_gradient = false;
  bool operator==(const KlOptions&) const = default;
};

struct DpoOptions {
  DpoLoss loss = DpoLoss::sigmoid;
  double beta = 0.1;
  double label_smoothing = 0;
  bool ipo = false;  // OpenRLHF's word for loss = "ipo"; see form()
  double nll_loss_coef = 0;
  double simpo_gamma = 0.5;
  OrpoNll orpo_nll = OrpoNll::sequence;
  double desirable_weight = 1, undesirable_weight = 1;
  DpoLoss form() const { return ipo ? DpoLoss::ipo : loss; }
  bool operator==(const DpoOptions&) const = default;
};

// Distillation: the student is the trained model, the teacher is reference.path.
struct DistillOptions {
  double coef = 0;  // weight of the divergence; 0: there is no teacher
  // of ppo
  DistillPolicy policy = DistillPolicy::advantage;
  double discount = 0;
  double nll_coef = 0;  // of sft: weight of the language-model loss on the data beside it
  // of distributions
  double beta = 0;
  double temperature = 1;
  int64_t top_k = 0;  // 0: the whole vocabulary
  DistillSupport support = DistillSupport::teacher;
  DistillRest rest = DistillRest::tail;
  std::optional<double> log_prob_min;  // rest = none: least log-prob of either
  std::optional<double> loss_max;      // most of a token's divergence
  // In ppo: the optimizer steps run the teacher, on the trainers.
  bool in_steps() const { return coef > 0 && policy == DistillPolicy::distribution; }
  bool by_teacher() const { return top_k > 0 && support == DistillSupport::teacher; }
  bool operator==(const DistillOptions&) const = default;
};

struct RmOptions {
  PreferenceLoss loss = PreferenceLoss::sigmoid;
  bool operator==(const RmOptions&) const = default;
};

struct AlgoOptions {
  AdvantageOptions advantage;
  KlOptions kl;
  DpoOptions dpo;
  DistillOptions distill;
  RmOptions rm;
  bool dynamic_filtering_enable = false;
  Range dynamic_filtering_range{0, 1};
  int64_t dynamic_filtering_patience = 64;  // times rollout.batch_size prompts
  FilteringShortage dynamic_filtering_shortage = FilteringShortage::draw_on;
  bool operator==(const AlgoOptions&) const = default;
};

// Limits beyond which a run is ended; "none": not looked at.
struct DivergenceOptions {
  std::optional<double> kl;           // most
  std::optional<double> entropy;      // least
  std::optional<double> reward_drop;  // below the best mean reward of this start
  int64_t patience = 3;               // iterations in a row
  bool operator==(const DivergenceOptions&) const = default;
};

struct TrainOptions {
  int64_t batch_size = 128;  // sequences per optimizer step
  int64_t micro_batch_tokens = 16192;
  int64_t max_epochs = 1;
  int64_t num_episodes = 1;
  int64_t async_depth = 0;  // batches
  bool partial_rollout_enable = false;
  PartialRolloutOrder partial_rollout_order = PartialRolloutOrder::drawn;
  PartialRolloutKv partial_rollout_kv = PartialRolloutKv::recompute;
  int64_t shard_group = 0;  // ranks per ZeRO group; 0: all
  DType reduce_dtype = DType::f32;
  int64_t recompute = -1;                   // blocks that are recomputed in backward; -1: all
  std::optional<MemoryShare> keep_memory;   // for activations; none: as `recompute` says
  Bytes logits_memory{int64_t{256} << 20};  // of a micro-batch, for their gradient; on CPUs
  bool optimizer_offload = false, node_weights = true, enable_ema = false, exact_products = true,
       reduce_once = false;
  double ema_beta = 0.992;
  bool deterministic = false;
  OldLogProbs old_log_probs = OldLogProbs::automatic;
  DivergenceOptions divergence;
  int64_t replica_check = 0;  // iterations between two comparisons of replicas' weights; 0: never
  int64_t max_skipped_steps = 10;  // in a row; -1: no limit
  bool operator==(const TrainOptions&) const = default;
};

// Sequences of a step up to which guesses are computed beside their next tokens: with more, the
// products of more rows take longer.
inline constexpr int64_t speculating_sequences = 4;

struct GenerateOptions {
  GenerateBackend backend = GenerateBackend::automatic;
  RolloutWeights weights = RolloutWeights::model;
  int64_t tensor_parallel = 1;
  int64_t page_size = 16;  // tokens
  MemoryShare kv_memory{0.5, 0};
  bool keep_kv_memory = true;  // beside trainers of the same rank, where the memory plan has room
  int64_t max_batch = 256;     // sequences that decode together on a replica
  int64_t max_batch_tokens = 8192;  // tokens of one prefill step
  bool prefix_sharing = true, fused_operators = true, paged_attention = true, graphs = true,
       shared_sums = true;  // the first everywhere, the last on CPUs
  int64_t speculation_tokens =
      0;  // guesses of a sequence that a step computes beside its next token; 0: none
  bool operator==(const GenerateOptions&) const = default;
};

struct WeightSyncOptions {
  bool delta = true;
  Bytes bucket_bytes{int64_t{8} << 20};
  bool verify = true;
  SharedMemory shared_memory = SharedMemory::automatic;
  bool operator==(const WeightSyncOptions&) const = default;
};

struct CkptOptions {
  SaveInterval interval{10};   // 0: only when the run stops
  double failure_rate = 2e-5;  // of one rank, an hour; for automatic intervals
  int64_t keep = 3;
  std::string resume = "auto";  // auto | never | a checkpoint folder
  std::string path;             // empty: <run.dir>/ckpt
  Strings
      allow_changes;  // keys, or sections with a dot behind, that may differ from the checkpoint's
  SaveHf save_hf = SaveHf::end;
  std::string best_metric;       // empty: no best checkpoint is kept
  std::optional<double> target;  // of best_metric, at which the run ends
  int64_t patience =
      0;  // evaluations without a better best_metric after which the run ends; 0: never
  bool background = true;
  CopyAside copy_aside = CopyAside::stage;
  int64_t max_failures = 0;  // failed saves in a row that end the run; 0: it goes on
  bool operator==(const CkptOptions&) const = default;
};

struct EvalOptions {
  int64_t steps = -1;  // iterations between two; -1: never
  Strings dataset;
  double temperature = 0.6;
  int64_t n_samples_per_prompt = 4;
  bool operator==(const EvalOptions&) const = default;
};

struct TraceOptions {
  bool enabled = true;
  std::string file = "trace.json";  // relative to run.dir
  bool kernels = false;
  bool nvtx = false;
  bool operator==(const TraceOptions&) const = default;
};

struct ReportOptions {
  Strings sinks;  // csv, mlflow, tensorboard, wandb
  bool operator==(const ReportOptions&) const = default;
};

// Shapes of models that `trireme plan` has no files of; no run reads them.
struct PlanOptions {
  std::string model, reward_model;  // a config.json or its folder; empty: not known
  bool operator==(const PlanOptions&) const = default;
};

// Faults to inject, empty: none. Forms and meaning: fault.hpp and the key table.
struct FaultOptions {
  Strings at;
  std::string crash_at;
  std::string io_fail;
  std::string plugin_fault;
  bool any() const { return *this != FaultOptions{}; }
  bool operator==(const FaultOptions&) const = default;
};

struct Options {
  RunOptions run;
  RanksOptions ranks;
  ModelOptions model;
  ActorOptions actor;
  CriticOptions critic;
  ReferenceOptions reference;
  RewardOptions reward;
  EnvironmentOptions environment;
  RolloutOptions rollout;
  DataOptions data;
  AlgoOptions algo;
  TrainOptions train;
  GenerateOptions generate;
  WeightSyncOptions weightsync;
  CkptOptions ckpt;
  EvalOptions eval;
  TraceOptions trace;
  ReportOptions report;
  PlanOptions plan;
  FaultOptions fault;
  bool operator==(const Options&) const = default;

  // Zero means "as elsewhere" for some keys; these say what is meant.
  // Whether the algorithm looks at the reference policy at all.
  bool needs_reference() const {
    return algo.kl.init_coef != 0 || algo.kl.target.has_value() || algo.distill.coef > 0;
  }
  bool has_critic() const { return traits(algo.advantage.estimator).critic; }
  int64_t max_len() const { return model.max_len > 0 ? model.max_len : data.max_len; }
  int64_t rollout_micro_batch_tokens() const {
    return rollout.micro_batch_tokens > 0 ? rollout.micro_batch_tokens : train.micro_batch_tokens;
  }
  int64_t ptx_batch_size() const {
    return actor.ptx_batch_size > 0 ? actor.ptx_batch_size : train.batch_size;
  }
  bool has_plugins() const;
  bool has_judges() const;
  // Tokens that seq-mean-token-sum-norm divides the sum of a sequence by: actor.loss_scale_factor,
  // else the longest answer (Dr. GRPO).
  double loss_scale_factor() const {
    return actor.loss_scale_factor.value_or(
        static_cast<double>(rollout.max_new_tokens > 0 ? rollout.max_new_tokens : max_len()));
  }
  const std::string& tokenizer_path() const {
    return model.tokenizer.empty() ? model.path : model.tokenizer;
  }
  std::string ckpt_path() const { return ckpt.path.empty() ? run.dir + "/ckpt" : ckpt.path; }
  int64_t sequences_per_iteration() const {
    return rollout.batch_size * rollout.n_samples_per_prompt;
  }
  int64_t prompts_to_write() const { return rollout.batch_size + rollout.over_sampling; }
};

}  // namespace trireme::config
