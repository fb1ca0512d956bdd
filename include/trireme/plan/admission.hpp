// Whether a job may start: the memory that all ranks still need against what their GPUs and nodes
// have free, and which change of the deck would fit. Plain integers; the ranks exchange them
// elsewhere.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "trireme/plan/job.hpp"

namespace trireme::plan {

inline constexpr int64_t free_unknown = std::numeric_limits<int64_t>::max();

// One rank's message to the others. Ranks of one pool share its memory: a GPU that several take,
// the nodes' memory or a control group's.
struct RankNeed {
  std::array<int64_t, phase_count> device{}, host{};  // bytes by phase that this rank will allocate
  std::array<int64_t, phase_count> device_estimated{}, host_estimated{};  // of those: estimates
  int64_t device_free = free_unknown, host_free = free_unknown;
  uint64_t device_pool = 0, host_pool = 0;
};
RankNeed need_of(const Ledger& ledger);

// The memory that several ranks share, in the phase in which they need most of it together.
struct Pool {
  Place place = Place::host;
  std::vector<int> ranks;
  Phase phase = Phase::start;
  int64_t need = 0, estimated = 0;
  int64_t free = free_unknown;  // as the rank saw it that saw least
  int fullest = 0;              // the rank that needs most of it then
  bool fits() const { return need <= free; }
};
// By place, then by the pools' first ranks; pools of which nobody needs anything are left out. The
// same on every rank.
std::vector<Pool> pools_of(std::span<const RankNeed> ranks);
// Index of the pool that lacks most, -1 where all fit.
int worst_pool(std::span<const Pool> pools);

// The fewest blocks of `layers` to compute again (train.recompute) with which what is kept raises
// no pool's need by more than `budget`: a share of what the pool has left when all are, or bytes a
// rank. `pools_with` gives pools_of() a job that computes so many again; all of them where memory
// is short or unknown.
int64_t fewest_recomputed(int64_t layers, const config::MemoryShare& budget,
                          const std::function<std::vector<Pool>(int64_t recompute)>& pools_with);
// The same by the job's machine and train.keep_memory, which must be set: the choice of a run on
// empty nodes of it.
int64_t fewest_recomputed(const Job& job);
std::string describe_kept(int64_t kept,
                          int64_t layers);  // "22 of 32 blocks keep their activations ..."

// What generators hold that trainers of the same rank could use: KV pages, and on GPUs
// weights.
struct CachesBesideTraining {
  int64_t bytes = 0;   // of the rank that has most; 0: nowhere do they take turns
  bool wanted = true;  // generate.keep_kv_memory
  bool stay = false;   // with them all of the job fits into nine tenths of its memory, which is
                       // known; a tenth is for what is estimated
};
CachesBesideTraining caches_beside_training(const Job& job);
// "KV pages of at most 563 MiB a rank stay where they are while trainers of the rank work"
std::string describe(const CachesBesideTraining& caches);

// "planned peak 1.20 GB of 20.10 GB free (host memory, ranks 0-1, in backward; 0.30 GB of it
// estimated)"
std::string describe(const Pool& pool);
// The largest entries of a ledger in that phase, a line each, estimates marked with ~.
std::string contributors(const Ledger& ledger, Place place, Phase phase, size_t count);

// A change of the deck, or of the number of nodes, with which the job fits.
struct Remedy {
  std::string change;  // "train.micro_batch_tokens=2048 generate.kv_memory=0.25"
  Fit fit;
};
// The actor's slices for another tensor-parallel degree.
using CutActor = std::function<base::ShardLayout(int degree)>;
// Those that change least, at most `count`: single changes before pairs, small steps before large
// ones. The capacities are those of job.machine.
std::vector<Remedy> nearest_fits(const Job& job, const CutActor& cut, size_t count);

}  // namespace trireme::plan
