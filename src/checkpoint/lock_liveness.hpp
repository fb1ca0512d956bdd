// Is the holder of a run lock still alive? Answers that can be trusted, or "unknown".
#pragma once

#include <cstdint>
#include <string>

#include "trireme/checkpoint/run_lock.hpp"

namespace trireme::checkpoint {

enum class Liveness : uint8_t { alive, gone, unknown };

// This process as a holder; fence and released are left at their defaults.
LockHolder this_process();

// By the process table, when the holder ran on this host, boot and pid namespace.
Liveness ask_process_table(const LockHolder& holder);
// Whether both jobs are of a Slurm, and of different ones: their numbers say nothing of each other,
// and squeue here knows nothing of that job.
bool is_of_another_cluster(const LockHolder& holder);
// By the scheduler of the holder's job: squeue or qstat. Several clusters may share a file system,
// and not all say their name: `gone` is no proof.
Liveness ask_scheduler(const LockHolder& holder);
// Whether the holder ran on a machine of this one's name before that was started anew.
bool was_before_a_reboot(const LockHolder& holder);

// "job slurm 4711, host n3, pid 120, since 2026-11-21T14:03:33Z"
std::string describe(const LockHolder& holder);

}  // namespace trireme::checkpoint
