#include "trireme/job/core_share.hpp"

#include <dlfcn.h>
#include <sched.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <utility>

#include "trireme/base/text.hpp"

namespace trireme::job {
namespace {

constexpr double rounding_error = 1e-9;  // of sums of thirds and the like

// A set of more processors than cpu_set_t's 1024.
class CpuSet {
 public:
  static constexpr int most_cpus = 8192;
  cpu_set_t* get() { return reinterpret_cast<cpu_set_t*>(words_.data()); }
  size_t bytes() const { return words_.size() * sizeof(unsigned long); }

 private:
  std::array<unsigned long, most_cpus / 8 / sizeof(unsigned long)> words_{};
};

std::vector<int> cpus_of_thread() {
  CpuSet set;
  std::vector<int> cpus;
  if (sched_getaffinity(0, set.bytes(), set.get()) != 0) return {0};
  for (int cpu = 0; cpu < CpuSet::most_cpus; ++cpu) {
    if (CPU_ISSET_S(cpu, set.bytes(), set.get())) cpus.push_back(cpu);
  }
  return cpus;
}

// Asked by name: this module links no OpenMP, and the runtime is the one that LibTorch brought.
template <class Function>
Function symbol(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

std::vector<int> cpus_of_openmp_places() {
  const auto places = symbol<int (*)()>("omp_get_num_places");
  const auto size = symbol<int (*)(int)>("omp_get_place_num_procs");
  const auto ids = symbol<void (*)(int, int*)>("omp_get_place_proc_ids");
  std::set<int> cpus;
  if (!places || !size || !ids) return {};
  for (int place = 0; place < places(); ++place) {
    std::vector<int> of_place(static_cast<size_t>(std::max(0, size(place))));
    ids(place, of_place.data());
    cpus.insert(of_place.begin(), of_place.end());
  }
  return {cpus.begin(), cpus.end()};
}

int first_sibling(int cpu, const std::filesystem::path& root) {
  const std::string folder = base::text("sys/devices/system/cpu/cpu", cpu, "/topology/");
  std::string line;
  std::ifstream file(root / (folder + "thread_siblings_list"));
  std::getline(file, line);
  const auto siblings = job::parse_cpu_list(line);
  return siblings.empty() ? cpu : *std::min_element(siblings.begin(), siblings.end());
}

}  // namespace

std::vector<int> share_cores(std::span<const CoreClaim> ranks) {
  std::map<int, int> ranks_of_core;
  std::map<uint64_t, int> ranks_of_group;
  for (const auto& rank : ranks) {
    for (const int core : std::set<int>(rank.cores.begin(), rank.cores.end()))
      ++ranks_of_core[core];
    for (const auto& quota : rank.quotas) ++ranks_of_group[quota.group];
  }
  std::vector<int> threads;
  for (const auto& rank : ranks) {
    double share = 0;
    for (const int core : std::set<int>(rank.cores.begin(), rank.cores.end()))
      share += 1.0 / ranks_of_core[core];
    for (const auto& quota : rank.quotas)
      share = std::min(share, quota.processors / ranks_of_group[quota.group]);
    threads.push_back(std::max(1, static_cast<int>(share + rounding_error)));
  }
  return threads;
}

std::vector<int> physical_cores(std::span<const int> cpus, const std::filesystem::path& root) {
  std::set<int> cores;
  for (const int cpu : cpus) cores.insert(first_sibling(cpu, root));
  return {cores.begin(), cores.end()};
}

std::vector<int> one_per_core(std::span<const int> cpus, const std::filesystem::path& root) {
  std::map<int, int> of_core;
  for (const int cpu : cpus) {
    const auto [entry, added] = of_core.try_emplace(first_sibling(cpu, root), cpu);
    if (!added) entry->second = std::min(entry->second, cpu);
  }
  std::vector<int> out;
  for (const auto& [core, cpu] : of_core) out.push_back(cpu);
  return out;
}

std::vector<int> cpus_of_process() {
  const auto places = cpus_of_openmp_places();
  return places.empty() ? cpus_of_thread() : places;
}

bool bind_this_thread(std::span<const int> cpus) {
  if (cpus.empty()) return true;
  CpuSet set;
  for (const int cpu : cpus) {
    if (cpu >= 0 && cpu < CpuSet::most_cpus) CPU_SET_S(cpu, set.bytes(), set.get());
  }
  return sched_setaffinity(0, set.bytes(), set.get()) == 0;
}

std::string own_binding(const Environment& environment) {
  for (const char* name : {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"}) {
    if (!environment(name).value_or("").empty()) return name;
  }
  return "";
}

std::string spinning_warning(const Environment& environment) {
  for (const auto& [name, word] :
       {std::pair{"OMP_WAIT_POLICY", "active"}, std::pair{"GOMP_SPINCOUNT", "infin"}}) {
    const std::string value = environment(name).value_or("");
    if (strncasecmp(value.c_str(), word, std::strlen(word)) != 0) continue;
    return base::text(name, "=", value,
                      ": idle OpenMP threads keep their cores busy, and generation on CPUs, which "
                      "has threads of its own, takes up to ",
                      "twice as long: unset it");
  }
  return "";
}

bool launcher_bound(const Environment& environment) {
  if (environment("OMPI_MCA_orte_bound_at_launch").value_or("0") == "1") return true;
  const std::string slurm = environment("SLURM_CPU_BIND_TYPE").value_or("");
  return slurm.starts_with("mask_cpu") || slurm.starts_with("map_cpu") ||
         slurm.starts_with("cores") || slurm.starts_with("sockets");
}

std::string why_not_pinned(const PinFacts& facts) {
  if (!facts.wanted) return "run.pin_threads = \"never\"";
  if (!facts.own_binding.empty()) return facts.own_binding + " is set";
  if (!facts.bound) return "nobody bound the ranks to cores";
  if (facts.shared) return "ranks share cores";
  if (facts.threads != facts.cores)
    return base::text(facts.threads, " threads on ", facts.cores, " cores");
  if (facts.threads == 1) return "one thread";
  return "";
}

}  // namespace trireme::job
