// The memory of a PPO job before it is submitted: from the deck, the role map and the shapes of the models to one ledger per rank.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/config/options.hpp"
#include "trireme/config/ranks.hpp"
#include "trireme/plan/ledger.hpp"
#include "trireme/plan/model_bytes.hpp"

namespace trireme::plan {

// A node's memory for a rank. Devices: what LibTorch reports as their total.
struct Machine {
  std::string name;
  int64_t device_bytes = 0;     // of one GPU; 0: CPUs only
  int64_t host_bytes = 0;       // of a node
};
// "h100", "h200", "a100-80", "a100-40", "gh200"; nullptr where there is none of that name.
const Machine* known_machine(std::string_view name);
std::string known_machine_names();  // "h100, h200, ..."

// The models of a job. `slices`: the actor cut by generate.tensor_parallel.
struct JobModels {
  ModelLayout actor;
  base::ShardLayout slices;
  std::optional<ModelLayout> critic;
  std::optional<ModelLayout> reference;  // absent where no KL asks for one
  std::vector<ModelLayout> reward_models;
};

struct Job {
  const config::Options& options;
  const config::RoleMap& roles;
  std::span<const int> node_of_rank;
  const JobModels& models;
  Machine machine;
  config::DType compute = config::DType::bf16;  // what model.dtype comes to on this machine
};

// What world rank `rank` holds, phase by phase.
Ledger memory_of_rank(const Job& job, int rank);

// The rank with the largest peak in that place and its ledger. Only the first rank of each combination of roles is computed: the
// first have the larger parts where a division leaves a rest.
struct Fullest {
  int rank = 0;
  Ledger ledger;
  int64_t peak = 0;
};
Fullest fullest_rank(const Job& job, Place place);

// Bytes of the KV cache of a generator: the deck's share of `free`, or its bytes, but no more than all its sequences need at full length.
int64_t kv_cache_bytes(const config::MemoryShare& share, const config::ModelShape& shape, int tensor_parallel, int64_t element_bytes,
                       int64_t sequences, int64_t max_len, int64_t free);

}  // namespace trireme::plan
