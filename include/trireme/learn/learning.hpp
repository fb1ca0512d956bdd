// An iteration's learning as far as it has come, as one trainer has it.
#pragma once

#include "trireme/learn/mismatch.hpp"
#include "trireme/learn/update_step.hpp"
#include "trireme/ppo/experience.hpp"

namespace trireme::learn {

// Sums over a trainer's sequences that go into the metrics.
struct PipelineTotals {
  double kl = 0;
  double group_std = 0;
  double returns = 0;
  double sequences = 0;
  double masked_tokens = 0;  // by algo.advantage.mask_older_than and mask_truncated
};
PipelineTotals totals_of(const ppo::PipelineReport& report);

// An iteration's learning on this trainer as far as it has come: the state before the first
// optimizer step, and the sums of those done.
struct Learning {
  ppo::Experience experience;
  Mismatch mismatch;
  PipelineTotals pipeline;
  UpdateReport update;
  bool left = false;  // a stop came before all log-probs and values were there: there is nothing to
                      // learn with
};

}  // namespace trireme::learn
