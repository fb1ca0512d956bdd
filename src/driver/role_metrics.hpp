// What roles know of an iteration: state, memory, threads. Everything here is collective over the
// communicator it takes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/roles.hpp"
#include "trireme/driver/run_state.hpp"
#include "trireme/learn/trainer.hpp"
#include "trireme/machine/threads.hpp"
#include "trireme/report/iteration_metrics.hpp"
#include "trireme/rollout/generator.hpp"
#include "trireme/trace/table.hpp"
#include "trireme/weightsync/sync.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::driver {

// The trainers' results on every rank: their metrics, their figures of `outcome`, and the state
// that they returned. Collective over world.
learn::TrainingState share_training_state(const comm::Roles& roles,
                                          report::IterationMetrics& metrics,
                                          const learn::TrainingState& state, Outcome& outcome);

// A model of this rank: actor, critic, reference, reward_NAME.
using ModelMemory = std::pair<std::string, zero::MemoryUse>;
// Bytes by kind ("actor_moments", "reference_weights", ...), the largest over ranks; of every model
// that any rank has, and of the rings of the exchanges. Null where this rank is no generator.
// Collective over world.
void add_memory_metrics(const comm::Roles& roles, std::vector<ModelMemory> models,
                        const rollout::GeneratorMemory* generator,
                        report::IterationMetrics& metrics);

// metrics.busy: of the time in iterations since `before` the share that a rank of each role did not
// wait for others, the mean over its ranks. Returns where this rank is now, for the next call.
// Collective over world.
trace::Waited add_busy_metrics(const comm::Roles& roles, const trace::Waited& before,
                               report::IterationMetrics& metrics);

// metrics.weight_sync, where weights were copied.
void add_sync_metrics(const weightsync::SyncTotals& totals, report::IterationMetrics& metrics);

// Threads that were planned and that worked, the fewest over the ranks of a role. Null where this
// rank lacks the role. Collective over world.
void add_thread_metrics(const comm::CommView& world, const machine::ThreadPlan& threads,
                        const learn::Trainer* trainer, const rollout::Generator* generator,
                        report::IterationMetrics& metrics);

}  // namespace trireme::driver
