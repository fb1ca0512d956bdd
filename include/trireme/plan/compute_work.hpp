// The work of an iteration on CPUs by the deck's lengths: operations of products, bytes of decode
// steps. Weighs the choice between bf16 and fp32 (machine/compute_type.hpp).
#pragma once

#include <cstdint>

#include "trireme/plan/job.hpp"

namespace trireme::plan {

struct ComputeWork {
  // Operations of matrix products over many tokens: those of a trainer's passes, of a reward
  // rank's, of the prompts that a generator reads and of the questions that judges read. Attention
  // is not counted.
  double products = 0;
  // Of a generator rank: steps of an iteration, sequences of a step, and elements of its weights,
  // each of which a step reads once and multiplies with all rows.
  double decode_steps = 0;
  int64_t decode_rows = 0;
  double decode_weights = 0;
  // Of a reward rank: elements of judges' weights that the steps of an iteration read.
  double judging_weights = 0;
  // Trainers and generators work at the same time: the longer one counts.
  bool at_once = false;
  bool operator==(const ComputeWork&) const = default;
};
// Answers are as long as mean_lengths() says, and end together.
ComputeWork compute_work(const Job& job);

// Seconds that a processor takes for it: an operation of a product, and an element of the weights
// in a decode step of ComputeWork::decode_rows rows, which those of judges are taken to be, too.
struct ComputeSpeed {
  double product = 0;
  double decode = 0;
};
double seconds_of(const ComputeWork& work, const ComputeSpeed& speed);

}  // namespace trireme::plan
