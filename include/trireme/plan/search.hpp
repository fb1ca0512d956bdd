// Which settings of a deck fit a machine and, by the time model, take the shortest iteration.
#pragma once

#include <string>
#include <vector>

#include "trireme/plan/admission.hpp"
#include "trireme/plan/job.hpp"
#include "trireme/plan/time_model.hpp"

namespace trireme::plan {

struct Candidate {
  std::string deck;  // overrides as the command line takes them: "ranks.trainer=16
                     // generate.tensor_parallel=8 ..."
  Fit fit;
  IterationTime time;
};

struct SearchResult {
  size_t tried = 0, fitting = 0;
  std::vector<Candidate> best;  // fastest first
};

// Goes through the split of the roles (colocated, or trainers and generators on ranks of their own,
// at the same time or in turns), the tensor-parallel degree of generation, the micro-batch,
// recomputation (unless train.keep_memory chooses it), hybrid sharding, the optimizer's state on
// GPUs or in host memory, and the share of the KV pages; everything else is as in job.options. The
// machine's speeds must be known.
SearchResult search(const Job& job, const CutActor& cut, size_t count);

}  // namespace trireme::plan
