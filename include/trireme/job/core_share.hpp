// How the cores of a node are shared out among its ranks, and which thread runs where. Lists in,
// numbers out: a rank's view of its machine is gathered elsewhere (affinity.hpp), so that nodes
// can be made up in tests.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/job/node_limits.hpp"

namespace trireme::job {

// Cores that one of the ranks working at the same time may use.
struct CoreClaim {
  std::vector<int> cores;             // physical cores, by physical_cores()
  std::vector<job::CpuQuota> quotas;  // of the control groups above it
};

// Threads of each rank: a core's share is 1 / (ranks that have it), a rank's threads are the sum
// over its cores, rounded down and at least 1. So a rank with cores of its own uses all of them,
// ranks with the same cores divide them, and where sets overlap in part nobody counts on more than
// there is. A quota is divided among the ranks below it in the same way.
std::vector<int> share_cores(std::span<const CoreClaim> ranks);

// Physical cores of these processors (Linux CPU numbers), each named by its lowest hardware thread:
// two hardware threads of a core share its arithmetic units and count once. A processor of which
// /sys says nothing is a core of its own.
std::vector<int> physical_cores(std::span<const int> cpus, const std::filesystem::path& root = "/");
// One processor for each physical core: the lowest of `cpus` on it.
std::vector<int> one_per_core(std::span<const int> cpus, const std::filesystem::path& root = "/");

// Processors that the main thread's process may use. An OpenMP runtime that obeys OMP_PROC_BIND or
// OMP_PLACES has bound the main thread to its first place before main(): then those of all places,
// which is what the user gave.
std::vector<int> cpus_of_process();

// Binds the calling thread; false where the system refuses. An empty list changes nothing.
bool bind_this_thread(std::span<const int> cpus);

using Environment = std::function<std::optional<std::string>(const char* name)>;
// Name of the variable by which the user says how threads are bound (OMP_PROC_BIND, OMP_PLACES,
// GOMP_CPU_AFFINITY, KMP_AFFINITY); "": none.
std::string own_binding(const Environment& environment);
// What to say of OpenMP threads that were told to spin for as long as they have nothing to do
// (OMP_WAIT_POLICY=active, GOMP_SPINCOUNT=infinite): they take the cores from the threads that
// generate, which are others. "": nothing.
std::string spinning_warning(const Environment& environment);
// The launcher says that it bound this rank, even if to all there is.
bool launcher_bound(const Environment& environment);

// When a rank pins one thread to each of its cores.
struct PinFacts {
  bool wanted = true;       // run.pin_threads
  bool bound = false;       // the launcher, a control group or taskset chose this rank's processors
  std::string own_binding;  // own_binding()
  int threads = 1;          // planned
  int cores = 1;            // of its set
  bool shared = false;      // another rank of the node has one of them
};
// Why not, for the log; "": pin. Threads that may run elsewhere, or cores that others use as well,
// are better left to the kernel.
std::string why_not_pinned(const PinFacts& facts);

}  // namespace trireme::job
