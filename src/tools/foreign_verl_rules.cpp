// Settings of verl that mean something only together.
#include <algorithm>
#include <cmath>

#include "tools/foreign_deck.hpp"
#include "trireme/base/text.hpp"

namespace trireme::tools {

using config::Trainer;

void ForeignDeck::verl_rules() {
  verl_warmup("optim", "actor.warmup_ratio");
  if (trainer_ != Trainer::ppo) return;
  set("reward.clip_range", "\"none\"", "verl does not clip rewards");
  verl_kl();
  verl_critic();
  verl_warmup("actor_rollout_ref.actor.optim", "actor.warmup_ratio");
  reward_model_is_off("reward_model.");
  if (given("data.max_prompt_length") || given("data.max_response_length"))
    sum("data.max_len", "data.max_prompt_length", "data.max_response_length", 512);
  const std::string actor = "actor_rollout_ref.actor.";
  if (given(actor + "clip_ratio_low") || given(actor + "clip_ratio_high")) {
    const std::string both = value_of(actor + "clip_ratio").value_or("0.2");
    pair("actor.eps_clip_low_high", (actor + "clip_ratio_low").c_str(),
         (actor + "clip_ratio_high").c_str(), both.c_str());
  }
  const std::string mini = actor + "ppo_mini_batch_size", n = "actor_rollout_ref.rollout.n";
  const auto prompts = number_of(mini);
  if (prompts && (!given_.contains(n) || number_of(n))) {
    set("train.batch_size", base::text(static_cast<int64_t>(*prompts * number_of(n).value_or(1))),
        "ppo_mini_batch_size x rollout.n");
    done(mini);
  }
  const std::string sampling = "actor_rollout_ref.rollout.val_kwargs.";
  if (given(sampling + "temperature") && !on(sampling + "do_sample") &&
      (!given_.contains(sampling + "do_sample") || value_of(sampling + "do_sample"))) {
    set("eval.temperature", "0", "val_kwargs.do_sample is off");
    done(sampling + "temperature");
  }
  const std::string estimator = value_of("algorithm.adv_estimator").value_or("gae");
  if (estimator == "grpo" && value_of("algorithm.norm_adv_by_std_in_grpo") &&
      !on("algorithm.norm_adv_by_std_in_grpo")) {
    set("algo.advantage.estimator", "\"dr_grpo\"", "norm_adv_by_std_in_grpo = false");
    done("algorithm.adv_estimator");
    done("algorithm.norm_adv_by_std_in_grpo");
  }
  if (value_of("trainer.resume_mode").value_or("") == "resume_path") {
    done("trainer.resume_mode");
  } else {
    done("trainer.resume_from_path");
  }
}

// Where a KL counts, and with what coefficient.
void ForeignDeck::verl_kl() {
  const std::string loss = "actor_rollout_ref.actor.use_kl_loss",
                    reward = "algorithm.use_kl_in_reward";
  const std::string of_loss[] = {"actor_rollout_ref.actor.kl_loss_coef",
                                 "actor_rollout_ref.actor.kl_loss_type"};
  const std::string of_reward[] = {"algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty"};
  for (const std::string& name : {loss, reward}) {
    if (given_.contains(name) && !value_of(name))
      leave(name,
            "it cannot be read: algo.kl.init_coef and algo.kl.use_loss say where a KL counts");
    done(name);
  }
  const bool adaptive =
      on(reward) && !on(loss) && value_of("algorithm.kl_ctrl.type").value_or("") == "adaptive";
  if (!adaptive) {
    done("algorithm.kl_ctrl.target_kl");
    done("algorithm.kl_ctrl.horizon");
  } else if (!given_.contains("algorithm.kl_ctrl.target_kl")) {
    set("algo.kl.target", "0.1", "verl's default");
  }
  if (on(loss)) {
    set("algo.kl.use_loss", "true");
    for (const std::string& name : of_reward) done(name);
    if (!given_.contains(of_loss[0])) set("algo.kl.init_coef", "0.001", "verl's default");
    if (!given_.contains(of_loss[1])) set("algo.kl.estimator", "\"k3\"", "verl's default");
    if (on(reward))
      left_.push_back(base::text(reward, ": a KL in the loss and in the reward: keep one"));
    return;
  }
  for (const std::string& name : of_loss) done(name);
  if (on(reward)) {
    if (!given_.contains(of_reward[0])) set("algo.kl.init_coef", "0.001", "verl's default");
    return;
  }
  for (const std::string& name : of_reward) done(name);
  set("algo.kl.init_coef", "0", "no KL is in use");
}

void ForeignDeck::verl_critic() {
  const auto estimator = value_of("algorithm.adv_estimator");
  const bool has_critic = !given_.contains("algorithm.adv_estimator") || estimator == "gae";
  const auto waits = number_of("trainer.critic_warmup");
  if (has_critic && waits && *waits >= 2)
    set("critic.freezing_steps", base::text(static_cast<int64_t>(*waits) - 2),
        base::text("critic_warmup ", static_cast<int64_t>(*waits),
                   ": iterations from that one on"));
  if (waits || !has_critic) done("trainer.critic_warmup");
  if (has_critic) return verl_warmup("critic.optim", "critic.warmup_ratio");
  bool any = false;
  for (const auto& [name, setting] : given_) {
    if (!name.starts_with("critic.")) continue;
    any = any || !defaults_.contains(name);
    done(name);
  }
  if (any)
    leave("critic.*",
          base::text("nothing: ", estimator.value_or("this estimator"), " has no critic"));
}

void ForeignDeck::verl_warmup(const std::string& optimizer, const char* key) {
  const std::string name = optimizer + ".lr_warmup_steps";
  const auto steps = number_of(name), all = number_of("trainer.total_training_steps");
  if (!steps || *steps <= 0) return;
  done(optimizer + ".lr_warmup_steps_ratio");
  if (!all) return;  // the table says that a share is needed
  // Both count iterations.
  set(key, base::text(std::min(1.0, *steps / *all)), "lr_warmup_steps / total_training_steps");
  done(name);
}

// Without a reward model verl's settings of one mean nothing.
void ForeignDeck::reward_model_is_off(const std::string& prefix) {
  const auto enabled = value_of(prefix + "enable");
  if (enabled ? on(prefix + "enable") : given_.contains(prefix + "enable")) return;
  for (const auto& [name, setting] : given_) {
    if (name.starts_with(prefix + "model.") || name.starts_with(prefix + "rollout.") ||
        name == prefix + "max_length")
      done(name);
  }
  for (const char* group : {"overlong_buffer.", "reward_kwargs.overlong_buffer_cfg."}) {
    const std::string name = prefix + group;
    if (on(name + "enable")) continue;
    done(name + "len");
    done(name + "penalty_factor");
  }
}

}  // namespace trireme::tools
