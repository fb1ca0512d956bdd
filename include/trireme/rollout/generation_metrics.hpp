// metrics.generation: counts of all replicas' engines in an iteration.
#pragma once

#include <cstdint>

#include "trireme/comm/comm.hpp"
#include "trireme/report/iteration_metrics.hpp"
#include "trireme/rollout/generator.hpp"

namespace trireme::rollout {

// `work`: of this rank's replica on its first rank, else null; `slots`: sequences that an engine
// may run at a time. Nothing where nobody wrote. Collective over world.
void add_generation_metrics(const comm::CommView& world, const GeneratorWork* work, int64_t slots,
                            report::IterationMetrics& metrics);

// metrics.environment and tools: the programs' work, calls of tools, and how episodes ended, sums
// over the replicas. Collective over world.
void add_environment_metrics(const comm::CommView& world, const config::EnvironmentOptions& options,
                             const EnvironmentWork& mine, report::IterationMetrics& metrics);

}  // namespace trireme::rollout
