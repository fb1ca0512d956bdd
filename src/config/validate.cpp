// Combinations that cannot work or cannot mean what they say.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>

#include "config/key.hpp"
#include "config/validate_losses.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/config/fault.hpp"
#include "trireme/config/importance_correction.hpp"
#include "trireme/config/reward_sources.hpp"

namespace trireme::config {

std::vector<std::string> selection_metrics(const Options& options, Command command) {
  switch (command) {
    case Command::sft: return {"eval_loss"};
    case Command::rm: return {"eval_loss", "eval_accuracy"};
    case Command::dpo:
      if (traits(options.algo.dpo.form()).rows == DpoRows::labelled)
        return {"eval_loss", "eval_margin"};
      return {"eval_loss", "eval_accuracy", "eval_margin"};
    case Command::ppo: break;
  }
  std::vector<std::string> names{"eval_reward", "eval_pass1"};
  if (options.eval.n_samples_per_prompt > 1)
    names.push_back(base::text("eval_pass", options.eval.n_samples_per_prompt));
  return names;
}

bool smaller_is_better(std::string_view metric) { return metric.ends_with("loss"); }

namespace {

namespace fs = std::filesystem;

class Checks {
 public:
  Checks(const Options& options, Command command, const ValidateInputs& inputs)
      : o_(options), command_(command), inputs_(inputs) {}

  // Sections that the deck may omit.
  std::vector<std::string> run();

 private:
  template <class... Parts>
  void refuse_if(bool wrong, const Parts&... parts) {
    if (wrong) mistakes_.push_back(base::text(parts...));
  }
  // An input that a run must have, and a plan does without.
  template <class... Parts>
  void require(bool there, const Parts&... parts) {
    if (there) return;
    (inputs_.shapes_suffice ? lacking_ : mistakes_).push_back(base::text(parts...));
  }
  void add(const std::vector<std::string>& mistakes) {
    mistakes_.insert(mistakes_.end(), mistakes.begin(), mistakes.end());
  }
  void general();
  void faults();
  void data();
  void ppo_batches();
  void ppo_algorithm();
  void ppo_reward();
  void reward_source(size_t index, const RewardSource& source);
  void ppo_correction();
  void ppo_pretraining();
  void preference();
  void evaluation();
  void best_checkpoint();
  void data_files();
  void files();
  void file(const std::string& key, const std::string& path);
  void probs(const std::string& section, const Strings& files, const std::vector<double>& weights);

  const Options& o_;
  Command command_;
  const ValidateInputs& inputs_;
  std::vector<std::string> mistakes_;
  std::vector<std::string> missing_, lacking_;
};

bool has_checkpoints(const std::filesystem::path& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename().string().starts_with("step-")) return true;
  }
  return false;
}

bool is_thread_setting(const std::string& text) {
  if (text == "auto" || text == "phase") return true;
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && value >= 1;
}

