// Which cores and GPU each rank of a node has, and what of it is seldom meant: a launcher that
// binds every rank to one core is the commonest reason for a slow first run.
#pragma once

#include <array>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "trireme/job/node_limits.hpp"

namespace trireme::job {

// One rank's view of its node, told to the others.
struct RankPlace {
  int rank = 0;
  int node = 0;
  std::vector<int> cores;  // physical cores that its threads may use, ascending (core_share.hpp)
  std::array<int, 3>
      threads{};  // it starts for each role (trainer, generator, reward); 0: it has not the role
  std::vector<int> numa_nodes;  // of its cores; empty: unknown
  int gpus = 0;                 // it sees; 0: the run is on CPUs
  bool gpus_chosen = false;     // CUDA_VISIBLE_DEVICES is set
  std::string gpu;              // PCI address of its own
  int gpu_numa = -1;            // NUMA node of that; -1: unknown
  std::vector<int> node_cores;  // physical cores that the job may use of its node; empty: unknown
  std::vector<job::CpuQuota> quotas;  // of the control groups above it
  bool bound = false;  // somebody chose its cores: the launcher, a control group, taskset

  static constexpr auto fields = std::tuple{
      &RankPlace::rank,       &RankPlace::node,       &RankPlace::cores,       &RankPlace::threads,
      &RankPlace::numa_nodes, &RankPlace::gpus,       &RankPlace::gpus_chosen, &RankPlace::gpu,
      &RankPlace::gpu_numa,   &RankPlace::node_cores, &RankPlace::quotas,      &RankPlace::bound};
};

// Warnings about the ranks of one node, each with the value to set. `cores_of_node` is what a job
// may use of the node.
std::vector<std::string> affinity_warnings(std::span<const RankPlace> ranks, int cores_of_node);
// The same for a job: a warning that several nodes have is given once, with their number.
std::vector<std::string> affinity_warnings_of_job(std::span<const RankPlace> ranks,
                                                  int cores_of_node);

// Cores of a node that no thread will use while roles work, one note each: which, how many, what to
// do. Empty where fewer lie idle than there are ranks to give them to, on ranks with GPUs, and
// where affinity_warnings() has said it. `in_turns`: the roles do not work at the same time.
std::vector<std::string> idle_notes(std::span<const RankPlace> ranks, bool in_turns);
std::vector<std::string> idle_notes_of_job(std::span<const RankPlace> ranks, bool in_turns);

// "trainer 8, generator 8, reward 8 a rank, on 8 ranks of 8 cores a node": the threads that were
// planned, "7-8" where ranks differ.
std::string describe_threads(std::span<const RankPlace> ranks);

// Of this machine.
std::vector<int> numa_nodes_of(std::span<const int> cores);  // empty without NUMA in /sys
int numa_node_of_gpu(const std::string& pci_address);        // "0000:3b:00.0"; -1: unknown

}  // namespace trireme::job
