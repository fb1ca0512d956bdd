// The ledger's advice when an allocation fails.
#pragma once

#include <vector>

#include "trireme/config/options.hpp"
#include "trireme/config/ranks.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/plan/admission.hpp"
#include "trireme/plan/job.hpp"

namespace trireme::machine {

// A plan::Job that owns what it is made of.
struct PlannedJob {
  config::Options options;
  config::RoleMap roles;
  std::vector<int> node_of_rank;
  plan::JobModels models;
  plan::Machine machine;
  config::DType compute;
  config::Command command;
  bool keeps_caches;
  bool own_kernels;
  bool process_started;
  int threads;
  plan::HostBf16 host_bf16;
  plan::RunLength length;
  int rank;
  model::ModelSpec actor;

  plan::Job job() const;  // refers to this
  plan::CutActor cut() const;
};

// From now on a failed allocation of this process is told with the largest entries of this rank's
// ledger in the phase in which it failed, what is free now, and changes of the deck that need a
// fifth less (base::describe).
void advise_on_allocations(PlannedJob planned);

}  // namespace trireme::machine