void Checks::general() {
  require(
      !o_.model.path.empty() || !o_.model.shape.empty(),
      "model.path is missing (the folder of the model to train; model.shape makes random weights)");
  refuse_if(
      !o_.model.path.empty() && !o_.model.shape.empty(),
      "model.path and model.shape are both set (weights are either read or random): keep one");
  require(o_.model.shape.empty() || !o_.model.tokenizer.empty(),
          "model.shape needs model.tokenizer (random weights have no tokenizer beside them)");
  refuse_if(!is_thread_setting(o_.run.threads), "run.threads = \"", o_.run.threads,
            "\" (allowed: auto, phase, or a number of at least 1)");
  refuse_if(o_.generate.backend == GenerateBackend::fused && o_.run.device == Device::cuda,
            "generate.backend = \"fused\" with run.device = \"cuda\" (the fused kernels are for "
            "CPUs): use auto or torch");
  const bool fused = o_.run.device != Device::cuda && o_.generate.backend != GenerateBackend::torch;
  const char* const other =
      o_.run.device == Device::cuda ? "run.device = \"cuda\"" : "generate.backend = \"torch\"";
  refuse_if(o_.generate.speculation_tokens > 0 && !fused,
            "generate.speculation_tokens = ", o_.generate.speculation_tokens, " with ", other,
            " (guesses change no bit only where a row's products do not depend on the rows beside "
            "it, which the fused kernels of CPUs give): set 0, or "
            "generate on CPUs with the fused backend");
  refuse_if(o_.generate.weights == RolloutWeights::int8 && !fused,
            "generate.weights = \"int8\" with ", other,
            " (the fused kernels of CPUs alone multiply with 8 bits): set \"model\", or generate "
            "on CPUs with the fused backend");
  refuse_if(o_.model.max_len > 0 && o_.model.max_len < o_.data.max_len, "model.max_len ",
            o_.model.max_len, " is shorter than data.max_len ", o_.data.max_len,
            " (sequences would not fit the model): raise it or leave it out");
  refuse_if(command_ != Command::ppo && o_.train.async_depth > 0, "train.async_depth is for ppo (",
            to_string(command_), " has no generators to overlap with)");
  refuse_if(o_.train.async_depth > 1 && !o_.train.partial_rollout_enable,
            "train.async_depth = ", o_.train.async_depth,
            " without train.partial_rollout_enable (who ends each batch before new weights is "
            "never more than one ahead): switch that on, or set 1");
  refuse_if(o_.train.partial_rollout_enable && o_.train.async_depth == 0,
            "train.partial_rollout_enable with train.async_depth = 0 (nobody writes while weights "
            "change): set at least 1");
  if (o_.train.partial_rollout_order == PartialRolloutOrder::finished) {
    const char* const finished = "train.partial_rollout_order = \"finished\" ";
    refuse_if(!o_.train.partial_rollout_enable, finished,
              "without train.partial_rollout_enable (nothing is carried over): switch that on");
    refuse_if(o_.train.deterministic, finished,
              "with train.deterministic (what is finished first depends on time): take drawn, or "
              "switch one off");
  }
  refuse_if(o_.train.partial_rollout_kv == PartialRolloutKv::keep &&
                (!o_.train.partial_rollout_enable || o_.train.deterministic),
            "train.partial_rollout_kv = \"keep\" is for train.partial_rollout_enable without "
            "train.deterministic (which begins anew at each version)");
  refuse_if(command_ != Command::ppo && o_.ranks != RanksOptions{},
            "[ranks] is for ppo (every rank trains in ", to_string(command_), "): remove it");
}

void Checks::faults() {
  refuse_if(
      o_.run.production && o_.fault.any(),
      "[fault] is set while run.production is true (faults are for tests): remove one of them");
  try {
    check_faults(o_.fault);
  } catch (const UserError& error) { mistakes_.emplace_back(error.what()); }
}

void Checks::probs(const std::string& section, const Strings& files,
                   const std::vector<double>& weights) {
  if (weights.empty()) return;
  refuse_if(weights.size() != files.size(), section, "_probs has ", weights.size(), " weights for ",
            files.size(), " files");
  refuse_if(std::all_of(weights.begin(), weights.end(), [](double w) { return w == 0; }), section,
            "_probs are all 0 (no file would be drawn from)");
}

void Checks::data() {
  if (command_ == Command::ppo) {
    require(!o_.data.prompt_dataset.empty(),
            "data.prompt_dataset is missing (the JSONL files of prompts)");
    probs("data.prompt", o_.data.prompt_dataset, o_.data.prompt_probs);
  } else {
    require(!o_.data.dataset.empty(), "data.dataset is missing (the JSONL files to train on)",
            o_.data.prompt_dataset.empty() ? "" : ": data.prompt_dataset is for ppo");
    probs("data.dataset", o_.data.dataset, o_.data.dataset_probs);
  }
}

