// From raw rewards to one shaped number per sequence: length penalties, then the group baseline
// (OpenRLHF: length_penalty.py, experience_maker.py; the clip comes later, in token_rewards). Plain
// vectors over the whole rollout, N = prompts x n, in prompt order, n consecutive samples = one
// group: every rank has them all and computes the same.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "trireme/config/options.hpp"

namespace trireme::ppo {

struct LengthPenalty {
  std::optional<int64_t> overlong_buffer;  // tokens; none: no penalty
  double overlong_factor = 1;
  int64_t max_new_tokens = 0;                // limit that the buffer ends at
  std::optional<double> stop_properly_coef;  // none: no penalty for truncated samples
};

// Facts about all samples of a rollout, [N] each.
struct RewardTable {
  std::vector<float> reward;                   // raw
  std::vector<int64_t> response_length;        // tokens, last - first action + 1; of an episode
                                               // the actions of its longest turn
  std::vector<uint8_t> truncated;              // 1: stopped by a limit, or an episode that broke
  std::vector<std::vector<float>> parts = {};  // [sources][N], for estimators by source
};

// F8. Overlong: e = min(length - (max_new_tokens - buffer), buffer); e > 0 adds -e / buffer *
// factor. Then truncated samples: coefficient c < 0 sets the reward to c, 0 <= c <= 1 multiplies by
// it; c > 1 throws UserError(configuration).
std::vector<float> apply_length_penalties(const RewardTable& table, const LengthPenalty& penalty);

// F9, F43, F44: the rewards of one group, of any size, in place; those of all samples for an
// estimator that compares the batch.
void compare_group(std::span<float> rewards, config::Estimator estimator);
// The same of each group; n divides the number of rewards.
std::vector<float> apply_baseline(std::span<const float> rewards, config::Estimator estimator,
                                  int64_t n);
// Standard deviation (n - 1 in the denominator) of each sample's group, [N]; 0 where n = 1.
std::vector<float> group_std(std::span<const float> rewards, int64_t n);

// F43 (GDPO, arXiv 2601.05242): each source's rewards are compared on their own, then added with
// its weight. parts [sources][N].
std::vector<float> compare_by_source(const std::vector<std::vector<float>>& parts,
                                     std::span<const double> weights, config::Estimator estimator,
                                     int64_t n);
// (s - mean) / (standard deviation + 1e-4) over all sequences, with n - 1 in the deviation (TRL).
void whiten_sequences(std::span<float> shaped);

struct ShapedRewards {
  std::vector<float> after_penalty;  // [N]
  std::vector<float> shaped;         // after the baseline, before the clip
  std::vector<float> group_std;      // of the rewards after the penalties
};
// `source_weights`: of the table's parts, for estimators by source, to which a length penalty is
// one more source of weight 1.
ShapedRewards shape_rewards(const RewardTable& table, const LengthPenalty& penalty,
                            config::Estimator estimator, int64_t n,
                            std::span<const double> source_weights = {});

// DAPO's dynamic sampling: whether a group's mean reward lies strictly inside the range, so that it
// has something to teach.
bool keep_group(std::span<const float> rewards, const config::Range& range);

// The deck's settings; max_new_tokens: rollout.max_new_tokens, else data.max_len as in OpenRLHF.
LengthPenalty length_penalty(const config::Options& options);

}  // namespace trireme::ppo
