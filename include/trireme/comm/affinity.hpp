// Which cores and GPU each rank of a node has, and what of it is seldom meant: a launcher that binds every rank to one core is the
// commonest reason for a slow first run.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::comm {

// What one rank finds. A rank tells the others by text.
struct RankPlace {
  int rank = 0;
  int node = 0;
  std::vector<int> cores;          // that its threads may use, ascending
  std::array<int, 3> threads{};    // it starts for each role (trainer, generator, reward); 0: it has not the role
  std::vector<int> numa_nodes;     // of its cores; empty: unknown
  int gpus = 0;                    // it sees; 0: the run is on CPUs
  bool gpus_chosen = false;        // CUDA_VISIBLE_DEVICES is set
  std::string gpu;                 // PCI address of its own
  int gpu_numa = -1;               // NUMA node of that; -1: unknown
};
std::string to_text(const RankPlace& place);
RankPlace place_from_text(const std::string& text);

// Warnings about the ranks of one node, each with the value to set. `cores_of_node` is what a job may use of the node.
std::vector<std::string> affinity_warnings(std::span<const RankPlace> ranks, int cores_of_node);
// The same for a job: a warning that several nodes have is given once, with their number.
std::vector<std::string> affinity_warnings_of_job(std::span<const RankPlace> ranks, int cores_of_node);

// "0-3,8" as Linux writes CPU lists; malformed text gives what could be read of it.
std::vector<int> parse_cpu_list(std::string_view text);

// Of this process and machine.
std::vector<int> cores_of_process();
int cores_of_node();                                          // by the job's control group where it says so, else those that are online
std::vector<int> numa_nodes_of(std::span<const int> cores);   // empty without NUMA in /sys
int numa_node_of_gpu(const std::string& pci_address);         // "0000:3b:00.0"; -1: unknown

}  // namespace trireme::comm