void Checks::ppo_batches() {
  const int64_t sequences = o_.sequences_per_iteration();
  refuse_if(
      sequences % o_.train.batch_size != 0, "train.batch_size ", o_.train.batch_size,
      " does not divide the ", sequences, " sequences of an iteration (rollout.batch_size ",
      o_.rollout.batch_size, " x rollout.n_samples_per_prompt ", o_.rollout.n_samples_per_prompt,
      "; the last optimizer step of an epoch would be a smaller one): change one of the three");
  refuse_if(o_.rollout.max_new_tokens >= o_.data.max_len, "rollout.max_new_tokens ",
            o_.rollout.max_new_tokens, " leaves no token of data.max_len ", o_.data.max_len,
            " for the prompt");
  refuse_if(o_.rollout.max_new_tokens > 0 && o_.rollout.min_new_tokens > o_.rollout.max_new_tokens,
            "rollout.min_new_tokens ", o_.rollout.min_new_tokens,
            " is more than rollout.max_new_tokens ", o_.rollout.max_new_tokens,
            " (no answer could end but by its length): lower it");
  refuse_if(o_.rollout.over_sampling > o_.rollout.batch_size, "rollout.over_sampling ",
            o_.rollout.over_sampling, " is more than rollout.batch_size ", o_.rollout.batch_size,
            " (an iteration could not learn from all prompts that wait): lower it");
  refuse_if(o_.rollout.over_sampling > 0 && o_.train.async_depth > 0,
            "rollout.over_sampling with train.async_depth = ", o_.train.async_depth,
            " (generators that are ahead write on): set train.partial_rollout_enable = true and "
            "train.partial_rollout_order = \"finished\" instead");
  refuse_if(
      o_.rollout.temperature == 0,
      "rollout.temperature 0 takes the likeliest token (the policy gradient needs samples): use 1");
  refuse_if(o_.algo.dynamic_filtering_enable && o_.rollout.n_samples_per_prompt == 1,
            "algo.dynamic_filtering_enable with rollout.n_samples_per_prompt = 1 (it looks at the "
            "mean over the answers to one "
            "prompt): use 4 or more");
}

void Checks::ppo_algorithm() {
  const auto& advantage = o_.algo.advantage;
  const auto& kl = o_.algo.kl;
  refuse_if(traits(advantage.estimator).compares == Comparison::group &&
                o_.rollout.n_samples_per_prompt == 1,
            "algo.advantage.estimator = \"", to_string(advantage.estimator),
            "\" with rollout.n_samples_per_prompt = 1 (it compares the answers to one prompt, so "
            "every advantage would be 0 or "
            "undefined): ",
            "use 4 or more, or reinforce or gae");
  refuse_if(kl.unbiased_gradient && !kl.use_loss,
            "algo.kl.unbiased_gradient without algo.kl.use_loss (only a KL in the loss has a "
            "gradient): set both or none");
  refuse_if(kl.target && kl.init_coef == 0,
            "algo.kl.target with algo.kl.init_coef = 0 (the coefficient is multiplied at each step "
            "and would stay 0)");
  refuse_if(kl.use_loss && kl.init_coef == 0,
            "algo.kl.use_loss with algo.kl.init_coef = 0 (the term would be multiplied by 0)");
  refuse_if(o_.critic.freezing_steps >= 0 && !o_.has_critic(),
            "critic.freezing_steps with algo.advantage.estimator = \"",
            to_string(advantage.estimator), "\" (it has no critic to train alone)");
  refuse_if(!o_.critic.path.empty() && !o_.has_critic(),
            "critic.path with algo.advantage.estimator = \"", to_string(advantage.estimator),
            "\" (it has no critic): remove it");
  refuse_if(o_.critic.save_value_network && !o_.has_critic(),
            "critic.save_value_network with algo.advantage.estimator = \"",
            to_string(advantage.estimator), "\" (it has no critic to save): remove it");
  add(policy_loss_mistakes(o_));
  add(estimator_mistakes(o_));
  ppo_correction();
}

