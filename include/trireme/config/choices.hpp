// The words that deck keys choose from. Each enum lists its words in the order of its enumerators;
// parsing, dumping, `--help` and the documentation take them from here.
#pragma once

#include <cstddef>
#include <iterator>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>

#include "trireme/base/element_type.hpp"
#include "trireme/base/log_level.hpp"
#include "trireme/config/estimators.hpp"
#include "trireme/config/policy_losses.hpp"
#include "trireme/config/preference_losses.hpp"

namespace trireme::config {

template <class E>
struct Words;  // specialised per enum: `static constexpr std::string_view list[]`

template <class E>
constexpr std::string_view to_string(E value) {
  return Words<E>::list[static_cast<size_t>(value)];
}

// The enumerator of a word; none for other words.
template <class E>
constexpr std::optional<E> choice_of(std::string_view word) {
  for (size_t i = 0; i < std::size(Words<E>::list); ++i) {
    if (Words<E>::list[i] == word) return static_cast<E>(i);
  }
  return std::nullopt;
}

enum class Command { ppo, sft, rm, dpo };
template <>
struct Words<Command> {
  static constexpr std::string_view list[] = {"ppo", "sft", "rm", "dpo"};
};

enum class Device { automatic, cpu, cuda };
template <>
struct Words<Device> {
  static constexpr std::string_view list[] = {"auto", "cpu", "cuda"};
};

// base::Isa by its word, or the best one there is.
enum class InstructionSet { automatic, avx512_bf16, avx512, avx2, portable };
template <>
struct Words<InstructionSet> {
  static constexpr std::string_view list[] = {"auto", "avx512_bf16", "avx512", "avx2", "portable"};
};

// How far a stop request lets an iteration go: to its next optimizer step, or to its end.
enum class StopWithin { step, iteration };
template <>
struct Words<StopWithin> {
  static constexpr std::string_view list[] = {"step", "iteration"};
};

// What generates on CPUs: kernels of our own, or LibTorch's operations.
enum class GenerateBackend { automatic, fused, torch };
template <>
struct Words<GenerateBackend> {
  static constexpr std::string_view list[] = {"auto", "fused", "torch"};
};

// What generation multiplies with: the weights in the compute type, or copies in 8 bits.
enum class RolloutWeights { model, int8 };
template <>
struct Words<RolloutWeights> {
  static constexpr std::string_view list[] = {"model", "int8"};
};

// How a tool runs a model with an adapter: beside the weights, added to them, or not at all.
enum class AdapterForm { apart, merged, disabled };
template <>
struct Words<AdapterForm> {
  static constexpr std::string_view list[] = {"apart", "merged", "disabled"};
};

using DType = base::ElementType;
template <>
struct Words<DType> {
  static constexpr std::string_view list[] = {"fp32", "bf16"};
};
constexpr int bytes_per_element(DType dtype) { return static_cast<int>(base::size_of(dtype)); }

// The deck's choice of the type in which models compute. `automatic` is settled before the first
// model is made (machine/compute_type.hpp); compute_type() takes settled values only.
enum class ComputeType { automatic, fp32, bf16 };
template <>
struct Words<ComputeType> {
  static constexpr std::string_view list[] = {"auto", "fp32", "bf16"};
};
constexpr ComputeType to_choice(DType dtype) {
  return dtype == DType::f32 ? ComputeType::fp32 : ComputeType::bf16;
}
constexpr DType compute_type(ComputeType choice) {
  if (choice == ComputeType::automatic)
    throw std::logic_error("the compute type is used before it is settled");
  return choice == ComputeType::fp32 ? DType::f32 : DType::bf16;
}

// The type of the product with the language-model head, and so of the logits: the compute type, or
// fp32 from weights and hidden states in that type.
enum class HeadType { model, fp32 };
template <>
struct Words<HeadType> {
  static constexpr std::string_view list[] = {"model", "fp32"};
};

// Whether each thread of a rank keeps to one core: where the rank has cores of its own that the
// launcher gave it, or never.
enum class PinThreads { automatic, never };
template <>
struct Words<PinThreads> {
  static constexpr std::string_view list[] = {"auto", "never"};
};

// Whether a run starts that plans more memory than there is.
enum class MemoryCheck { refuse, warn };
template <>
struct Words<MemoryCheck> {
  static constexpr std::string_view list[] = {"refuse", "warn"};
};

using LogLevel = log::Level;
template <>
struct Words<LogLevel> {
  static constexpr std::string_view list[] = {"debug", "info", "warning", "error"};
};

// Length of the schedule: all optimizer steps of the run; warm-up rises linearly from 0
// (parity/README.md, LR).
enum class LrScheduler { cosine_with_min_lr, linear, constant_with_warmup };
template <>
struct Words<LrScheduler> {
  static constexpr std::string_view list[] = {"cosine_with_min_lr", "linear",
                                              "constant_with_warmup"};
};

// Whether the trainer computes the log-probs of the policy that sampled again, or takes the
// generator's where they are the same bits.
enum class OldLogProbs { automatic, always };
template <>
struct Words<OldLogProbs> {
  static constexpr std::string_view list[] = {"auto", "always"};
};

// Whether the ranks of a node read weights where their trainers have them, exchange them through
// memory that they share, or by messages.
enum class SharedMemory { automatic, buckets, never };
constexpr bool shares(SharedMemory how) { return how != SharedMemory::never; }
template <>
struct Words<SharedMemory> {
  static constexpr std::string_view list[] = {"auto", "buckets", "never"};
};

// F22, F30: how the losses of tokens become the loss of an optimizer step. A mean over all its
// action tokens, a mean over sequences of their token means, sums, or the sum over a fixed number
// of tokens for each sequence.
enum class LossAggregation {
  token_mean,
  seq_mean_token_mean,
  token_sum,
  seq_mean_token_sum,
  seq_mean_token_sum_norm
};
template <>
struct Words<LossAggregation> {
  static constexpr std::string_view list[] = {"token-mean", "seq-mean-token-mean", "token-sum",
                                              "seq-mean-token-sum", "seq-mean-token-sum-norm"};
};

// The words of a table's lines.
template <const auto& table>
struct WordsOfTable {
  static constexpr auto list = [] {
    std::array<std::string_view, std::size(table)> words{};
    for (size_t i = 0; i < words.size(); ++i) words[i] = table[i].word;
    return words;
  }();
};
template <>
struct Words<PolicyLoss> : WordsOfTable<policy_loss_table> {};
template <>
struct Words<Estimator> : WordsOfTable<estimator_table> {};
template <>
struct Words<DpoLoss> : WordsOfTable<dpo_loss_table> {};

// F53, F54: how advantages pass the tokens between two turns of the policy: as if these were not
// there, or as tokens with reward and value 0.
enum class AdvantageGaps { skip, decay };
template <>
struct Words<AdvantageGaps> {
  static constexpr std::string_view list[] = {"skip", "decay"};
};

// F40: the tokens of ORPO's language-model loss, of the chosen side.
enum class OrpoNll { sequence, response };
template <>
struct Words<OrpoNll> {
  static constexpr std::string_view list[] = {"sequence", "response"};
};

// F45: a teacher's part in ppo. advantage: the log-ratio at sampling, negated, is added to the
// advantages; policy_gradient: the current one, clipped; k2, k3: F7 of it is added to the loss;
// distribution: the divergence of whole distributions (F46, F47) is.
enum class DistillPolicy { advantage, policy_gradient, k2, k3, distribution };
template <>
struct Words<DistillPolicy> {
  static constexpr std::string_view list[] = {"advantage", "policy_gradient", "k2", "k3",
                                              "distribution"};
};

// F47: whose most likely tokens a distillation looks at, and what becomes of the others' mass: left
// out, one more token, or both distributions are divided by their mass on these.
enum class DistillSupport { teacher, student };
template <>
struct Words<DistillSupport> {
  static constexpr std::string_view list[] = {"teacher", "student"};
};
enum class DistillRest { tail, renormalise, none };
template <>
struct Words<DistillRest> {
  static constexpr std::string_view list[] = {"tail", "renormalise", "none"};
};

// F7
enum class KlEstimator { k1, k2, k3 };
template <>
struct Words<KlEstimator> {
  static constexpr std::string_view list[] = {"k1", "k2", "k3"};
};

// F19-F21: correction for the difference between rollout and training policy. `custom` takes level,
// mode and gating from their own keys.
enum class CorrectionType { tis, icepop, seq_mask_tis, custom };
template <>
struct Words<CorrectionType> {
  static constexpr std::string_view list[] = {"tis", "icepop", "seq-mask-tis", "custom"};
};
// segment: the tokens of a sequence that one version of the weights wrote.
enum class CorrectionLevel { token, sequence, segment };
template <>
struct Words<CorrectionLevel> {
  static constexpr std::string_view list[] = {"token", "seq", "segment"};
};
enum class CorrectionMode { clip, mask };
template <>
struct Words<CorrectionMode> {
  static constexpr std::string_view list[] = {"clip", "mask"};
};
// The quantity that the threshold bounds: the weight itself (its geometric mean at sequence level),
// or a divergence of the two.
enum class CorrectionGate { ratio, binary_kl, tv };
template <>
struct Words<CorrectionGate> {
  static constexpr std::string_view list[] = {"ratio", "binary_kl", "tv"};
};

// Which groups of partial rollouts an iteration learns from: those that were drawn first, or those
// that are finished first.
enum class PartialRolloutOrder { drawn, finished };
template <>
struct Words<PartialRolloutOrder> {
  static constexpr std::string_view list[] = {"drawn", "finished"};
};

// Keys and values of answers that were begun with older weights: computed again with the new ones,
// or kept.
enum class PartialRolloutKv { recompute, keep };
template <>
struct Words<PartialRolloutKv> {
  static constexpr std::string_view list[] = {"recompute", "keep"};
};

// What dynamic filtering does about an iteration that stays short of prompts: draws on, learns from
// fewer, or stops the run.
enum class FilteringShortage { draw_on, smaller, stop };
template <>
struct Words<FilteringShortage> {
  static constexpr std::string_view list[] = {"draw_on", "smaller", "stop"};
};

enum class RewardKind { rule, model, plugin, judge };
template <>
struct Words<RewardKind> {
  static constexpr std::string_view list[] = {"rule", "model", "plugin", "judge"};
};

// Which match of a judge's score pattern counts.
enum class ScoreMatch { first, last };
template <>
struct Words<ScoreMatch> {
  static constexpr std::string_view list[] = {"first", "last"};
};

// How a judge's votes become one score: mean, median, or the most frequent one (the mean of several
// that tie).
enum class VoteRule { mean, median, majority };
template <>
struct Words<VoteRule> {
  static constexpr std::string_view list[] = {"mean", "median", "majority"};
};

// Consequences of a request that a plugin or an environment does not answer: end, go on asking, or
// do without its prompt, or the rest of its episode.
enum class PluginOutage { stop, wait, skip };
template <>
struct Words<PluginOutage> {
  static constexpr std::string_view list[] = {"stop", "wait", "skip"};
};

// How tool calls are found in a turn of the policy, for the environment: not at all, as JSON in
// <tool_call> tags (Hermes, Qwen), as the turn's JSON (Llama 3), or by environment.tool_pattern.
enum class ToolCalls { none, hermes, llama3, regex };
template <>
struct Words<ToolCalls> {
  static constexpr std::string_view list[] = {"none", "hermes", "llama3", "regex"};
};

// F52: where the reward of a turn counts: on its last action token, or the sum of all turns on the
// episode's last one.
enum class TurnRewards { turns, last };
template <>
struct Words<TurnRewards> {
  static constexpr std::string_view list[] = {"turns", "last"};
};

// `math` follows math-verify, `math_verl` the graders of verl; `none`: the rule scores only the
// format and the length.
enum class Rule { exact, regex, number, boxed, math, math_verl, none };
template <>
struct Words<Rule> {
  static constexpr std::string_view list[] = {"exact", "regex",     "number", "boxed",
                                              "math",  "math_verl", "none"};
};

// Whether the tokens that the tokenizer puts around a text (BOS, EOS) are put around one that has
// them.
enum class AddSpecialTokens { once, always, never };
template <>
struct Words<AddSpecialTokens> {
  static constexpr std::string_view list[] = {"once", "always", "never"};
};

enum class Overlong { skip, stop };
template <>
struct Words<Overlong> {
  static constexpr std::string_view list[] = {"skip", "stop"};
};

enum class SaveHf { never, end, checkpoint };
template <>
struct Words<SaveHf> {
  static constexpr std::string_view list[] = {"never", "end", "checkpoint"};
};

// How much of the optimizer's state may wait for a save in the background as a copy.
enum class CopyAside { stage, all };
template <>
struct Words<CopyAside> {
  static constexpr std::string_view list[] = {"stage", "all"};
};

enum class PreferenceLoss { sigmoid, logexp };
template <>
struct Words<PreferenceLoss> {
  static constexpr std::string_view list[] = {"sigmoid", "logexp"};
};

}  // namespace trireme::config
