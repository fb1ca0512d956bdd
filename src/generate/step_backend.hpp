// The engine's interface to the hardware: one forward pass over rows of several sequences, and the
// tokens that follow. Rows of a sequence are consecutive positions; a decoding sequence has one
// row, a prefilling one a chunk. Legend: M rows of the step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "draw.hpp"
#include "trireme/generate/engine.hpp"

namespace trireme::generate {

struct SequenceRows {
  // Of the positions from 0 on; those that no layer sees any more may have none.
  std::span<const int32_t> pages;
  int64_t first_position = 0;
  int64_t rows = 0;
  int64_t length = 0;    // of the sequence, with tokens that are not computed yet
  int32_t adapter = -1;  // Request::adapter
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
  // Writes keys and values of all rows into their pages, computes the logits of `logit_rows` and
  // draws a token for each request, the same on every rank. Collective over the tensor-parallel
  // ranks.
  virtual std::vector<Drawn> step(const StepBatch& batch, std::span<const DrawRequest> draws) = 0;
  // A copy of row `row` of the last step's logits, for a later draw.
  virtual KeptLogits keep(int64_t row) = 0;
  virtual void copy_page(int32_t from, int32_t to) = 0;
  // Whether steps without prompts are recorded, so that the host starts them as one.
  virtual bool records_steps() const { return false; }
  // Gives the cache memory back; contents are lost.
  virtual void release_cache() = 0;
  // Brings its own counters up to date.
  virtual void report(EngineCounters& counters) const = 0;
  virtual std::vector<std::string> describe() const = 0;
  // Why log-probs may differ from the trainer's in their bits, a few words each; empty: they are
  // the same.
  virtual std::vector<std::string> differences() const = 0;
};

}  // namespace trireme::generate