void Checks::ppo_correction() {
  const auto& advantage = o_.algo.advantage;
  const bool in_order = o_.train.partial_rollout_order == PartialRolloutOrder::drawn;
  refuse_if(
      advantage.mask_older_than && in_order &&
          *advantage.mask_older_than >= o_.train.async_depth + o_.algo.dynamic_filtering_enable,
      "algo.advantage.mask_older_than = ", advantage.mask_older_than.value_or(0),
      " with train.async_depth = ", o_.train.async_depth,
      " (no token is older than that, so none would be left out): set less, or none");
  const AdvantageOptions untouched;
  const bool chosen = advantage.is_correction_level != untouched.is_correction_level ||
                      advantage.is_correction_mode != untouched.is_correction_mode ||
                      advantage.is_correction_gating != untouched.is_correction_gating;
  refuse_if(!advantage.is_correction_enable &&
                (chosen || advantage.is_correction_type != untouched.is_correction_type ||
                 advantage.is_correction_threshold != untouched.is_correction_threshold),
            "algo.advantage.is_correction_* is set while algo.advantage.is_correction_enable is "
            "false (it would have no effect): set "
            "both or none");
  if (!advantage.is_correction_enable) return;
  const bool truncates = o_.rollout.top_p != RolloutOptions{}.top_p ||
                         o_.rollout.top_k != RolloutOptions{}.top_k || o_.rollout.min_p > 0;
  for (const auto& [key, is_set] :
       {std::pair{"rollout.logit_bias", !o_.rollout.logit_bias.empty()},
        std::pair{"rollout.repetition_penalty", o_.rollout.repetition_penalty != 1}}) {
    refuse_if(is_set && !truncates, "algo.advantage.is_correction_enable with ", key,
              " and without rollout.top_p and rollout.top_k (the probability with which a biased ",
              "token was drawn is only kept beside those): leave one of the two out");
  }
  refuse_if(chosen && advantage.is_correction_type != CorrectionType::custom,
            "algo.advantage.is_correction_level, _mode or _gating with is_correction_type = \"",
            to_string(advantage.is_correction_type),
            "\" (the type names all three): use type custom");
  const ImportanceCorrection correction = importance_correction(advantage);
  const bool clips = correction.mode == CorrectionMode::clip;
  const bool by_ratio = correction.gate == CorrectionGate::ratio;
  refuse_if(clips && !by_ratio, "algo.advantage.is_correction_gating = \"",
            to_string(correction.gate),
            "\" with mode clip (a divergence decides what is dropped, it has nothing to clip): use "
            "mode mask");
  refuse_if(clips && correction.level != CorrectionLevel::token,
            "algo.advantage.is_correction_level = \"", to_string(correction.level),
            "\" with mode clip (what is judged as a whole is kept or dropped, weights are clipped "
            "per token): use mode mask");
  refuse_if(by_ratio && (correction.low > 1 || correction.high < 1),
            "algo.advantage.is_correction_threshold = [", correction.low, ", ", correction.high,
            "] leaves out 1 (the ratio where rollout and trainer agree): put 1 inside");
  refuse_if(!by_ratio && correction.low > 0, "algo.advantage.is_correction_threshold = [",
            correction.low, ", ", correction.high, "] with gating ", to_string(correction.gate),
            " (the divergence is 0 where rollout and trainer agree, and those tokens would be "
            "dropped): let it begin at 0");
}

void Checks::ppo_pretraining() {
  const bool has_data = !o_.data.pretrain_dataset.empty();
  refuse_if(o_.actor.ptx_coef > 0 && !has_data, "actor.ptx_coef = ", o_.actor.ptx_coef,
            " without data.pretrain_dataset (there is no text to learn beside the rewards): name "
            "its JSONL files");
  refuse_if(o_.actor.ptx_coef == 0 && has_data,
            "data.pretrain_dataset with actor.ptx_coef = 0 (its loss would not count): give the "
            "loss a weight");
  refuse_if(o_.actor.ptx_coef == 0 && o_.actor.ptx_batch_size > 0,
            "actor.ptx_batch_size without actor.ptx_coef");
  probs("data.pretrain", o_.data.pretrain_dataset, o_.data.pretrain_probs);
}

