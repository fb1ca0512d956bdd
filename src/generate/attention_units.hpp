// Units of attention for the threads of a step. Legend: M rows of the step.
#pragma once

#include <cstdint>
#include <vector>

#include "step_backend.hpp"

namespace trireme::generate {

// Neighbouring rows of one sequence and one KV head.
struct AttentionUnit {
  size_t sequence = 0;
  int64_t first_row = 0;  // of the step
  int64_t rows = 0;
  int64_t kv_head = 0;
  int64_t keys = 0;    // that its first row sees
  int64_t chunks = 0;  // of the keys that its last row sees (kernels/decode_attention.hpp)
};

struct AttentionUnits {
  struct Part {
    size_t unit = 0;
    int64_t chunk = 0;
  };
  std::vector<AttentionUnit> units;  // those with most keys first
  std::vector<Part> parts;  // chunks of the units, where these would leave threads idle; else empty
};

// `together` rows of a sequence at most are one unit. In parts: only where M is not above
// `most_rows_in_parts`.
inline constexpr int64_t most_rows_in_parts = 32;
AttentionUnits share_attention(const StepBatch& batch, int64_t kv_heads, int threads,
                               int64_t together);

// Calls of(i) for those of `count` pieces of work that are `thread`'s: they are dealt out to and
// fro, so that pieces in falling order of cost give all threads about the same.
template <class Of>
void deal(int64_t count, int thread, int threads, Of&& of) {
  for (int64_t first = 0, round = 0; first < count; first += threads, ++round) {
    const int64_t i = first + (round % 2 == 0 ? thread : threads - 1 - thread);
    if (i < count) of(i);
  }
}

}  // namespace trireme::generate
