// The top of a log: launcher, ranks and roles, cores and threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/roles.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/config/options.hpp"
#include "trireme/job/affinity.hpp"
#include "trireme/machine/threads.hpp"

namespace trireme::machine {

// `command`: "ppo", "sft", ...; `places` with the threads of all ranks, `threads` of this one.
// Collective over world.
void log_start(const config::Options& options, const comm::Roles& roles,
               const comm::Session& session, const std::string& command,
               const std::vector<job::RankPlace>& places, const ThreadPlan& threads);

// Logs the links of a role's communicator `group` (null: this rank has none), e.g. "trainers":
// NCCL's version, transport, time of a 1 MiB sum; warns if the sum is slow. Does nothing on CPUs.
// Collective over world, after the group's first user was made.
void log_device_links(const std::string& role, const std::optional<comm::CommView>& group,
                      const comm::CommView& world, at::Device device);

}  // namespace trireme::machine