void Checks::ppo_reward() {
  const auto& reward = o_.reward;
  require(!reward.source.empty() || o_.environment.wanted(),
          "there is no [[reward.source]] (ppo needs at least one: kind = \"rule\", \"model\" or "
          "\"plugin\"), and no [environment] that rewards instead");
  refuse_if(reward.overlong_buffer_len && o_.rollout.max_new_tokens == 0,
            "reward.overlong_buffer_len without rollout.max_new_tokens (the buffer lies before "
            "that limit): set both");
  refuse_if(reward.overlong_buffer_len && o_.rollout.max_new_tokens > 0 &&
                *reward.overlong_buffer_len > o_.rollout.max_new_tokens,
            "reward.overlong_buffer_len ", reward.overlong_buffer_len.value_or(0),
            " is longer than rollout.max_new_tokens ", o_.rollout.max_new_tokens);
  refuse_if(reward.outage != RewardOptions{}.outage && !o_.has_plugins(), "reward.outage = \"",
            to_string(reward.outage),
            "\" without a [[reward.source]] of kind = \"plugin\" (rules, models and judges always "
            "answer): remove it");
  add(vote_mistakes(o_));
  std::set<std::string> names;
  for (size_t i = 0; i < reward.source.size(); ++i) {
    reward_source(i, reward.source[i]);
    const std::string name = source_name(reward.source[i], i);
    const std::string problem = source_name_problem(name);
    refuse_if(!problem.empty(), "reward.source.", i, ".name = \"", name, "\" ", problem);
    refuse_if(!names.insert(name).second, "reward.source.", i, ".name: two sources are called \"",
              name, "\" (a source without a name has its kind and place)");
  }
}

void Checks::reward_source(size_t index, const RewardSource& source) {
  const std::string at = base::text("reward.source.", index, ".");
  add(keys_of_other_kinds(at, source));
  require(source.kind != RewardKind::model || !source.path.empty(), at,
          "path is missing (kind = \"model\" needs the reward model's folder)");
  require(source.kind != RewardKind::judge || !source.path.empty(), at,
          "path is missing (kind = \"judge\" needs the folder of a language model)");
  require(source.kind != RewardKind::plugin || !source.command.empty(), at,
          "command is missing (kind = \"plugin\" needs the program to start)");
  add(command_mistakes(at + "command", source.command));
  if (source.kind == RewardKind::judge) add(judge_mistakes(at, source));
  if (source.kind != RewardKind::rule) return;
  refuse_if(
      !source.label_key.empty() &&
          (source.label_key == o_.data.prompt_key || source.label_key == o_.data.messages_key),
      at, "label_key = \"", source.label_key,
      "\" is the column of the prompt (a label has a column of its own): name that, or leave it "
      "empty");
  refuse_if(source.rule == Rule::regex && source.pattern.empty(), at,
            "pattern is missing (rule = \"regex\" needs what to match)");
  refuse_if(source.format_weight != 0 && source.format_pattern.empty(), at,
            "format_weight without ", at, "format_pattern");
  refuse_if(source.format_weight == 0 && !source.format_pattern.empty(), at, "format_pattern with ",
            at, "format_weight = 0 (it would not count)");
  refuse_if(source.length_weight != 0 && source.length_target == 0, at, "length_weight without ",
            at, "length_target");
  const bool always_0 =
      source.rule == Rule::none && source.format_weight == 0 && source.length_weight == 0;
  refuse_if(always_0 && o_.algo.distill.coef == 0, at,
            "rule = \"none\" with neither format nor length (the reward would always be 0)");
}

void Checks::preference() {
  refuse_if(
      command_ != Command::ppo && (o_.actor.ptx_coef > 0 || !o_.data.pretrain_dataset.empty()),
      "actor.ptx_coef and data.pretrain_dataset are for ppo (", to_string(command_),
      " learns from data.dataset)");
  if (command_ == Command::dpo) add(dpo_mistakes(o_));
  add(distill_mistakes(o_, command_));
}

void Checks::evaluation() {
  refuse_if(o_.eval.steps == 0,
            "eval.steps = 0 (iterations between two evaluations; -1 switches them off)");
  refuse_if(o_.eval.steps > 0 && o_.eval.dataset.empty(),
            command_ == Command::ppo
                ? "eval.steps without eval.dataset (the JSONL files of evaluation prompts)"
                : "eval.steps without eval.dataset (the JSONL files that are held out)");
  refuse_if(!o_.eval.dataset.empty() && o_.eval.steps < 0,
            "eval.dataset without eval.steps (it would not be looked at): set both or none");
  best_checkpoint();
}

