#include "trireme/job/affinity.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "trireme/base/text.hpp"

namespace trireme::job {
namespace {

constexpr std::array<const char*, 3> role_names{"trainer", "generator", "reward"};

std::string list_text(std::span<const int> numbers) {
  std::string out;
  for (size_t i = 0; i < numbers.size();) {
    size_t j = i;
    while (j + 1 < numbers.size() && numbers[j + 1] == numbers[j] + 1) ++j;
    out += (out.empty() ? "" : ",") + std::to_string(numbers[i]);
    if (j > i) out += "-" + std::to_string(numbers[j]);
    i = j + 1;
  }
  return out.empty() ? "-" : out;
}

std::vector<int> all_cores(std::span<const RankPlace> ranks) {
  std::set<int> cores;
  for (const auto& rank : ranks) cores.insert(rank.cores.begin(), rank.cores.end());
  return {cores.begin(), cores.end()};
}

// Several ranks on few cores: the binding of a launcher that was told nothing.
std::string binding_warning(std::span<const RankPlace> ranks, int cores_of_node) {
  const auto cores = all_cores(ranks);
  const auto count = static_cast<int>(ranks.size());
  if (cores_of_node <= static_cast<int>(cores.size())) return "";
  const int each = std::max(1, cores_of_node / count);
  if (cores.size() == 1 && count > 1) {
    return base::text("all ", count, " ranks of the node are bound to core ", cores[0], " of ",
                      cores_of_node, ": srun --cpus-per-task=", each,
                      " --cpu-bind=cores, or mpirun --map-by ppr:", count, ":node:pe=", each);
  }
  const bool single =
      std::all_of(ranks.begin(), ranks.end(), [](const auto& r) { return r.cores.size() == 1; });
  if (!single || each < 2) return "";
  return base::text("each rank of the node is bound to one core, ", cores.size(), " of ",
                    cores_of_node, " are used: srun --cpus-per-task=", each,
                    " --cpu-bind=cores, or mpirun --map-by ppr:", count, ":node:pe=", each);
}

// Threads of one role that exceed the cores they share. Roles take turns, so each is counted alone.
std::string sharing_warning(std::span<const RankPlace> ranks, size_t role) {
  std::map<std::vector<int>, std::pair<int, int>>
      by_cores;  // ranks and threads that share a set of cores
  for (const auto& rank : ranks) {
    if (rank.threads[role] == 0) continue;
    auto& [sharers, threads] = by_cores[rank.cores];
    ++sharers;
    threads += rank.threads[role];
  }
  for (const auto& [cores, load] : by_cores) {
    const auto [sharers, threads] = load;
    const auto have = static_cast<int>(cores.size());
    if (threads <= have) continue;
    if (sharers > have) {
      return base::text(sharers, " ", role_names[role], " ranks share ", have,
                        have == 1 ? " core (" : " cores (", list_text(cores),
                        "): start fewer ranks a node, or give them more cores");
    }
    return base::text(sharers, sharers == 1 ? " " : " ", role_names[role],
                      sharers == 1 ? " rank runs " : " ranks run ", threads, " threads on ", have,
                      have == 1 ? " core (" : " cores (", list_text(cores),
                      "): set run.threads = ", std::max(1, have / sharers),
                      " and OMP_NUM_THREADS to the same, or give them more cores");
  }
  return "";
}

std::string gpu_choice_warning(std::span<const RankPlace> ranks) {
  const bool open = ranks.size() > 1 && std::all_of(ranks.begin(), ranks.end(), [](const auto& r) {
                      return r.gpus > 1 && !r.gpus_chosen;
                    });
  if (!open) return "";
  return base::text("CUDA_VISIBLE_DEVICES is not set: each of the ", ranks.size(),
                    " ranks of the node sees all ", ranks[0].gpus,
                    " GPUs and takes them in turn: set it to the local rank (as slurm/ and pbs/ "
                    "do), so that libraries and tools agree");
}

std::string gpu_distance_warning(std::span<const RankPlace> ranks) {
  for (const auto& rank : ranks) {
    const auto& near = rank.numa_nodes;
    if (rank.gpu_numa < 0 || near.empty() ||
        std::find(near.begin(), near.end(), rank.gpu_numa) != near.end())
      continue;
    return base::text("rank ", rank.rank, " runs on NUMA node ", list_text(near), " but its GPU ",
                      rank.gpu, " hangs on node ", rank.gpu_numa,
                      ": srun --gpu-bind=closest, or numactl --cpunodebind=", rank.gpu_numa);
  }
  return "";
}

// The first role whose ranks leave cores of their sets to nobody, and why.
std::string idle_threads_note(std::span<const RankPlace> ranks, bool in_turns) {
  for (size_t role = 0; role < role_names.size(); ++role) {
    std::vector<RankPlace> at_work;
    int threads = 0;
    for (const auto& rank : ranks) {
      if (rank.threads[role] == 0) continue;
      at_work.push_back(rank);
      threads += rank.threads[role];
    }
    const auto cores = all_cores(at_work);
    const int idle = static_cast<int>(cores.size()) - threads;
    if (at_work.empty() || idle < static_cast<int>(at_work.size())) continue;
    const bool quota = std::any_of(at_work.begin(), at_work.end(), [&](const auto& rank) {
      return std::any_of(rank.quotas.begin(), rank.quotas.end(), [&](const auto& q) {
        return q.processors < static_cast<double>(cores.size());
      });
    });
    const bool others = at_work.size() < ranks.size();
    return base::text("while the ", role_names[role], " ranks work, ", idle, " of their ",
                      cores.size(), " cores a node (", list_text(cores), ") stay idle: ",
                      quota ? "a control group limits their processor time (cpu.max): ask for more "
                              "of it, or for fewer cores"
                      : others && in_turns
                          ? "run.threads = \"phase\" lets the role that works use them"
                          : "run.threads = \"auto\" uses them");
  }
  return "";
}

// Texts of the nodes of a job: one that several nodes have is given once, with their number.
template <class TextsOfNode>
std::vector<std::string> once_for_all_nodes(std::span<const RankPlace> ranks,
                                            const TextsOfNode& texts_of_node) {
  std::map<int, std::vector<RankPlace>> nodes;
  for (const auto& rank : ranks) nodes[rank.node].push_back(rank);
  std::vector<std::string> order;
  std::map<std::string, int> count;
  for (const auto& [node, places] : nodes) {
    for (const auto& text : texts_of_node(places)) {
      if (count[text]++ == 0) order.push_back(text);
    }
  }
  for (auto& text : order) {
    if (nodes.size() > 1) text = base::text(count[text], " of ", nodes.size(), " nodes: ", text);
  }
  return order;
}

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

std::vector<std::string> affinity_warnings(std::span<const RankPlace> ranks, int cores_of_node) {
  std::vector<std::string> out;
  const auto add = [&out](const std::string& warning) {
    if (!warning.empty() && std::find(out.begin(), out.end(), warning) == out.end())
      out.push_back(warning);
  };
  add(binding_warning(ranks, cores_of_node));
  for (size_t role = 0; out.empty() && role < role_names.size(); ++role)
    add(sharing_warning(ranks, role));
  add(gpu_choice_warning(ranks));
  add(gpu_distance_warning(ranks));
  return out;
}

std::vector<std::string> affinity_warnings_of_job(std::span<const RankPlace> ranks,
                                                  int cores_of_node) {
  return once_for_all_nodes(ranks, [&](std::span<const RankPlace> node) {
    return affinity_warnings(node, cores_of_node);
  });
}

std::vector<std::string> idle_notes(std::span<const RankPlace> ranks, bool in_turns) {
  std::vector<std::string> out;
  if (ranks.empty() ||
      std::any_of(ranks.begin(), ranks.end(), [](const auto& r) { return r.gpus > 0; }))
    return out;
  const auto& all = ranks.front().node_cores;
  const auto used = all_cores(ranks);
  std::vector<int> unused;
  std::set_difference(all.begin(), all.end(), used.begin(), used.end(), std::back_inserter(unused));
  const auto count = static_cast<int>(ranks.size());
  if (static_cast<int>(unused.size()) >= count &&
      binding_warning(ranks, static_cast<int>(all.size())).empty()) {
    const int each = static_cast<int>(all.size()) / count;
    out.push_back(base::text(
        unused.size(), " of the node's ", all.size(), " cores (", list_text(unused),
        ") are in no rank's set and stay idle: start more ranks a node, or give each more cores "
        "(srun --cpus-per-task=",
        each, " --cpu-bind=cores, or mpirun --map-by ppr:", count, ":node:pe=", each, ")"));
  }
  if (const auto note = idle_threads_note(ranks, in_turns); !note.empty()) out.push_back(note);
  return out;
}

std::vector<std::string> idle_notes_of_job(std::span<const RankPlace> ranks, bool in_turns) {
  return once_for_all_nodes(
      ranks, [&](std::span<const RankPlace> node) { return idle_notes(node, in_turns); });
}

std::string describe_threads(std::span<const RankPlace> ranks) {
  const auto range = [&](auto value) {
    int low = 0, high = 0;
    for (const auto& rank : ranks) {
      const int n = value(rank);
      if (n == 0) continue;
      low = low == 0 ? n : std::min(low, n);
      high = std::max(high, n);
    }
    return low == high ? std::to_string(low) : base::text(low, "-", high);
  };
  std::vector<std::string> roles;
  for (size_t role = 0; role < role_names.size(); ++role) {
    const auto threads = range([&](const RankPlace& r) { return r.threads[role]; });
    if (threads != "0") roles.push_back(base::text(role_names[role], " ", threads));
  }
  std::map<int, int> ranks_of_node;
  for (const auto& rank : ranks) ++ranks_of_node[rank.node];
  const auto a_node = range([&](const RankPlace& r) { return ranks_of_node[r.node]; });
  const auto cores = range([](const RankPlace& r) { return static_cast<int>(r.cores.size()); });
  return base::text(base::join(roles), " a rank, with ", a_node,
                    a_node == "1" ? " rank of " : " ranks of ", cores,
                    cores == "1" ? " core" : " cores", " a node");
}

std::vector<int> numa_nodes_of(std::span<const int> cores) {
  std::set<int> nodes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/devices/system/node", error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("node") || name.size() == 4 ||
        !std::isdigit(static_cast<unsigned char>(name[4])))
      continue;
    for (const int core : parse_cpu_list(first_line(entry.path() / "cpulist"))) {
      if (std::find(cores.begin(), cores.end(), core) != cores.end())
        nodes.insert(std::stoi(name.substr(4)));
    }
  }
  return {nodes.begin(), nodes.end()};
}

int numa_node_of_gpu(const std::string& pci_address) {
  std::string address = pci_address;  // CUDA writes capitals, /sys small letters
  std::transform(address.begin(), address.end(), address.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::string line =
      address.empty() ? "" : first_line("/sys/bus/pci/devices/" + address + "/numa_node");
  return line.empty() ? -1 : std::atoi(line.c_str());
}

}  // namespace trireme::job
