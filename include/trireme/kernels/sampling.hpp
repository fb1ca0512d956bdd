// Sampling from one row of logits, independent of batch and threads. The row (a rank's slice of the
// vocabulary) is read in chunks of vocabulary_chunk, exactly as the trainer's token_log_probs reads
// it (log_sum_exp.hpp), so log-probs have the trainer's bits. A draw is the inverse of the
// distribution function in id order. z = logit * scale, scale = 1 / temperature. Logits are fp32,
// or bf16 where the model computes in bf16.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/kernels/decode_gemm.hpp"
#include "trireme/kernels/log_sum_exp.hpp"

namespace trireme::kernels {

struct LogitsRow {
  ElementType type = ElementType::f32;
  const void* data = nullptr;
  int64_t count = 0;

  float operator[](int64_t i) const;
};

// The running log-sum-exp after each chunk; the last one is the row's.
void accumulate(const LogitsRow& row, float scale, std::vector<LogSumExp>& after);

// The lowest index that has the largest logit.
int64_t argmax(const LogitsRow& row);

// The sum of several slices, in their order; one slice comes back unchanged.
LogSumExp combine(std::span<const LogSumExp> slices);

// The slice in which the distribution function passes uniform * (sum of all), and the mass to pass
// inside it in units of exp(z - maximum of the slice).
struct SliceChoice {
  size_t slice = 0;
  double target = 0;
};
SliceChoice choose_slice(std::span<const LogSumExp> slices, const LogSumExp& total, float uniform);
// The index inside the slice; `after` from accumulate().
int64_t choose_index(const LogitsRow& row, float scale, std::span<const LogSumExp> after,
                     double target);

struct Candidate {
  float z = 0;
  int32_t id = 0;
  bool operator==(const Candidate&) const = default;
};
// Appends the ids (first_id + index) with z >= threshold, in id order.
void collect_candidates(const LogitsRow& row, int64_t first_id, float scale, float threshold,
                        std::vector<Candidate>& out);

// What top-k and top-p keep. Candidates are ordered by z, largest first, equal ones by id, lowest
// first. top_k (0: off) keeps the first k; top_p keeps the shortest prefix of those whose
// probability, renormalised after top-k (as transformers' TopPLogitsWarper does after
// TopKLogitsWarper), reaches top_p, and at least one.
// Of these min_p keeps the ids with at least so large a share of the likeliest one's probability
// (transformers' MinPLogitsWarper, which comes after the two).
struct Truncation {
  double top_p = 1;
  int64_t top_k = 0;
  double min_p = 0;
  bool active(int64_t vocabulary) const {
    return top_p < 1 || (top_k > 0 && top_k < vocabulary) || min_p > 0;
  }
};
// A logit under a repetition penalty (transformers' RepetitionPenaltyLogitsProcessor; Keskar et al.
// 2019, arXiv 1909.05858).
inline float penalized(float logit, float penalty) {
  return logit < 0 ? logit * penalty : logit / penalty;
}
// True when `candidates`, all ids with z of at least `threshold`, contain every id that the
// truncation keeps.
bool sufficient(std::span<const Candidate> candidates, const Truncation& truncation,
                const LogSumExp& total, float threshold);

struct TruncatedDraw {
  int32_t id = 0;
  float z = 0;
  float log_prob = 0;  // under the truncated distribution
};
// Inverse of the truncated distribution function in id order. `candidates` are sufficient and not
// empty; `total` is the sum of the whole row.
TruncatedDraw draw_truncated(std::vector<Candidate> candidates, const Truncation& truncation,
                             const LogSumExp& total, float uniform);

}  // namespace trireme::kernels
