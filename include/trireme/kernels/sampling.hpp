// Sampling from logits, independent of batch, threads and rank counts: the vocabulary is cut into fixed chunks; each chunk
// is summarised by its maximum and its sum of exponentials in one fixed order; a draw is the inverse of the distribution
// function in id order. Logits are divided by the temperature in fp32, z = logit / temperature.
// Legend: V vocabulary; ids are global token ids.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trireme::kernels {

inline constexpr int64_t vocabulary_chunk = 1024;

struct ChunkSummary {
  float maximum = 0;   // of z
  float sum = 0;       // of exp(z - maximum)
  int32_t argmax = 0;  // lowest id that has the maximum
};

// Chunks that rows [first, last) of the vocabulary touch, cut at multiples of vocabulary_chunk.
struct ChunkRange {
  int64_t first = 0;
  int64_t last = 0;
};
std::vector<ChunkRange> vocabulary_chunks(int64_t first, int64_t last);

// logits [range.last - range.first] of the ids of `range`.
ChunkSummary summarise_chunk(const float* logits, ChunkRange range, float temperature);

struct LogSumExp {
  float maximum = 0;
  double sum = 0;  // of exp(z - maximum)
  double value() const;
};
LogSumExp combine(std::span<const ChunkSummary> chunks);

// The chunk in which the distribution function passes uniform * total, and how much of the mass lies in chunks before it.
struct ChunkChoice {
  size_t chunk = 0;
  double target = 0;  // mass to pass inside the chunk, in units of exp(z - chunk maximum)
};
ChunkChoice choose_chunk(std::span<const ChunkSummary> chunks, const LogSumExp& total, float uniform);
// The id inside the chunk.
int32_t choose_id(const float* logits, ChunkRange range, float temperature, float chunk_maximum, double target);

struct Candidate {
  float z = 0;
  int32_t id = 0;
  bool operator==(const Candidate&) const = default;
};
// Appends the ids of `range` with z >= threshold, in id order.
void collect_candidates(const float* logits, ChunkRange range, float temperature, float threshold, std::vector<Candidate>& out);

// What top-k and top-p keep. Candidates are ordered by z, largest first, equal ones by id, lowest first. top_k (0: off)
// keeps the first k; top_p keeps the shortest prefix of those whose probability, renormalised after top-k (as
// transformers' TopPLogitsWarper does after TopKLogitsWarper), reaches top_p, and at least one.
struct Truncation {
  double top_p = 1;
  int64_t top_k = 0;
  bool active(int64_t vocabulary) const { return top_p < 1 || (top_k > 0 && top_k < vocabulary); }
};
// True when `candidates` (all with z >= some threshold) contain every id that the truncation keeps.
bool sufficient(std::span<const Candidate> candidates, const Truncation& truncation, const LogSumExp& total);

struct TruncatedDraw {
  int32_t id = 0;
  float z = 0;
  float log_prob = 0;  // under the truncated distribution
};
TruncatedDraw draw_truncated(std::vector<Candidate> candidates, const Truncation& truncation, const LogSumExp& total, float uniform);

}  // namespace trireme::kernels
