// A run before its first model: the deck, the roles, the folder, its output, the stop
// policy, threads and device.
#pragma once

#include <optional>
#include <vector>

#include "driver/run_folder.hpp"
#include "driver/stop_policy.hpp"
#include "trireme/comm/roles.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/config/options.hpp"
#include "trireme/kernels/runtime.hpp"
#include "trireme/machine/memory_check.hpp"
#include "trireme/machine/threads.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/model/stored_type.hpp"
#include "trireme/report/run_output.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {

// From its construction on faults are injected, collectives compared, signals and crashes served,
// regions recorded, as the deck says.
struct Handlers {
  Handlers(const config::Options& options, const RunFolder& folder, int rank);
};

struct Run {
  // Collective over world: makes roles and folder, takes the run lock. With another command than
  // ppo every rank is a trainer and nothing else.
  Run(const config::Options& deck, const comm::Session& session, config::Command command);
  Run(const Run&) = delete;

  bool leads() const { return roles.world.rank() == 0; }
  // The type of exported weights: the deck's, or with model.dtype = "auto" that of the
  // model the run starts from, so that an export does not depend on the processor.
  model::StoredType export_type(const model::ModelSpec& spec) const;

  std::optional<trace::Phase> starting{std::in_place,
                                       trace::Name{"start"}};  // until the first iteration
  config::Options options;                                     // model.dtype and data.date settled
  config::ComputeType asked_type;                              // of the deck
  const comm::Session& session;
  config::Command command;
  comm::Roles roles;
  comm::RunWatch watch;  // before the first file of the run folder is touched
  RunFolder folder;
  Handlers handlers;
  report::RunOutput output;
  StopPolicy policy;
  comm::Progress progress{&policy};    // its sources are the roles'
  std::vector<job::RankPlace> places;  // of all ranks
  machine::ThreadPlan threads;
  at::Device device;
  kernels::Runtime kernels;     // Kokkos, on the trainer's threads
  machine::MemoryCheck memory;  // asked once the device is current, before weights are read
};

}  // namespace trireme::driver
