// The next token of each of several sequences from their logits, on whatever computes them: the
// draws of sampling.hpp as functors (exec.hpp), which wait for nobody between the logits and the
// ids. Across tensor-parallel ranks the slices' summaries are gathered between the two steps:
//
//   summarise   each row's share of the distribution on this rank
//   (gather DrawArguments::summaries, and `slices` where rows are truncated)
//   choose      the id, or what another rank has to say about it
//   (gather DrawArguments::results: the owner's counts)
//
// Greedy and plain draws have the bits of sampling.hpp. Under top-k, top-p or min-p masses are
// added in another order: in double, so that ids differ only where a draw falls within 1e-14 of a
// boundary.
#pragma once

#include <cstdint>

#include "trireme/base/kernel_function.hpp"
#include "trireme/base/token_bias.hpp"
#include "trireme/kernels/log_sum_exp.hpp"

namespace trireme::kernels {

// Part of a step's draws, as it goes to the device. z = logit * scale.
struct DrawRow {
  enum class Kind : int32_t { greedy, plain, truncated };
  const void* kept =
      nullptr;  // this rank's slice of logits of an earlier step; null: row `row` of this one's
  int64_t row = 0;
  double top_p = 1;
  int64_t top_k = 0;  // 0: off
  double min_p = 0;   // 0: off
  float scale = 1;
  float uniform = 0;  // of base::uniform
  Kind kind = Kind::plain;
  int32_t forbidden_first = 0;  // in DrawArguments::forbidden: ids that cannot be drawn
  int32_t forbidden_count = 0;
  int32_t bias_first = 0;  // in DrawArguments::biases: added to logits before
  int32_t bias_count = 0;
  int32_t changed = -1;    // where the copy with both is made; -1: there are none
  int32_t truncated = -1;  // number among the truncated rows; -1: it is none
  float repetition_penalty = 1;
  int32_t seen_first = 0;  // in DrawArguments::seen: ids that it is for, each once
  int32_t seen_count = 0;
};

// One rank's summary of a row's distribution, in units of exp(z - maximum); `full` of the logits as
// they are.
struct DrawSummary {
  double sum = 0, full_sum = 0;
  float max = 0, full_max = 0;
};

struct DrawResult {
  double full_sum = 0;  // of all ids as their logits are, of all ranks
  double kept = 0;      // under truncation: the mass that is left, in units of exp(z - best)
  float full_max = 0;
  float best = 0;
  float z = 0;  // of the id; of this rank's slice where the owner is another
  int32_t id = 0;
  int32_t owner = 0;  // whose id it is
  float full_z = 0;   // of the id without its bias; on the owner
};

// The running sum after a chunk of the vocabulary.
struct DrawRunningSum {
  double sum = 0;
  float max = 0;
  float unused = 0;
};

// Pointers to memory of what computes the draws; scratch belongs to a row (r) each.
struct DrawArguments {
  const void* logits;  // [logit rows][count] fp32, or bf16 as its bits
  bool bf16;
  int64_t count;       // ids of this rank's slice
  int64_t rows;        // draws
  const DrawRow* row;  // [rows]
  const int32_t* forbidden;
  const TokenBias* biases;
  const int32_t* seen;
  int rank, ranks;
  const int64_t* slice_first;  // [ranks + 1] first id of each slice; the last one is the vocabulary
  int64_t chunks;              // of this rank's slice, of vocabulary_chunk ids each
  int64_t slice_stride;        // ids of the longest slice
  int64_t truncated_rows;
  DrawRunningSum* running;  // [rows][chunks]
  float* values;            // [rows][draw_values(chunks)]
  int64_t* places;          // [rows][draw_lanes * chunks]
  double* segments;         // [rows][draw_segments]
  void* changed;            // [changed rows][count]
  void* slices;             // [ranks][truncated rows][slice_stride], where there are several ranks
  DrawSummary* summaries;   // [ranks][rows]
  DrawResult* results;      // [ranks][rows]
};

inline constexpr int64_t draw_lanes = 16;
inline constexpr int64_t draw_segments = 256;
TRIREME_KERNEL inline int64_t draw_chunks(int64_t count) {
  return (count + vocabulary_chunk - 1) / vocabulary_chunk;
}
TRIREME_KERNEL inline int64_t draw_values(int64_t chunks) {
  return chunks * draw_lanes > vocabulary_chunk ? chunks * draw_lanes : vocabulary_chunk;
}

// What starts the two steps; work on a device is not waited for.
struct DrawKernels {
  void (*summarise)(const DrawArguments& arguments);
  void (*choose)(const DrawArguments& arguments);
};
extern const DrawKernels draws_on_host;

}  // namespace trireme::kernels
