#include "torch/torch.hpp"

#include "trireme/machine/threads.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <span>

#include <unistd.h>

#include "trireme/base/error.hpp"
#include "trireme/job/core_share.hpp"
#include "trireme/job/facts.hpp"
#include "trireme/job/process_stat.hpp"
#include "trireme/kernels/parallel.hpp"
#include "trireme/machine/device.hpp"

namespace trireme::machine {
namespace {

constexpr double worth_counting = 0.02;  // seconds of the busiest thread
constexpr double share_of_busiest = 0.2;

std::vector<int> shares_of(const std::vector<const job::RankPlace*>& ranks) {
  std::vector<job::CoreClaim> claims;
  for (const auto* rank : ranks) claims.push_back({rank->cores, rank->quotas});
  return job::share_cores(claims);
}

// Ranks of `node` that have one of the roles in [first, last).
std::vector<job::RankPlace*> at_work(std::vector<job::RankPlace>& places, int node, size_t first,
                                     size_t last) {
  std::vector<job::RankPlace*> out;
  for (auto& place : places) {
    const bool has = std::any_of(place.threads.begin() + static_cast<std::ptrdiff_t>(first),
                                 place.threads.begin() + static_cast<std::ptrdiff_t>(last),
                                 [](int threads) { return threads != 0; });
    if (place.node == node && has) out.push_back(&place);
  }
  return out;
}

// Divides the node's cores among its ranks that have one of these roles, which all get the same
// number.
void share_among(std::vector<job::RankPlace>& places, int node, size_t first, size_t last) {
  const auto ranks = at_work(places, node, first, last);
  const auto shares = shares_of({ranks.begin(), ranks.end()});
  for (size_t i = 0; i < ranks.size(); ++i) {
    for (size_t role = first; role < last; ++role) {
      if (ranks[i]->threads[role] != 0) ranks[i]->threads[role] = shares[i];
    }
  }
}

std::vector<int> nodes_of(const std::vector<job::RankPlace>& places) {
  std::vector<int> nodes;
  for (const auto& place : places) {
    if (std::find(nodes.begin(), nodes.end(), place.node) == nodes.end())
      nodes.push_back(place.node);
  }
  return nodes;
}

bool shares_a_core(const std::vector<job::RankPlace>& places, const job::RankPlace& mine) {
  return std::any_of(places.begin(), places.end(), [&](const auto& other) {
    return other.rank != mine.rank && other.node == mine.node &&
           std::find_first_of(other.cores.begin(), other.cores.end(), mine.cores.begin(),
                              mine.cores.end()) != other.cores.end();
  });
}

double seconds_of_thread(const std::filesystem::path& task) {
  double nanoseconds = 0;
  if (std::ifstream file(task / "schedstat"); file >> nanoseconds) return 1e-9 * nanoseconds;
  // Kernels without scheduler statistics count ticks.
  const auto ticks = [&task](int field) {
    return static_cast<double>(job::stat_field(task / "stat", field).value_or(0));
  };
  return (ticks(job::stat_user_ticks) + ticks(job::stat_system_ticks)) /
         static_cast<double>(sysconf(_SC_CLK_TCK));
}

std::map<int64_t, double> seconds_by_thread() {
  std::map<int64_t, double> out;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    out[std::atoll(task.path().filename().c_str())] = seconds_of_thread(task.path());
  }
  return out;
}

}  // namespace

void Threads::use() const {
  at::set_num_threads(count);
  if (cpus.size() < 2 || count < 2) return;
  kernels::parallel_for(0, count, 1, [this](int64_t, int64_t) {
    const auto thread = static_cast<size_t>(at::get_thread_num());
    if (thread > 0) job::bind_this_thread({&cpus[thread % cpus.size()], 1});
  });
}

std::vector<job::RankPlace> gather_places(const config::Options& options,
                                          const comm::CommView& world,
                                          const comm::NodeTopology& topology,
                                          const std::array<int, 3>& roles) {
  const auto cpus = job::cpus_of_process();
  const auto job = job::cpus_of_job();
  job::RankPlace place;
  place.rank = world.rank();
  place.node = topology.node;
  place.cores = job::physical_cores(cpus);
  place.threads = roles;
  place.numa_nodes = job::numa_nodes_of(cpus);
  place.gpus = options.run.device == config::Device::cpu ? 0 : visible_gpus();
  place.gpus_chosen = job::process_environment("CUDA_VISIBLE_DEVICES").has_value();
  if (place.gpus > 0) place.gpu = gpu_bus(topology.local_rank % place.gpus);
  place.gpu_numa = job::numa_node_of_gpu(place.gpu);
  place.node_cores = job::physical_cores(job);
  place.quotas = job::cpu_quotas();
  place.bound = cpus.size() < job.size() || job::launcher_bound(job::process_environment);
  return world.gather_values(place);
}

void share_threads(const std::string& wish, std::vector<job::RankPlace>& places) {
  int number = 0;
  std::from_chars(wish.data(), wish.data() + wish.size(), number);
  for (auto& place : places) {
    for (int& threads : place.threads) {
      if (number > 0 && threads != 0) threads = number;
    }
  }
  if (number > 0) return;
  constexpr size_t roles = 3;
  for (const int node : nodes_of(places)) {
    if (wish == "phase") {
      for (size_t role = 0; role < roles; ++role) share_among(places, node, role, role + 1);
    } else {
      share_among(places, node, 0, roles);
    }
  }
}

ThreadPlan plan_threads(const config::Options& options, const std::vector<job::RankPlace>& places,
                        int rank) {
  const auto& mine = places.at(static_cast<size_t>(rank));
  job::PinFacts facts;
  facts.wanted = options.run.pin_threads != config::PinThreads::never;
  facts.bound = mine.bound;
  facts.own_binding = job::own_binding(job::process_environment);
  facts.cores = static_cast<int>(mine.cores.size());
  facts.shared = shares_a_core(places, mine);
  facts.threads = facts.cores;
  for (const int threads : mine.threads) {
    if (threads != 0 && threads != facts.cores) facts.threads = threads;
  }
  ThreadPlan plan;
  plan.not_pinned = job::why_not_pinned(facts);
  const auto cpus =
      plan.not_pinned.empty() ? job::one_per_core(job::cpus_of_process()) : std::vector<int>{};
  const auto of = [&](size_t role) {
    return Threads{std::max(1, mine.threads[role]),
                   mine.threads[role] > 0 ? cpus : std::vector<int>{}};
  };
  plan.trainer = of(0);
  plan.generator = of(1);
  plan.reward = of(2);
  return plan;
}

ThreadPlan plan_threads(const config::Options& options, const comm::CommView& world,
                        const comm::NodeTopology& topology, const std::array<int, 3>& roles) {
  auto places = gather_places(options, world, topology, roles);
  share_threads(options.run.threads, places);
  return plan_threads(options, places, world.rank());
}

void ThreadMeter::start() { before_ = seconds_by_thread(); }

void ThreadMeter::stop() {
  spent_ = seconds_by_thread();
  for (auto& [thread, seconds] : spent_) {
    const auto earlier = before_.find(thread);
    if (earlier != before_.end()) seconds -= earlier->second;
  }
}

int ThreadMeter::worked() const {
  double busiest = 0;
  for (const auto& [thread, seconds] : spent_) busiest = std::max(busiest, seconds);
  if (busiest < worth_counting) return 0;
  return static_cast<int>(std::count_if(spent_.begin(), spent_.end(), [&](const auto& one) {
    return one.second >= share_of_busiest * busiest;
  }));
}

}  // namespace trireme::machine