void Checks::best_checkpoint() {
  const std::string& metric = o_.ckpt.best_metric;
  refuse_if(metric.empty() && (o_.ckpt.target || o_.ckpt.patience > 0),
            "ckpt.target or ckpt.patience without ckpt.best_metric (they are about it)");
  if (metric.empty()) return;
  refuse_if(o_.eval.steps < 0, "ckpt.best_metric = \"", metric,
            "\" without eval.steps (only an evaluation can tell which checkpoint is best)");
  const auto known = selection_metrics(o_, command_);
  refuse_if(std::find(known.begin(), known.end(), metric) == known.end(), "ckpt.best_metric = \"",
            metric, "\" (", to_string(command_), " has: ", base::join(known), ")");
}

void Checks::file(const std::string& key, const std::string& path) {
  std::error_code error;
  if (path.empty() || fs::exists(path, error)) return;
  const fs::path beside = inputs_.deck.parent_path() / path;
  const bool is_beside =
      fs::path(path).is_relative() && !inputs_.deck.empty() && fs::exists(beside, error);
  missing_.push_back(base::text(
      key, " = \"", path, "\" does not exist",
      is_beside
          ? base::text(" (relative paths start at the working directory, and it lies beside the "
                       "deck): write ",
                       beside.string())
          : base::text(
                fs::path(path).is_relative()
                    ? " (seen from " + fs::current_path(error).string() +
                          (key.ends_with(".path") ? "; a folder here, nothing is downloaded)" : ")")
                    : "")));
}

void Checks::data_files() {
  file("model.tokenizer", o_.model.tokenizer);
  for (const auto& path : command_ == Command::ppo ? o_.data.prompt_dataset : o_.data.dataset) {
    file(command_ == Command::ppo ? "data.prompt_dataset" : "data.dataset", path);
  }
  for (const auto& path : o_.data.pretrain_dataset) file("data.pretrain_dataset", path);
  if (o_.eval.steps > 0) {
    for (const auto& path : o_.eval.dataset) file("eval.dataset", path);
  }
}

void Checks::files() {
  file("model.path", o_.model.path);
  file("model.shape", o_.model.shape);
  data_files();
  if (command_ != Command::rm) file("reference.path", o_.reference.path);
  if (command_ == Command::ppo) {
    if (o_.has_critic()) file("critic.path", o_.critic.path);
    for (size_t i = 0; i < o_.reward.source.size(); ++i)
      file(base::text("reward.source.", i, ".path"), o_.reward.source[i].path);
  }
  // A run that has obeyed it goes on from its own checkpoints: by then the one that was named may
  // be gone.
  const bool named = o_.ckpt.resume != "auto" && o_.ckpt.resume != "never";
  if (named && !has_checkpoints(o_.ckpt_path())) file("ckpt.resume", o_.ckpt.resume);
}

std::vector<std::string> Checks::run() {
  general();
  faults();
  data();
  if (command_ == Command::ppo) {
    ppo_batches();
    ppo_algorithm();
    ppo_pretraining();
    ppo_reward();
    add(environment_mistakes(o_));
  }
  preference();
  evaluation();
  add(lora_mistakes(o_));
  const auto report = [&](ExitCode code, const std::vector<std::string>& list) {
    if (list.empty()) return;
    const std::string deck = inputs_.deck.empty() ? "the deck" : inputs_.deck.string();
    if (list.size() == 1) throw UserError(code, base::text(deck, ": ", list[0]));
    throw UserError(
        code, base::text(deck, " has ", list.size(), " mistakes:\n  ", base::join(list, "\n  ")));
  };
  report(ExitCode::configuration, mistakes_);
  if (inputs_.shapes_suffice) {
    data_files();
    lacking_.insert(lacking_.end(), missing_.begin(), missing_.end());
    return lacking_;
  }
  if (inputs_.check_files) files();
  report(ExitCode::input_missing, missing_);
  return {};
}

}  // namespace

std::vector<std::string> validate(const Options& options, Command command,
                                  const ValidateInputs& inputs) {
  return Checks(options, command, inputs).run();
}

}  // namespace trireme::config
