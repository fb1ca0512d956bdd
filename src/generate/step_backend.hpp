// What the scheduler asks of the hardware: one forward pass over rows of several sequences. Rows of a sequence are
// consecutive positions; a decoding sequence has one row, a prefilling one a chunk.
// Legend: M rows of the step, V vocabulary rows of this rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/generate/engine.hpp"
#include "trireme/kernels/sampling.hpp"

namespace trireme::generate {

struct SequenceRows {
  std::span<const int32_t> pages;  // of the positions from 0 on; all positions of the rows have one
  int64_t first_position = 0;
  int64_t rows = 0;
};

struct StepBatch {
  std::vector<int32_t> ids;             // [M]
  std::vector<int64_t> positions;       // [M]
  std::vector<SequenceRows> sequences;  // in order of rows
  std::vector<int32_t> logit_rows;      // rows whose logits are wanted

  int64_t rows() const { return static_cast<int64_t>(ids.size()); }
};

class StepBackend {
 public:
  virtual ~StepBackend() = default;
  // Tokens of a sequence can be up to this long from now on.
  virtual void reserve_positions(int64_t positions) = 0;
  // Writes keys and values of all rows into their pages and computes the logits of `logit_rows`: one row each of this
  // rank's slice of the vocabulary, in host memory, valid until the next call. Collective over the tensor-parallel ranks.
  virtual std::vector<kernels::LogitsRow> forward(const StepBatch& batch) = 0;
  virtual void copy_page(int32_t from, int32_t to) = 0;
  // Gives the cache memory back; contents are lost.
  virtual void release_cache() = 0;
  // Brings its own counters up to date.
  virtual void report(EngineCounters& counters) const = 0;
  virtual std::vector<std::string> describe() const = 0;
  // Why log-probs may differ from the trainer's in their bits, a few words each; empty: they are the same.
  virtual std::vector<std::string> differences() const = 0;
};

}  // namespace trireme::generate
