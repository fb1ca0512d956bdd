"""Details of RLHF and of sharded training that are easy to get wrong and whose loss no run shows at once. Each is a text that stands
exactly once in a file, what it is changed to, and the suites that are asked (SUITES in run.py), in that order, until one fails.
"""

import re
from typing import NamedTuple


class Mutation(NamedTuple):
    name: str
    detail: str  # what is wrong with the changed program
    file: str
    old: str
    new: str
    suites: tuple = ("parity",)

    def places(self, text):
        """(first, last) of each place of `old` in the text of a file; how the lines are broken does not count."""
        tokens = re.findall(r"\w+|[^\w\s]", self.old)
        return [match.span() for match in re.finditer(r"\s*".join(map(re.escape, tokens)), text)]


MUTATIONS = [
    # Rewards and advantages
    Mutation("biased_std", "group_norm divides by n instead of n - 1", "src/ppo/rewards.cpp",
             "static_cast<double>(x.size() - 1)", "static_cast<double>(x.size())"),
    Mutation("rloo_with_itself", "the leave-one-out baseline does not leave one out", "src/ppo/rewards.cpp",
             "value - (center * n - value) / (n - 1)", "value - center"),
    Mutation("clip_before_baseline", "rewards are clipped before the group's baseline is taken", "src/ppo/experience.cpp",
             "const ShapedRewards shaped = shape_rewards(table, options.penalty, options.estimator,",
             "RewardTable cut = table;\n"
             "  if (options.clip_range) for (float& r : cut.reward) r = std::clamp(r, static_cast<float>((*options.clip_range)[0]), "
             "static_cast<float>((*options.clip_range)[1]));\n"
             "  const ShapedRewards shaped = shape_rewards(cut, options.penalty, options.estimator,"),
    Mutation("gamma_kept", "gamma is not forced to 1 for the group estimators", "src/ppo/experience.cpp",
             "facts.discounts ? options.gae.gamma : 1.0", "facts.discounts ? options.gae.gamma : options.gae.gamma"),
    Mutation("lambda_ignored", "GAE with lambda = 1 whatever the deck says", "src/ppo/advantages.cpp",
             "if (options.length_adaptive_alpha <= 0) return options.lambda;", "if (options.length_adaptive_alpha <= 0) return 1.0;"),
    Mutation("kl_sign", "the KL penalty rewards distance from the reference", "src/ppo/advantages.cpp",
             "kl_column * -std::max(kl_coef, 0.0)", "kl_column * std::max(kl_coef, 0.0)"),
    Mutation("k3_swapped", "k3 of the other direction", "src/ppo/kl.cpp",
             "at::clamp(-rho, std::nullopt, exponent_limit).exp() - 1.0 + rho", "at::clamp(rho, std::nullopt, exponent_limit).exp() - 1.0 - rho"),
    Mutation("whiten_per_rank", "advantages are whitened with each rank's own mean", "src/ppo/advantages.cpp",
             "  sum(totals);\n", "", ("parity/2",)),
    Mutation("whiten_unbiased", "whitening divides by n - 1", "src/ppo/advantages.cpp",
             "squares[0] / count,", "squares[0] / (count - 1),"),
    Mutation("reward_on_last_column", "the reward falls on the last column, action or not", "src/ppo/advantages.cpp",
             "if (mask[t] != 0) return t;", "if (t == end - 1) return t;"),
    Mutation("last_token", "the last token of a sequence is no target", "src/learn/scoring.cpp",
             "for (int64_t t = 1; t < samples.length(i); ++t) {\n      if (!samples.action_mask",
             "for (int64_t t = 1; t + 1 < samples.length(i); ++t) {\n      if (!samples.action_mask"),
    Mutation("reference_temperature", "reference log-probs at temperature 1 whatever the rollout's", "src/reward/scorer.cpp",
             "learn::scoring_temperature(options_));\n    if", "1.0);\n    if"),
    Mutation("mask_multiplied", "masked values are multiplied by 0: NaN times 0 is NaN", "src/ppo/packed.cpp",
             "at::where(mask.to(at::kBool), x, at::zeros({}, x.options()))", "x.mul(mask.to(x.scalar_type()))", ("ppo_unit", "parity")),
    # Losses
    Mutation("mean_of_means", "each micro-batch is divided by its own tokens instead of the step's", "src/ppo/losses.cpp",
             "normalizer.action_tokens ? *normalizer.action_tokens : total(counts)", "total(counts)"),
    Mutation("sequences_of_micro_batch", "the same for means over sequences", "src/ppo/losses.cpp",
             "normalizer.sequences ? *normalizer.sequences : total(per_sequence > 0)", "total(per_sequence > 0)"),
    Mutation("dual_clip_everywhere", "the dual clip acts on positive advantages", "src/ppo/policy_losses.cpp",
             "at::where(in.advantages < 0.0,", "at::where(in.advantages > 0.0,"),
    Mutation("value_clip_optimistic", "the value loss takes the smaller of the two errors", "src/ppo/losses.cpp",
             "at::maximum((clipped - target).square(), error)", "at::minimum((clipped - target).square(), error)"),
    Mutation("correction_inverted", "the importance weight is upside down", "src/ppo/correction.cpp",
             "const Tensor weights = log_ratio.exp();", "const Tensor weights = (-log_ratio).exp();"),
    Mutation("correction_not_constant", "a gradient flows through the importance weight's mask of the rollout", "src/ppo/correction.cpp",
             "select(in.old_log_probs, mask).detach();", "select(in.log_probs, mask);"),
    Mutation("temperature_in_gradient", "the gradient of log-probs forgets the temperature", "src/kernels/token_log_probs.cpp",
             "own + scale * grad[i]", "own + grad[i]"),
    # Optimizer and sharding
    Mutation("no_bias_correction", "AdamW's first moment without bias correction", "src/kernels/lane_kernels.cpp",
             "s.lr / (1 - std::pow(s.beta1, static_cast<double>(s.step)))", "s.lr"),
    Mutation("norms_decay", "weight decay on norm weights", "src/zero/optimizer.cpp",
             "decays(update.map.layout().tensors()[p].name) ? options.weight_decay : 0", "options.weight_decay"),
    Mutation("norm_per_rank", "each rank clips by the norm of its own shard", "src/zero/sharded_model.cpp",
             "impl_->shard.sum(squared_gradients(state))", "squared_gradients(state)", ("steps/2",)),
    Mutation("replicas_not_summed", "hybrid sharding: groups train on their own gradients", "src/zero/sharded_model.cpp",
             "if (replicas && replicas->size() > 1) {", "if (false && replicas->size() > 1) {", ("steps/2",)),
    Mutation("gradients_of_one_rank_missing", "the last rank's gradients are not added", "src/comm/shard_exchange_nodes.cpp",
             "out.push_back(reinterpret_cast<const std::byte*>(gradient_base(mate, stage)) + offset);",
             "out.push_back(reinterpret_cast<const std::byte*>(gradient_base(mate == node_.size() - 1 ? 0 : mate, stage)) + offset);",
             ("steps/2",)),
    Mutation("warmup_from_one", "the first warm-up step does not have learning rate 0", "src/zero/schedule.cpp",
             "return static_cast<double>(step) / static_cast<double>(std::max<int64_t>(1, warmup_))",
             "return static_cast<double>(step + 1) / static_cast<double>(std::max<int64_t>(1, warmup_))"),
    # Weight sync, tensor parallelism, checkpoints
    Mutation("wrong_rows", "a slice is written one row further down", "src/base/shard_layout.cpp",
             "return (common.row - block.row) * block.columns", "return std::min(common.row - block.row + (block.row > 0 ? 1 : 0), block.rows - common.rows) * block.columns",
             ("weightsync_unit/2", "base_unit")),
    Mutation("delta_compares_one_byte", "a delta misses values whose low byte did not change", "src/weightsync/delta.cpp",
             "if (static_cast<Element>(difference) != 0)", "if (static_cast<uint8_t>(difference) != 0)", ("weightsync_unit/2",)),
    Mutation("tensor_parallel_groups", "query heads are cut by the KV heads' width", "src/model/spec.cpp",
             "case Extent::q: return group_bounds(shape.kv_heads, degree, shape.heads / shape.kv_heads * shape.head_dim);",
             "case Extent::q: return even_bounds(shape.heads * shape.head_dim, degree);", ("generate_ranks/2",)),
    Mutation("manifest_not_compared", "a manifest that was changed after the save is taken", "src/checkpoint/manifest.cpp",
             "VALIDATE(to_json(manifest) == text,", "VALIDATE(!text.empty(),", ("checkpoint_unit/2",)),
    Mutation("digest_not_compared", "damaged data of a checkpoint are taken", "src/checkpoint/reader.cpp",
             "VALIDATE(found == expected,", "VALIDATE(found == expected || true,", ("checkpoint_unit/2",)),
    # What the program's own loop computes and moves
    Mutation("padded_batches", "micro-batches are filled up to a number of sequences", "src/learn/scoring.cpp",
             "  batch.packed = model::pack(sequences, device);\n",
             "  while (sequences.size() % 64 != 0) sequences.push_back(sequences.front());\n  batch.packed = model::pack(sequences, device);\n", ("counts",)),
    Mutation("prompt_for_each_answer", "the answers to one prompt do not share it", "src/generate/scheduler.cpp",
             "if (group->prompt == sequence.request.prompt && group", "if (group->prompt.empty() && group", ("counts",)),
    Mutation("weights_copied", "generators among the trainers of a node get a copy of the weights", "src/driver/weight_bridge.cpp",
             "if (whole.size() != actor->spec().parameters.size()) whole.clear();", "whole.clear();", ("counts",)),
    Mutation("caches_kept", "the KV cache stays while the trainers of the same ranks work", "src/driver/ppo_roles.cpp",
             "  generator->release_cache();\n", "", ("counts",)),
    Mutation("pass_without_looks", "a rank takes nothing from queues and plugins while its models score", "src/learn/scoring.cpp",
             "    if (by.pass.next(received) == comm::Then::leave) return comm::Then::leave;\n", "", ("long_pass",)),
    Mutation("changes_of_last_step", "a delta has the changes of the last optimizer step only", "src/zero/optimizer.cpp",
             "std::transform(step_bits.begin(), step_bits.end(), sum, sum, std::bit_or<>());", "std::copy(step_bits.begin(), step_bits.end(), sum);",
             ("deltas",)),
    Mutation("memory_not_compared", "weights that changed in a generator's memory are taken for good", "src/weightsync/verify.cpp",
             "if (found == expected.end() || found->second != digest) differing", "if (found == expected.end()) differing", ("healing",)),
]
