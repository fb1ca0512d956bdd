// The experience of one rollout on one trainer rank, and the pipeline from rewards to advantages.
// Legend: B local sequences, T their packed tokens (prompt and response), N sequences of the whole
// rollout.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/config/options.hpp"
#include "trireme/ppo/advantages.hpp"
#include "trireme/ppo/losses.hpp"
#include "trireme/ppo/packed.hpp"
#include "trireme/ppo/rewards.hpp"

namespace trireme::ppo {

// Host tensors, one column per token: column t is about token t (its log-prob, the value at the
// position before it). Owns them.
struct Experience {
  Samples samples;
  Segments segments;
  at::Tensor mask;               // u8 [T]
  at::Tensor rollout_log_probs;  // f32 [T], by the generator
  at::Tensor sample_log_probs;   // f32 [T], by the generator, of what top-p and top-k left;
                                 // undefined where they were off
  at::Tensor
      old_log_probs;  // f32 [T], by the trainer before the first step; undefined until evaluated
  at::Tensor ref_log_probs;  // f32 [T]; undefined without a reference
  at::Tensor values;         // f32 [T]; undefined without a critic
  at::Tensor advantages;     // f32 [T], set by advantages()
  at::Tensor returns;        // f32 [T], set by advantages()

  // Takes rollout log-probs from the samples, and whatever later column is filled there.
  static Experience from(Samples samples);
  // The samples with all columns that are defined here: from() makes the same experience of them.
  Samples to_samples() const;
  int64_t sequences() const { return samples.size(); }
  int64_t tokens() const { return samples.tokens(); }
  // The sequences named, in that order: a micro-batch.
  Experience select(std::span<const int64_t> rows) const;
};

// Tokens that weights of more than `bound` versions before `version` wrote are no actions any more:
// nothing is learned from them. How many.
int64_t mask_older_than(Experience& experience, int64_t bound, int64_t version);
// The same of answers that the length limit ended (DAPO, arXiv 2503.14476, section 3.4).
int64_t mask_truncated(Experience& experience);
// Tokens from the first to the last action, per sequence; 0 without actions (F4).
std::vector<int64_t> response_lengths(const Samples& samples);
// F4, is_clipped per sequence: it has max_len tokens, whatever ended it (its last token may be the
// end token).
std::vector<uint8_t> clipped(const Samples& samples, int64_t max_len);
// Action tokens per sequence, without those between two turns.
std::vector<int64_t> action_counts(const Samples& samples);
// Counts of scored samples for step_normalizer().
std::vector<CountedSequence> counted_sequences(const Samples& samples);
// This rank's part of the table: raw rewards, lengths, truncated = stopped by length. The caller
// gathers the parts in id order.
RewardTable reward_table(const Samples& samples);

struct PipelineOptions {
  config::Estimator estimator = config::Estimator::gae;
  int64_t n_samples_per_prompt = 1;
  LengthPenalty penalty;
  std::optional<config::Range> clip_range;
  double kl_coef = 0;  // the controller's current one
  config::KlEstimator kl_estimator = config::KlEstimator::k1;
  bool kl_in_loss = false;  // then the token rewards have no KL part
  GaeOptions gae;
  bool no_std_norm = false;
  bool turn_rewards = true;  // at the ends of their turns; false: all at the end of the episode
  std::vector<double> source_weights = {};  // of reward sources
  config::DistillOptions distill = {};      // coef 0: the reference is no teacher

  // Sources whose numbers the estimator compares on their own.
  size_t parts() const {
    return config::traits(estimator).by_source ? source_weights.size() : size_t{0};
  }
};
PipelineOptions pipeline_options(const config::Options& options, double kl_coef);

// Observations of the pipeline, per local sequence [B]; means over ranks are the caller's.
struct PipelineReport {
  std::vector<float> reward;         // raw
  std::vector<float> shaped_reward;  // after penalties and baseline
  std::vector<float> group_std;
  std::vector<float> kl;       // mean over actions of the KL to the reference; 0 without actions
  std::vector<float> returns;  // sum of the token rewards
  at::Tensor token_rewards;    // f32 [T]
};

// The second half of advantages(): clip, KL penalty, returns or GAE, whitening, of the sequences
// whose rewards are in report.shaped_reward. Collective through `sum`.
void spread_rewards(Experience& experience, PipelineReport& report, const PipelineOptions& options,
                    const Sum& sum);

// Length penalties, group baseline, clip, KL penalty, returns or GAE, whitening, in this order
// (F8-F15; OpenRLHF: RemoteExperienceMaker.make_experience_batch). Sets advantages and returns.
// `table` describes all N sequences of the rollout in id order, `rows` [B] says which of them are
// this rank's. Needs old_log_probs; ref_log_probs unless the coefficient is 0; values for gae.
// Collective through `sum`.
PipelineReport advantages(Experience& experience, const RewardTable& table,
                          std::span<const int64_t> rows, const PipelineOptions& options,
                          const Sum& sum);

}  // namespace trireme::ppo
