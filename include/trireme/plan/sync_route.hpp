// How a sync brings the actor's weights to the generators (docs/design/0008). The program and the
// memory plan ask the same functions.
#pragma once

#include "trireme/config/options.hpp"
#include "trireme/config/ranks.hpp"

namespace trireme::plan {

// On GPUs where every generator trains, too: the trainers' own gathers bring each stage whole, and
// a generator copies its slice of it; nothing goes through host memory. Not with other
// weightsync.shared_memory than "auto".
bool gathers_weights(const config::Options& options, const config::RoleMap& roles, bool on_device);

// On CPUs a sync may send what has changed only: some flow goes by messages (weightsync.delta). A
// GPU's weights would first have to come to the host to be compared.
bool sends_deltas(const config::Options& options, bool on_device, bool on_one_node);

}  // namespace trireme::plan
