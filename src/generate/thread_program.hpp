// The operations of a model, ordered for a team of threads: which of them a thread does in one go,
// how the threads share each, and where they must meet. Made once; the same list for every step.
// Legend: M rows of the step, D hidden.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/generate/weights.hpp"
#include "trireme/model/spec.hpp"

namespace trireme::generate {

// Buffers of the steps: those that only this engine has, and the model's values.
enum class Buffer : uint8_t {
  cache,         // keys and values in pages
  partials,      // [ranks, M, width of the sum] fp32, tensor parallel only
  selected,      // the final rows whose logits are wanted
  selected_low,  // of an adapter of the head (model::Stage::low)
  logits,
  low_logits,  // what that adapter adds
  values       // the first of the model's
};
// Has the rows whose logits are wanted, not all of the step.
constexpr bool is_of_logits(Buffer buffer) {
  return buffer >= Buffer::selected && buffer <= Buffer::low_logits;
}
constexpr bool holds_logits(Buffer buffer) {
  return buffer == Buffer::logits || buffer == Buffer::low_logits;
}
constexpr Buffer buffer_of(model::Value value) {
  return static_cast<Buffer>(static_cast<uint8_t>(Buffer::values) + value.id);
}
constexpr size_t index_of(Buffer buffer) { return static_cast<size_t>(buffer); }

struct ProgramLinear {
  size_t weight = 0;  // parameter
  int64_t bias = -1;  // parameter, -1: none
  int64_t k = 0;      // inputs on this rank
  int64_t n = 0;      // outputs on this rank
  Buffer in = {};
  Buffer out = {};
};

enum class PhaseKind : uint8_t {
  look_up,    // rows
  operation,  // of the model, as its division allows
  linears,    // columns of several linears, shared as one; or rows
  columns,    // columns of one linear: equal ones of neighbouring steps; or rows
  sum,        // out = the sum of the ranks' partials; rows
  store,      // keys and values into their pages; rows, or heads
  attend,     // rows and KV heads
  select,     // rows of the logits
  add_logits  // out += other; rows of the logits
};

// How the threads do what is done row by row.
enum class RowWork : uint8_t {
  shared,    // each row is one thread's
  repeated,  // every thread does all rows in copies of its own, and meets less often: for few rows
  whole  // each row is one thread's, and all outputs of its products: for many rows, and kernels
         // that pack rows rather than weights
};
inline constexpr size_t row_works = static_cast<size_t>(RowWork::whole) + 1;

struct Phase {
  PhaseKind kind = PhaseKind::operation;
  model::Operation operation = model::Spread{};  // of kinds operation, look_up and attend
  Buffer in = {};
  Buffer other = {};
  Buffer out = {};
  int layer = -1;
  model::Division division = model::Division::rows;  // heads: where row work is repeated, a
                                                     // sequence and KV head is one thread's
  size_t weight = 0;                                 // parameter
  std::array<size_t, 4> numbers{};                   // parameters of Activate
  size_t first = 0;                                  // of ThreadProgram::linears
  size_t count = 0;
  int64_t width = 0;  // of kinds sum and look_up: elements of a row
  std::array<bool, row_works>
      meet{};  // before it, since it reads what other threads wrote or writes what they read

  // Products whose rows may be dealt out; those of the logits are of few rows.
  bool of_all_rows() const { return !is_of_logits(out); }
  bool meets(RowWork work) const { return meet[static_cast<size_t>(work)]; }
};

struct ThreadProgram {
  std::vector<ProgramLinear> linears;
  std::vector<Phase> phases;
  std::vector<int64_t> width;  // by buffer: elements of a row; 0: has none
  std::vector<bool> copied;    // by buffer: every thread has one, where row work is repeated

  bool repeats(const Phase& phase) const { return copied[index_of(phase.out)]; }
  int meetings(int layer, RowWork work) const;  // of all threads in one layer
};

// For the rank whose slices `weights` holds.
ThreadProgram make_thread_program(const model::ModelSpec& spec, const GeneratorWeights& weights);

}  // namespace trireme::generate
