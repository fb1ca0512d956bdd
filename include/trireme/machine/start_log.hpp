// The top of a log: launcher, ranks and roles, cores and threads.
#pragma once

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

}  // namespace trireme::machine
