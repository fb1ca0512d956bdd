// Names of TRL.
#include "config/foreign_tables.hpp"

namespace trireme::config {
namespace {

using notes::adam;
using notes::by_tokens;
using notes::episodes;
using notes::every_line;
using notes::in_max_len;
using notes::local_file;
using notes::local_model;
using notes::own_attention;
using notes::own_engine;
using notes::packed;
using notes::plugin;
using notes::stage_3;

constexpr ForeignName of_trl[] = {
    {"model_name_or_path", "model.path", "", local_model},
    {"model", "model.path", "", local_model},
    {"output_dir", "run.dir"},
    {"run_name", "run.name"},
    {"seed", "run.seed"},
    {"dataset_name", "data.prompt_dataset", "", local_file},
    {"max_steps", "run.iterations"},
    {"num_train_epochs", "train.num_episodes"},
    {"num_iterations", "train.max_epochs"},
    {"learning_rate", "actor.adam.lr"},
    {"adam_beta1", "", "", "actor.adam.betas takes both: carried over together"},
    {"adam_beta2", "", "", "actor.adam.betas takes both: carried over together"},
    {"adam_epsilon", "actor.adam.eps"},
    {"weight_decay", "actor.adam.weight_decay"},
    {"max_grad_norm", "actor.max_norm"},
    {"lr_scheduler_type", "actor.lr_scheduler"},
    {"warmup_ratio", "actor.warmup_ratio"},
    {"warmup_steps", "", "", "actor.warmup_ratio is a share of all steps"},
    {"optim", "", "", adam},
    {"per_device_train_batch_size", "", "",
     "train.batch_size counts the sequences of an optimizer step over all ranks: "
     "per_device_train_batch_size x gradient_accumulation_steps x processes"},
    {"gradient_accumulation_steps", "", "",
     "train.batch_size counts the sequences of an optimizer step over all ranks"},
    {"per_device_eval_batch_size", "", "", by_tokens},
    {"generation_batch_size", "", "",
     "rollout.batch_size counts prompts: generation_batch_size / num_generations"},
    {"steps_per_generation", "", "",
     "rollout.batch_size x rollout.n_samples_per_prompt / train.batch_size steps are taken of a "
     "rollout"},
    {"num_generations", "rollout.n_samples_per_prompt"},
    {"max_prompt_length", "", "", in_max_len},
    {"max_completion_length", "rollout.max_new_tokens"},
    {"max_length", "data.max_len"},
    {"temperature", "rollout.temperature"},
    {"top_p", "rollout.top_p"},
    {"top_k", "rollout.top_k"},
    {"min_p", "rollout.min_p"},
    {"repetition_penalty", "rollout.repetition_penalty"},
    {"beta", "algo.kl.init_coef", "",
     "GRPOConfig's, a KL in the loss: with algo.kl.use_loss = true and estimator = \"k3\""},
    {"epsilon", "actor.eps_clip"},
    {"epsilon_high", "", "", "actor.eps_clip_low_high takes both: carried over together"},
    {"delta", "actor.delta"},
    {"loss_type", "actor.loss_agg_mode"},
    {"importance_sampling_level", "actor.policy_loss_type"},
    {"scale_rewards", "algo.advantage.estimator"},
    {"reward_weights", "", "", "reward.source.weight, one for each source"},
    {"reward_funcs", "", "", plugin},
    {"mask_truncated_completions", "algo.advantage.mask_truncated"},
    {"top_entropy_quantile", "actor.top_entropy_quantile"},
    {"off_policy_mask_threshold", "actor.off_policy_threshold"},
    {"sync_ref_model", "", "", "reference.sync_every = iterations; without a mixture"},
    {"ref_model_sync_steps", "reference.sync_every", "", "iterations instead of optimizer steps"},
    {"ref_model_mixup_alpha", "", "", "the reference takes the weights whole"},
    {"bf16", "model.dtype", "\"bf16\""},
    {"fp16", "", "", "compute types are fp32 and bf16"},
    {"gradient_checkpointing", "train.recompute", "-1"},
    {"gradient_checkpointing_kwargs", "", "", "nothing: train.recompute counts blocks"},
    {"use_vllm", "", "", own_engine},
    {"vllm_mode", "", "", own_engine},
    {"vllm_server_host", "", "", own_engine},
    {"vllm_server_port", "", "", own_engine},
    {"vllm_gpu_memory_utilization", "generate.kv_memory"},
    {"vllm_tensor_parallel_size", "generate.tensor_parallel"},
    {"vllm_importance_sampling_correction", "algo.advantage.is_correction_enable"},
    {"save_steps", "ckpt.interval"},
    {"save_strategy", "", "", "ckpt.interval counts iterations"},
    {"save_total_limit", "ckpt.keep"},
    {"eval_steps", "eval.steps"},
    {"eval_strategy", "", "", "eval.steps counts iterations"},
    {"logging_steps", "", "", every_line},
    {"log_completions", "rollout.save_samples", "", "how many"},
    {"num_completions_to_print", "rollout.save_samples"},
    {"report_to", "", "", every_line},
    {"push_to_hub", "", "", "the program opens no connection"},
    {"remove_unused_columns", "", "", "nothing: a plugin sees all columns"},
    {"shuffle_dataset", "data.shuffle"},
    {"disable_dropout", "", "", "nothing: there is no dropout"},
    {"use_liger_kernel", "", "", "nothing: the head never holds all logits"},
    {"use_liger_loss", "", "", "nothing: the head never holds all logits"},
    {"ds3_gather_for_generation", "", "", own_engine},
    {"deepspeed", "", "", stage_3},
    {"fsdp", "", "", stage_3},
    {"attn_implementation", "", "", own_attention},
    {"torch_dtype", "model.dtype"},
    {"dtype", "model.dtype"},
    {"packing", "", "", packed},
    {"use_peft", "", "", "nothing: actor.lora.rank above 0 trains an adapter"},
    {"lora_r", "actor.lora.rank"},
    {"lora_alpha", "actor.lora.alpha"},
    {"lora_dropout", "actor.lora.dropout"},
    {"lora_target_modules", "actor.lora.targets"},
    {"assistant_only_loss", "", "", "nothing: of messages the assistant's turns are learned"},
    {"completion_only_loss", "", "", "nothing: of prompt and response the response is learned"},
    {"label_smoothing", "algo.dpo.label_smoothing"},
    {"chat_template_kwargs", "data.chat_template_kwargs", "", "a JSON object in a text"},
    {"tools", "", "", episodes},
    {"max_tool_calling_iterations", "", "", episodes},
};

}  // namespace

std::span<const ForeignName> trl_names() { return of_trl; }

}  // namespace trireme::config
