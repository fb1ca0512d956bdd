// Threads of this rank: how many each role starts, where they run, and how many of them worked.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/comm.hpp"
#include "trireme/comm/topology.hpp"
#include "trireme/config/options.hpp"
#include "trireme/job/affinity.hpp"

namespace trireme::machine {

struct Threads {
  int count = 1;
  std::vector<int> cpus;  // processor of each, where threads are pinned; empty: the kernel chooses

  // From here on LibTorch works with so many threads. Where they are pinned, those beside the
  // calling one are bound; the calling one stays free, since threads and child processes that start
  // later inherit its binding.
  void use() const;
};

struct ThreadPlan {
  Threads trainer, generator, reward;
  std::string not_pinned;  // why not; "": pinned
};

// Each rank's view of its node. `roles`: 1 for those that this rank has, of
// trainer, generator, reward. Collective over world.
std::vector<job::RankPlace> gather_places(const config::Options& options,
                                          const comm::CommView& world,
                                          const comm::NodeTopology& topology,
                                          const std::array<int, 3>& roles);

// Fills in the threads of every rank. `wish` is run.threads: "auto", the ranks of a node share its
// cores (job::share_cores); "phase", only the ranks of the role that works do; or a number.
void share_threads(const std::string& wish, std::vector<job::RankPlace>& places);

// The plan of this rank from places whose threads were shared out.
ThreadPlan plan_threads(const config::Options& options, const std::vector<job::RankPlace>& places,
                        int rank);
// All of it, for tools. Collective over world.
ThreadPlan plan_threads(const config::Options& options, const comm::CommView& world,
                        const comm::NodeTopology& topology, const std::array<int, 3>& roles);

// Processor time of this process' threads between two moments.
class ThreadMeter {
 public:
  void start();
  void stop();
  // Threads that got at least a fifth of the busiest one's time; 0: too little time to say.
  int worked() const;

 private:
  std::map<int64_t, double> before_;  // seconds by thread id
  std::map<int64_t, double> spent_;
};

}  // namespace trireme::machine
