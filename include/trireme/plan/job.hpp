// The memory of a job before it is submitted: from the deck, the role map and the shapes of the
// models to one ledger per rank.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/config/choices.hpp"
#include "trireme/config/machine_file.hpp"
#include "trireme/config/options.hpp"
#include "trireme/config/ranks.hpp"
#include "trireme/config/reward_sources.hpp"
#include "trireme/plan/ledger.hpp"
#include "trireme/plan/model_bytes.hpp"

namespace trireme::plan {

// A node. Devices: what LibTorch reports as their total. Speeds are the makers' figures, one way,
// per GPU; all 0: not known.
struct Machine {
  std::string name;
  int64_t device_bytes = 0;  // of one GPU; 0: CPUs only
  int64_t host_bytes = 0;    // of a node
  double flops = 0;          // bf16, dense
  double memory_speed = 0;   // bytes/s of the GPU's own memory
  double node_link = 0;      // bytes/s between the GPUs of a node
  double network = 0;        // bytes/s of a GPU's share of the node's network
  double host_link = 0;      // bytes/s between a GPU and host memory
};
// "h100", "h200", "a100-80", "a100-40", "gh200"; nullptr where there is none of that name.
const Machine* known_machine(std::string_view name);
std::string known_machine_names();  // "h100, h200, ..."
Machine machine_of(const config::MachineFile& file);

// A model that judges: each rank of the reward role has all of it.
struct JudgeLayout {
  ModelLayout model;
  base::ShardLayout slices;  // one
};

// The models of a job. `actor` is what sft, rm and dpo train, too. `slices`: the actor cut by
// generate.tensor_parallel. Parameters that another model reads from the actor's base are marked
// (ModelLayout::lent); for reward models this holds only on the trainers' ranks
// (config::reward_shares_trainers).
struct JobModels {
  ModelLayout actor;
  base::ShardLayout slices;
  std::optional<ModelLayout> critic;
  std::optional<ModelLayout> reference;  // absent where no KL asks for one
  std::vector<ModelLayout> reward_models;
  std::vector<JudgeLayout> judges;  // as config::judge_models()
};

// How long a run and its sequences are, as far as it is known.
struct RunLength {
  int64_t iterations = 0;       // 0: not known
  int64_t evaluated = -1;       // sequences of an evaluation; -1: not known
  int64_t longest = 0;          // tokens of the longest sequence; 0: the deck's limit
  int64_t shortest_prompt = 0;  // tokens of a sequence of ppo that no policy wrote
};

// How a rank's CPU multiplies bf16: in fp32, by instructions of the vector unit, or in tiles by
// matrix units.
enum class HostBf16 : uint8_t { widened, vectors, tiles };

struct Job {
  const config::Options& options;
  const config::RoleMap& roles;
  std::span<const int> node_of_rank;
  const JobModels& models;
  Machine machine;
  config::DType compute = config::DType::bf16;     // what model.dtype comes to on this machine
  config::Command command = config::Command::ppo;  // with another one every trainer holds the
                                                   // model, dpo also the reference
  bool keeps_caches = false;  // caches_beside_training() says so; else generators give them back
                              // while trainers of their ranks work
  bool own_kernels =
      true;  // on GPUs; false: they were put aside, LibTorch's operators do their work
  // The machine's memory is what started processes have left: their libraries and on GPUs their
  // CUDA context are there already.
  bool process_started = false;
  int threads = 2;  // of a rank, on CPUs
  HostBf16 host_bf16 = HostBf16::vectors;
  RunLength length = {};
};

// What world rank `rank` holds, phase by phase.
Ledger memory_of_rank(const Job& job, int rank);

// A rank of each combination of roles, with the ranks of each node that have it: the first of those
// with the largest slices of the generator; all else is the same on them where shard groups lie
// alike on their nodes.
struct RoleKind {
  int first = 0;
  std::vector<int> ranks_on_node;  // by node
};
std::vector<RoleKind> role_kinds(const Job& job);

// The rank with the largest peak in a place, and its ledger.
struct Fullest {
  int rank = 0;
  Ledger ledger;
  int64_t peak = 0;
};

// Memory that a job needs of a machine, and whether it is there.
struct Fit {
  Fullest device;                             // the fullest GPU; one rank each
  Fullest host;                               // the rank with most on the host
  int64_t node_bytes = 0;                     // all ranks of the fullest node
  bool device_fits = true, host_fits = true;  // a capacity of 0 is not known and not exceeded
  bool fits() const { return device_fits && host_fits; }
};
Fit fit(const Job& job);

// Tokens of a mean sequence of ppo as the deck's limits have it: answers of
// rollout.max_new_tokens, or half of the longest sequence, and prompts that fill the rest.
struct MeanLengths {
  double input = 0, output = 0;
};
MeanLengths mean_lengths(const config::Options& options);

// Packed tokens of one pass: the deck's micro-batch, or all that a rank can have where that is
// less; no less than the longest sequence.
int64_t training_tokens(const Job& job);
int64_t scoring_tokens(const Job& job, int ranks);
// Of reward model `model`, whose source may have a length and a budget of its own.
struct RewardPass {
  int64_t longest = 0;  // tokens of a sequence
  int64_t tokens = 0;
};
RewardPass reward_pass(const Job& job, size_t model);

// Bytes of the KV cache of a generator, of kv_bytes_per_token(): the deck's share of `free`, or its
// bytes, but no more than all its sequences need at full length.
int64_t kv_cache_bytes(const config::MemoryShare& share, int64_t bytes_per_token, int64_t sequences,
                       int64_t max_len, int64_t free);

// Of a judge: all that its sequences need at full length.
int64_t judge_cache_bytes(const config::JudgeModel& judge, const config::ModelShape& shape,
                          int64_t element_bytes);

// The part of a replica's KV cache that the deck's rollouts need at a time.
struct KvNeed {
  int64_t sequences =
      0;  // that decode together: generate.max_batch, or all of the replica's where these are fewer
  int64_t expected_length = 0;  // tokens: a mean prompt and half of what may be generated
};
// `prompt_tokens`: of a mean prompt.
KvNeed kv_need(const config::Options& options, int64_t prompt_tokens, int replicas);
// A warning where `bytes` of cache hold fewer sequences than that, with what to set; "" where they
// do.
std::string kv_shortage(const KvNeed& need, int64_t bytes, int64_t bytes_per_token);

}  // namespace trireme::plan
