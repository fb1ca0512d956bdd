// Settings of other systems that mean something only together.
#include <algorithm>
#include <cmath>
#include <utility>

#include "tools/foreign_deck.hpp"
#include "trireme/base/text.hpp"

namespace trireme::tools {

using config::Origin;
using config::Trainer;

void ForeignDeck::follow_rules() {
  switch (origin_) {
    case Origin::openrlhf: return openrlhf_rules();
    case Origin::trl: return trl_rules();
    case Origin::verl: return verl_rules();
  }
}

// Of a prompt's and an answer's length; one alone goes with what the other is there by default.
void ForeignDeck::sum(const char* key, const char* prompt, const char* answer, double otherwise) {
  const auto a = number_of(prompt), b = number_of(answer);
  done(prompt);
  const bool unread = (given_.contains(prompt) && !a) || (given_.contains(answer) && !b);
  if (unread) leave(prompt, base::text(prompt, " + ", answer, " cannot be read: set ", key));
  if (unread || (!a && !b)) return;
  const auto name = [](bool given, const char* text, double value) {
    return given ? std::string(text) : base::text(static_cast<int64_t>(value));
  };
  set(key, base::text(static_cast<int64_t>(a.value_or(otherwise) + b.value_or(otherwise))),
      base::text(name(a.has_value(), prompt, otherwise), " + ",
                 name(b.has_value(), answer, otherwise)));
}

void ForeignDeck::pair(const char* key, const char* first, const char* second,
                       const char* otherwise) {
  const auto a = value_of(first), b = value_of(second);
  for (const char* name : {first, second}) {
    if (given_.contains(name) && !value_of(name))
      leave(name, base::text("its value cannot be read: set ", key));
  }
  done(second);
  if (!b && !a) return;
  set(key,
      base::text("[", toml_number(a.value_or(otherwise)), ", ", toml_number(b.value_or(otherwise)),
                 "]"),
      comment_for(first));
  done(first);
}

void ForeignDeck::openrlhf_rules() {
  if (given("prompt_max_len") || given("generate_max_len"))
    sum("data.max_len", "prompt_max_len", "generate_max_len", 1024);
  for (const auto& [queue, enable] : {std::pair{"async_queue_size", "async_train"},
                                      std::pair{"train.async_queue_size", "train.async_enable"}}) {
    if (!given_.contains(queue) || on(enable)) continue;
    leave(queue, base::text("nothing: ", enable, " is off"));
    done(queue);
  }
  for (const char* name : {"remote_rm_url", "reward.remote_url"}) {
    const auto url = value_of(name);
    if (!url) continue;
    if (url->ends_with(".py"))
      leave(name, "a reward function in Python: write it as a plugin (docs/user/run.md)");
    else if (url->find(',') != std::string::npos)
      leave(name, "several servers: a [[reward.source]] with kind = \"plugin\" for one of them");
    else continue;
    done(name);
  }
  for (const char* name : {"reward_pretrain", "reward.model_name_or_path"}) {
    const auto path = value_of(name);
    if (!path || path->find(',') == std::string::npos) continue;
    leave(name, "several models: a [[reward.source]] with kind = \"model\" for each");
    done(name);
  }
}

void ForeignDeck::trl_rules() {
  trl_warmup();
  trl_adapter();
  pair("actor.adam.betas", "adam_beta1", "adam_beta2", "0.999");
  const bool evaluates = value_of("eval_strategy").value_or("no") != "no" ||
                         value_of("evaluation_strategy").value_or("no") != "no";
  for (const char* name : {"eval_strategy", "evaluation_strategy"}) {
    if (value_of(name).value_or("") == "no" || value_of(name).value_or("") == "steps") {
      leave(name, "nothing: eval.steps says it");
      done(name);
    }
  }
  if (!evaluates && given("eval_steps")) {
    leave("eval_steps", "nothing: eval_strategy is \"no\"");
    done("eval_steps");
  }
  const std::string saves = value_of("save_strategy").value_or("");
  if (saves == "no") {
    set("ckpt.interval", "0", "save_strategy = \"no\"");
    done("save_steps");
  }
  if (saves == "no" || saves == "steps") done("save_strategy");
  if (value_of("optim").value_or("").find("adamw") != std::string::npos) {
    leave("optim", "nothing: AdamW is the optimizer");
    done("optim");
  }
  if (!given("per_device_train_batch_size"))
    leave("per_device_train_batch_size",
          "8 where it is not given; train.batch_size counts the sequences (rm, dpo: pairs) of an "
          "optimizer step over all ranks");
  if (trainer_ != Trainer::ppo) return;
  set("reward.clip_range", "\"none\"", "TRL does not clip rewards");
  trl_policy_loss();
  trl_steps();
  if (given_.contains("max_prompt_length")) {
    sum("data.max_len", "max_prompt_length", "max_completion_length", 0);
  } else if (const auto answer = number_of("max_completion_length")) {
    set("data.max_len", base::text(static_cast<int64_t>(*answer) + 2048),
        "max_completion_length + 2048 for the prompt, which TRL does not bound");
  }
  const auto batch = number_of("generation_batch_size"), each = number_of("num_generations");
  if (batch && each && *each > 0) {
    set("rollout.batch_size", base::text(static_cast<int64_t>(*batch / *each)),
        "generation_batch_size / num_generations");
    done("generation_batch_size");
  }
}

void ForeignDeck::trl_policy_loss() {
  const std::string estimator = value_of("scale_rewards").value_or("");
  if (estimator == "rloo" || estimator == "gae") {
    if (!given("loss_type") && estimator == "rloo") {
      set("actor.loss_agg_mode", "\"seq-mean-token-sum\"", "RLOOTrainer's, of whole sequences");
      done("loss_type");
    }
  } else if (on("beta")) {
    set("algo.kl.use_loss", "true", "beta");
    set("algo.kl.estimator", "\"k3\"", "beta");
  }
  const std::string loss = value_of("loss_type").value_or("");
  if (loss == "cispo") {
    set("actor.policy_loss_type", "\"cispo\"", "loss_type");
    if (const auto high = value_of("epsilon_high"))
      set("actor.cispo_ratio_max", toml_number(*high), "epsilon_high");
    done("epsilon_high");
    done("epsilon");
    done("importance_sampling_level");
    return;
  }
  if (loss == "sapo") {
    set("actor.policy_loss_type", "\"sapo\"", "loss_type");
    done("importance_sampling_level");
  }
  if (given_.contains("epsilon_high"))
    pair("actor.eps_clip_low_high", "epsilon", "epsilon_high", "0.2");
}

// TRL counts optimizer steps, of which an iteration here has several.
void ForeignDeck::trl_steps() {
  const auto number = [this](const char* name) { return number_of(name).value_or(1); };
  double steps = number("num_iterations");
  if (given("steps_per_generation"))
    steps *= number("steps_per_generation") / std::max(1.0, number("gradient_accumulation_steps"));
  if (steps <= 1) return;
  for (const auto& [name, key] :
       {std::pair{"max_steps", "run.iterations"}, std::pair{"save_steps", "ckpt.interval"},
        std::pair{"eval_steps", "eval.steps"},
        std::pair{"ref_model_sync_steps", "reference.sync_every"}}) {
    const auto value = number_of(name);
    if (!value || *value < 1 || done_.contains(name)) continue;
    set(key, base::text(static_cast<int64_t>(std::ceil(*value / steps))),
        base::text(name, " / ", steps, " optimizer steps of an iteration"));
    done(name);
  }
}

// On a command line the adapter's settings count with use_peft; a LoraConfig has defaults of its
// own ("lora_of_peft"). Without names peft adapts what the model's family adapts there.
void ForeignDeck::trl_adapter() {
  const bool own = on("lora_of_peft");
  done("lora_of_peft");
  if (!own && !on("use_peft")) {
    for (const auto& [name, setting] : given_) {
      if (!name.starts_with("lora_") || name == "lora_of_peft") continue;
      leave(name, "nothing: use_peft is off");
      done(name);
    }
    return;
  }
  const auto otherwise = [&](const char* name, const char* key, const char* text) {
    if (!given_.contains(name)) set(key, text, own ? "peft's default" : "TRL's default");
  };
  otherwise("lora_r", "actor.lora.rank", own ? "8" : "16");
  otherwise("lora_alpha", "actor.lora.alpha", own ? "8" : "32");
  otherwise("lora_dropout", "actor.lora.dropout", own ? "0.0" : "0.05");
  otherwise("lora_target_modules", "actor.lora.targets", "[\"q_proj\", \"v_proj\"]");
}

void ForeignDeck::trl_warmup() {
  const auto warmup = number_of("warmup_steps"), all = number_of("max_steps");
  const bool none = value_of("lr_scheduler_type").value_or("") == "constant";
  if (none) {
    set("actor.warmup_ratio", "0", "their constant has no warm-up");
    done("warmup_ratio");
    done("warmup_steps");
  } else if (warmup && *warmup > 0 && (*warmup < 1 || (all && *all >= *warmup))) {
    set("actor.warmup_ratio", base::text(*warmup < 1 ? *warmup : *warmup / *all),
        *warmup < 1 ? "warmup_steps" : "warmup_steps / max_steps");
    done("warmup_ratio");
    done("warmup_steps");
  }
}

// OpenRLHF's names without a role are those of both optimizers and adapters.
void ForeignDeck::copy_to_critic() {
  const auto estimator = keys_.find("algo.advantage.estimator");
  const bool critic = estimator == keys_.end() || estimator->second.text == "\"gae\"";
  if (origin_ != Origin::openrlhf || trainer_ != Trainer::ppo || !critic) return;
  for (const auto& [name, key] :
       {std::pair{"adam_betas", "adam.betas"}, std::pair{"l2", "adam.weight_decay"},
        std::pair{"max_norm", "max_norm"}, std::pair{"lr_scheduler", "lr_scheduler"},
        std::pair{"lr_warmup_ratio", "warmup_ratio"}, std::pair{"lora_rank", "lora.rank"},
        std::pair{"lora_alpha", "lora.alpha"}, std::pair{"lora_dropout", "lora.dropout"},
        std::pair{"target_modules", "lora.targets"}, std::pair{"ds.lora.rank", "lora.rank"},
        std::pair{"ds.lora.alpha", "lora.alpha"}, std::pair{"ds.lora.dropout", "lora.dropout"},
        std::pair{"ds.lora.target_modules", "lora.targets"}}) {
    const auto actor = keys_.find(base::text("actor.", key));
    const std::string other = base::text("critic.", key);
    if (given_.contains(name) && actor != keys_.end() && !keys_.contains(other))
      set(other, actor->second.text, base::text(name, " is both models'"));
  }
}

// Keys that mean nothing, or are refused, without another one.
void ForeignDeck::drop_halves() {
  const auto is = [this](const char* key, std::string_view text) {
    const auto found = keys_.find(key);
    return found != keys_.end() && found->second.text == text;
  };
  for (const std::string section : {"actor.lora.", "critic.lora."}) {
    const std::string rank = section + "rank";
    if (keys_.contains(section + "path") || (keys_.contains(rank) && !is(rank.c_str(), "0")))
      continue;
    std::erase_if(keys_, [&](const auto& line) { return line.first.starts_with(section); });
  }
  if (is("algo.kl.init_coef", "0") || is("algo.kl.init_coef", "0.0"))
    keys_.erase("algo.kl.use_loss");
  const auto steps = keys_.find("eval.steps");
  const bool evaluates = steps != keys_.end() && steps->second.text != "-1";
  if (evaluates && !keys_.contains("eval.dataset")) {
    left_.push_back(base::text("eval.steps = ", steps->second.text,
                               ": it needs eval.dataset, the JSONL files of evaluation"));
    keys_.erase(steps);
  } else if (!evaluates && keys_.contains("eval.dataset")) {
    needless_.emplace_back("eval.dataset: no evaluation is asked for (eval.steps)");
    keys_.erase("eval.dataset");
  }
  if (trainer_ == Trainer::ppo && sources_.empty())
    left_.emplace_back(
        "rewards: a [[reward.source]], a rule, a model or a plugin (docs/user/run.md)");
}

// A cosine to 0.
void ForeignDeck::end_schedule() {
  if (origin_ == Origin::openrlhf) return;
  for (const auto& [names, model] :
       {std::pair{std::vector<std::string>{"lr_scheduler_type", "optim.lr_scheduler",
                                           "optim.lr_scheduler_type",
                                           "actor_rollout_ref.actor.optim.warmup_style",
                                           "actor_rollout_ref.actor.optim.lr_scheduler_type"},
                  "actor"},
        std::pair{
            std::vector<std::string>{"critic.optim.warmup_style", "critic.optim.lr_scheduler_type"},
            "critic"}}) {
    const std::string key = base::text(model, ".min_lr_ratio");
    const bool cosine = std::ranges::any_of(
        names, [this](const std::string& name) { return value_of(name).value_or("") == "cosine"; });
    if (cosine && keys_.contains(base::text(model, ".lr_scheduler")) && !keys_.contains(key))
      set(key, "0", "their cosine ends at 0");
  }
}

}  // namespace trireme::tools
