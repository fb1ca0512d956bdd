// Names of verl.
#include "config/foreign_tables.hpp"

namespace trireme::config {
namespace {

using notes::adam;
using notes::as_ranks;
using notes::by_itself;
using notes::by_tokens;
using notes::every_line;
using notes::in_max_len;
using notes::local_file;
using notes::local_model;
using notes::no_context;
using notes::no_turns;
using notes::one_reward_model;
using notes::own_engine;
using notes::packed;
using notes::plugin;
using notes::stage_3;

constexpr ForeignName of_verl[] = {
    {"algorithm.adv_estimator", "algo.advantage.estimator"},
    {"algorithm.gamma", "algo.advantage.gamma"},
    {"algorithm.lam", "algo.advantage.lambd"},
    {"algorithm.norm_adv_by_std_in_grpo", "", "", "false: algo.advantage.estimator = \"dr_grpo\""},
    {"algorithm.use_kl_in_reward", "", "",
     "false: algo.kl.use_loss = true, or algo.kl.init_coef = 0"},
    {"algorithm.kl_penalty", "algo.kl.estimator"},
    {"algorithm.kl_ctrl.kl_coef", "algo.kl.init_coef"},
    {"algorithm.kl_ctrl.target_kl", "algo.kl.target"},
    {"algorithm.kl_ctrl.horizon", "algo.kl.horizon"},
    {"algorithm.kl_ctrl.type", "", "", "algo.kl.target makes the coefficient adaptive"},
    {"algorithm.filter_groups.enable", "algo.dynamic_filtering_enable"},
    {"algorithm.filter_groups.metric", "", "", "nothing: the mean reward of a group"},
    {"algorithm.filter_groups.max_num_gen_batches", "algo.dynamic_filtering_patience"},
    {"data.train_files", "data.prompt_dataset", "", local_file},
    {"data.val_files", "eval.dataset", "", local_file},
    {"data.train_batch_size", "rollout.batch_size"},
    {"data.gen_batch_size", "", "", "algo.dynamic_filtering_enable draws as many as are missing"},
    {"data.max_prompt_length", "", "", in_max_len},
    {"data.max_response_length", "rollout.max_new_tokens"},
    {"data.prompt_key", "data.messages_key", "", "verl's prompts are messages"},
    {"data.reward_fn_key", "", "", plugin},
    {"data.filter_overlong_prompts", "data.overlong_prompt", "\"skip\""},
    {"data.truncation", "", "", "prompts are not cut: data.overlong_prompt"},
    {"data.return_raw_chat", "", "", "nothing: a plugin sees the messages"},
    {"data.train_max_samples", "data.max_samples"},
    {"actor_rollout_ref.model.path", "model.path", "", local_model},
    {"actor_rollout_ref.model.enable_gradient_checkpointing", "train.recompute", "-1"},
    {"actor_rollout_ref.model.use_remove_padding", "", "", packed},
    {"actor_rollout_ref.hybrid_engine", "", "",
     "nothing: with empty [ranks] all roles are on all ranks"},
    {"actor_rollout_ref.actor.optim.lr", "actor.adam.lr"},
    {"actor_rollout_ref.actor.optim.lr_warmup_steps_ratio", "actor.warmup_ratio"},
    {"actor_rollout_ref.actor.optim.weight_decay", "actor.adam.weight_decay"},
    {"actor_rollout_ref.actor.optim.betas", "actor.adam.betas"},
    {"actor_rollout_ref.actor.optim.min_lr_ratio", "actor.min_lr_ratio"},
    {"actor_rollout_ref.actor.optim.warmup_style", "actor.lr_scheduler"},
    {"actor_rollout_ref.actor.optim.lr_scheduler_type", "actor.lr_scheduler"},
    {"actor_rollout_ref.actor.ppo_mini_batch_size", "", "",
     "train.batch_size counts sequences: ppo_mini_batch_size x rollout.n is carried over"},
    {"actor_rollout_ref.actor.ppo_micro_batch_size", "", "", by_tokens},
    {"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", "", "", by_tokens},
    {"actor_rollout_ref.actor.use_dynamic_bsz", "", "", by_tokens},
    {"actor_rollout_ref.actor.ppo_max_token_len_per_gpu", "train.micro_batch_tokens"},
    {"actor_rollout_ref.actor.ppo_epochs", "train.max_epochs"},
    {"actor_rollout_ref.actor.use_kl_loss", "algo.kl.use_loss"},
    {"actor_rollout_ref.actor.kl_loss_coef", "algo.kl.init_coef"},
    {"actor_rollout_ref.actor.kl_loss_type", "algo.kl.estimator"},
    {"actor_rollout_ref.actor.entropy_coeff", "actor.entropy_coef"},
    {"actor_rollout_ref.actor.clip_ratio", "actor.eps_clip"},
    {"actor_rollout_ref.actor.clip_ratio_low", "", "",
     "actor.eps_clip_low_high takes both: carried over together"},
    {"actor_rollout_ref.actor.clip_ratio_high", "", "",
     "actor.eps_clip_low_high takes both: carried over together"},
    {"actor_rollout_ref.actor.clip_ratio_c", "actor.dual_clip"},
    {"actor_rollout_ref.actor.loss_agg_mode", "actor.loss_agg_mode"},
    {"actor_rollout_ref.actor.policy_loss.loss_mode", "actor.policy_loss_type"},
    {"actor_rollout_ref.actor.grad_clip", "actor.max_norm"},
    {"actor_rollout_ref.actor.ulysses_sequence_parallel_size", "", "", no_context},
    {"actor_rollout_ref.actor.strategy", "", "", stage_3},
    {"actor_rollout_ref.actor.fsdp_config.optimizer_offload", "train.optimizer_offload"},
    {"actor_rollout_ref.actor.fsdp_config.param_offload", "", "", stage_3},
    {"actor_rollout_ref.actor.fsdp_config.fsdp_size", "train.shard_group"},
    {"actor_rollout_ref.ref.log_prob_micro_batch_size", "", "", by_tokens},
    {"actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu", "", "", by_tokens},
    {"actor_rollout_ref.ref.log_prob_max_token_len_per_gpu", "rollout.micro_batch_tokens"},
    {"actor_rollout_ref.ref.fsdp_config.param_offload", "", "", stage_3},
    {"actor_rollout_ref.rollout.name", "", "", own_engine},
    {"actor_rollout_ref.rollout.mode", "", "", own_engine},
    {"actor_rollout_ref.rollout.n", "rollout.n_samples_per_prompt"},
    {"actor_rollout_ref.rollout.temperature", "rollout.temperature"},
    {"actor_rollout_ref.rollout.top_p", "rollout.top_p"},
    {"actor_rollout_ref.rollout.top_k", "rollout.top_k"},
    {"actor_rollout_ref.rollout.ignore_eos", "rollout.ignore_eos"},
    {"actor_rollout_ref.rollout.response_length", "rollout.max_new_tokens"},
    {"actor_rollout_ref.rollout.tensor_model_parallel_size", "generate.tensor_parallel"},
    {"actor_rollout_ref.rollout.gpu_memory_utilization", "generate.kv_memory"},
    {"actor_rollout_ref.rollout.max_num_seqs", "generate.max_batch"},
    {"actor_rollout_ref.rollout.max_num_batched_tokens", "generate.max_batch_tokens"},
    {"actor_rollout_ref.rollout.enforce_eager", "generate.graphs", "false"},
    {"actor_rollout_ref.rollout.free_cache_engine", "", "", by_itself},
    {"actor_rollout_ref.rollout.dtype", "", "", "nothing: the generator computes as the trainer"},
    {"actor_rollout_ref.rollout.load_format", "", "", own_engine},
    {"actor_rollout_ref.rollout.enable_chunked_prefill", "", "",
     "nothing: generate.max_batch_tokens bounds a step"},
    {"actor_rollout_ref.rollout.log_prob_micro_batch_size", "", "", by_tokens},
    {"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu", "", "", by_tokens},
    {"actor_rollout_ref.rollout.val_kwargs.temperature", "eval.temperature"},
    {"actor_rollout_ref.rollout.val_kwargs.n", "eval.n_samples_per_prompt"},
    {"actor_rollout_ref.rollout.val_kwargs.top_p", "", "", "evaluations draw with rollout.top_p"},
    {"actor_rollout_ref.rollout.val_kwargs.do_sample", "", "", "eval.temperature = 0 is greedy"},
    {"actor_rollout_ref.rollout.multi_turn.enable", "", "", no_turns},
    {"critic.model.path", "critic.path", "", local_model},
    {"critic.optim.lr", "critic.adam.lr"},
    {"critic.optim.lr_warmup_steps_ratio", "critic.warmup_ratio"},
    {"critic.optim.weight_decay", "critic.adam.weight_decay"},
    {"critic.cliprange_value", "critic.value_clip"},
    {"critic.grad_clip", "critic.max_norm"},
    {"critic.ppo_micro_batch_size_per_gpu", "", "", by_tokens},
    {"critic.ppo_max_token_len_per_gpu", "", "", by_tokens},
    {"reward_model.enable", "", "", "a [[reward.source]] with kind = \"model\" is one"},
    {"reward_model.model.path", "reward.source.path", "", one_reward_model},
    {"reward_model.reward_manager", "", "", plugin},
    {"reward_model.micro_batch_size_per_gpu", "", "", by_tokens},
    {"reward_model.overlong_buffer.len", "reward.overlong_buffer_len"},
    {"reward_model.overlong_buffer.penalty_factor", "reward.overlong_penalty_factor"},
    {"custom_reward_function.path", "", "", plugin},
    {"custom_reward_function.name", "", "", plugin},
    {"trainer.total_epochs", "train.num_episodes"},
    {"trainer.total_training_steps", "run.iterations"},
    {"trainer.save_freq", "ckpt.interval"},
    {"trainer.test_freq", "eval.steps"},
    {"trainer.val_before_train", "", "", "nothing: evaluations come after iterations"},
    {"trainer.max_actor_ckpt_to_keep", "ckpt.keep"},
    {"trainer.critic_warmup", "critic.freezing_steps"},
    {"trainer.n_gpus_per_node", "", "", as_ranks},
    {"trainer.nnodes", "", "", as_ranks},
    {"trainer.logger", "", "", every_line},
    {"trainer.project_name", "", "", every_line},
    {"trainer.experiment_name", "run.name"},
    {"trainer.default_local_dir", "run.dir"},
    {"trainer.resume_mode", "ckpt.resume"},
    {"trainer.balance_batch", "", "", "nothing: ranks always get about as many tokens"},
};

}  // namespace

std::span<const ForeignName> verl_names() { return of_verl; }

}  // namespace trireme::config
