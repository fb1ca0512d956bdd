// Totals of all generators' engines since this program was started, from what its iterations
// report.
#pragma once

#include <string>

#include "trireme/report/iteration_metrics.hpp"

namespace trireme::report {

struct GenerationTotals {
  double tokens = 0;      // of answers
  double stepped = 0;     // of them, without those that were guessed
  double slot_steps = 0;  // tokens that there was room for, beside guesses
  double seconds = 0;     // of an engine on average, in its steps
  double preemptions = 0;
  double shared_tokens = 0;   // of prompts, that others had computed
  double dropped_tokens = 0;  // of answers that were begun again (rollout.over_sampling)

  void add(const IterationMetrics& metrics);
  // Words for the end of the log, and an object for summary.json; empty where nothing was written.
  std::string describe() const;
  std::string to_json() const;
};

}  // namespace trireme::report
