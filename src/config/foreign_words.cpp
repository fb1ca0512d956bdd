// Words of values that other systems have for ours.
#include "trireme/config/foreign_names.hpp"

namespace trireme::config {
namespace {

constexpr ForeignWord words_of_others[] = {
    {Origin::verl, "algo.advantage.estimator", "grpo", "group_norm"},
    {Origin::trl, "algo.advantage.estimator", "grpo", "group_norm"},
    {Origin::openrlhf, "algo.advantage.estimator", "grpo", "group_norm"},
    {Origin::trl, "algo.advantage.estimator", "group", "group_norm"},
    {Origin::trl, "algo.advantage.estimator", "true", "group_norm"},
    {Origin::trl, "algo.advantage.estimator", "none", "dr_grpo"},
    {Origin::trl, "algo.advantage.estimator", "false", "dr_grpo"},
    {Origin::openrlhf, "algo.advantage.estimator", "reinforce++", "reinforce"},
    {Origin::verl, "algo.kl.estimator", "kl", "k1"},
    {Origin::verl, "algo.kl.estimator", "mse", "k2"},
    {Origin::verl, "algo.kl.estimator", "low_var_kl", "k3"},
    {Origin::trl, "actor.loss_agg_mode", "grpo", "seq-mean-token-mean"},
    {Origin::trl, "actor.loss_agg_mode", "bnpo", "token-mean"},
    {Origin::trl, "actor.loss_agg_mode", "dapo", "token-mean"},
    {Origin::trl, "actor.loss_agg_mode", "dr_grpo", "seq-mean-token-sum-norm"},
    {Origin::trl, "actor.policy_loss_type", "token", "ppo"},
    {Origin::trl, "actor.policy_loss_type", "sequence", "gspo"},
    {Origin::verl, "actor.policy_loss_type", "vanilla", "ppo"},
    {Origin::verl, "actor.policy_loss_type", "geo_mean", "gmpo"},
    {Origin::trl, "actor.lr_scheduler", "cosine", "cosine_with_min_lr"},
    {Origin::verl, "actor.lr_scheduler", "cosine", "cosine_with_min_lr"},
    {Origin::openrlhf, "actor.lr_scheduler", "cosine", "cosine_with_min_lr"},
    {Origin::trl, "actor.lr_scheduler", "constant", "constant_with_warmup"},
    {Origin::verl, "actor.lr_scheduler", "constant", "constant_with_warmup"},
    {Origin::openrlhf, "actor.lr_scheduler", "constant", "constant_with_warmup"},
    {Origin::trl, "model.dtype", "bfloat16", "bf16"},
    {Origin::trl, "model.dtype", "float32", "fp32"},
    {Origin::trl, "model.dtype", "fp16", "bf16"},
    {Origin::openrlhf, "model.dtype", "fp16", "bf16"},
    {Origin::trl, "model.dtype", "float16", "bf16"},
    {Origin::openrlhf, "model.dtype", "bfloat16", "bf16"},
    {Origin::openrlhf, "model.dtype", "float32", "fp32"},
    {Origin::verl, "ckpt.resume", "disable", "never"},
    {Origin::verl, "critic.lr_scheduler", "cosine", "cosine_with_min_lr"},
    {Origin::verl, "critic.lr_scheduler", "constant", "constant_with_warmup"},
    {Origin::trl, "ckpt.resume", "true", "auto"},
    {Origin::trl, "ckpt.resume", "false", "never"},
    {Origin::trl, "algo.dpo.loss", "ipo", "ipo_norm"},
    {Origin::trl, "algo.dpo.loss", "aot_pair", "aot"},
    {Origin::trl, "actor.loss_agg_mode", "cispo", "token-mean"},
    {Origin::trl, "actor.loss_agg_mode", "sapo", "seq-mean-token-mean"},
    // Their -1 and 1 for what is off.
    {Origin::openrlhf, "ckpt.save_hf", "true", "checkpoint"},
    {Origin::openrlhf, "ckpt.interval", "-1", "0"},
    {Origin::verl, "ckpt.interval", "-1", "0"},
    {Origin::openrlhf, "train.shard_group", "1", "0"},
    {Origin::verl, "train.shard_group", "-1", "0"},
    {Origin::trl, "run.iterations", "-1", "0"},
    {Origin::trl, "rollout.top_k", "-1", "0"},
    {Origin::verl, "rollout.top_k", "-1", "0"},
    {Origin::verl, "data.max_samples", "-1", "100000000"},
};

}  // namespace

std::span<const ForeignWord> foreign_words() { return words_of_others; }

}  // namespace trireme::config
