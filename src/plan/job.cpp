#include "trireme/plan/job.hpp"

#include <algorithm>
#include <array>
#include <map>

#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/config/placement.hpp"

namespace trireme::plan {
namespace {

constexpr int64_t mib = int64_t{1} << 20;
constexpr double gib = 1024.0 * 1024.0 * 1024.0;

constexpr PhaseSet training = phase_bit(Phase::forward) | phase_bit(Phase::head) | phase_bit(Phase::backward);

Machine gpu(const char* name, double device_gib, double host_gib) {
  return {name, static_cast<int64_t>(device_gib * gib), static_cast<int64_t>(host_gib * gib)};
}

const std::array<Machine, 5>& machines() {
  static const std::array<Machine, 5> all{gpu("h100", 79.1, 1024), gpu("h200", 139.8, 1536), gpu("a100-80", 79.15, 1024), gpu("a100-40", 39.4, 512),
                                          gpu("gh200", 94.5, 480)};
  return all;
}

bool contains(const std::vector<int>& ranks, int rank) { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); }

bool one_node(const std::vector<int>& ranks, std::span<const int> node_of_rank) {
  return std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return node_of_rank[static_cast<size_t>(rank)] == node_of_rank[static_cast<size_t>(ranks.front())]; });
}

// Builds the ledger of one rank, role by role.
class RankLedger {
 public:
  RankLedger(const Job& job, int rank) : job_(job), rank_(rank), place_(job.machine.device_bytes > 0 ? Place::device : Place::host) {}

  Ledger build() {
    if (place_ == Place::device) process();
    if (contains(job_.roles.reward, rank_)) frozen_models();
    if (contains(job_.roles.trainer, rank_)) trained_models();
    if (contains(job_.roles.generator, rank_)) generator();
    return std::move(ledger_);
  }

 private:
  const config::Options& options() const { return job_.options; }
  int64_t element() const { return config::bytes_per_element(job_.compute); }

  // A device context with LibTorch's libraries, and what NCCL takes for each communicator: readings of others, not ours.
  void process() {
    add("process", "CUDA context and libraries", 600 * mib, every_phase, Accuracy::estimate);
    int communicators = 0;
    if (contains(job_.roles.trainer, rank_)) communicators += job_.models.critic ? 2 : 1;
    if (contains(job_.roles.reward, rank_)) communicators += static_cast<int>(job_.models.reward_models.size()) + (job_.models.reference ? 1 : 0);
    add("process", "NCCL communicators", communicators * 700 * mib, every_phase, Accuracy::estimate);
  }

  Exchange exchange(const std::vector<int>& ranks) const {
    if (place_ == Place::device) return Exchange::device_ring;
    return one_node(ranks, job_.node_of_rank) ? Exchange::window : Exchange::host_ring;
  }

  void sharded(const std::string& owner, const ModelLayout& model, const std::vector<int>& ranks, Training kind, bool average) {
    const auto bytes = sharded_model_bytes(model, static_cast<int>(ranks.size()), element(), kind, average, exchange(ranks));
    add(owner, "own weight slices", bytes.weights_own);
    add(owner, "ring of two stages", bytes.weights_ring);
    add(owner, "gradients of two stages", bytes.gradient_slots);
    add(owner, "received gradients", bytes.receive);
    add(owner, "fp32 master weights", bytes.master);
    add(owner, "fp32 gradients", bytes.gradients);
    add(owner, "Adam's moments", bytes.moments);
    add(owner, "moving average", bytes.average);
  }

  void frozen_models() {
    const auto& ranks = job_.roles.reward;
    if (job_.models.reference) {
      sharded("reference", *job_.models.reference, ranks, Training::frozen, false);
      scoring(job_.models.reference->shape, Phase::reward);
    }
    for (size_t i = 0; i < job_.models.reward_models.size(); ++i) {
      sharded(base::text("reward model ", i), job_.models.reward_models[i], ranks, Training::frozen, false);
    }
  }

  void trained_models() {
    const std::vector<int> group = shard_group();
    trained("actor", job_.models.actor, group, options().train.enable_ema);
    if (job_.models.critic) trained("critic", *job_.models.critic, group, false);
    scoring(job_.models.actor.shape, Phase::log_probs);
    if (place_ == Place::device) host_mirrors(group);
  }

  void trained(const std::string& owner, const ModelLayout& model, const std::vector<int>& group, bool average) {
    sharded(owner, model, group, Training::trainable, average);
    if (owner != "actor") return;  // actor and critic train one after the other: the larger counts
    const int64_t tokens = options().train.micro_batch_tokens;
    add(owner, "stage inputs", stage_input_bytes(model.shape, tokens), training, Accuracy::estimate);
    add(owner, "head: its gradient", head_backward_bytes(model.shape, model.shape.vocab), phase_bit(Phase::head), Accuracy::estimate);
    add(owner, "one block's activations", block_backward_bytes(model.shape, tokens), phase_bit(Phase::backward), Accuracy::estimate);
    if (place_ == Place::device) {  // what LibTorch adds in double it converts first
      const int64_t chunk = std::min(norm_chunk, shard_elements(model, static_cast<int>(group.size())));
      add(owner, "norm: a chunk in fp64", 8 * chunk, phase_bit(Phase::step), Accuracy::estimate);
    }
  }

  void scoring(const config::ModelShape& shape, Phase phase) {
    const int64_t tokens = options().rollout_micro_batch_tokens();
    add("scoring", "activations", tokens * (6 * shape.hidden + 4 * shape.ffn) * 2, phase_bit(phase), Accuracy::estimate);
  }

  void generator() {
    const auto groups = config::replica_groups(job_.roles.generator, job_.node_of_rank, degree());
    int place = 0;
    for (const auto& group : groups) {
      const auto found = std::find(group.begin(), group.end(), rank_);
      if (found != group.end()) place = static_cast<int>(found - group.begin());
    }
    add("generator", "weights", generator_weight_bytes(job_.models.slices, place, element()));
    const int64_t free = std::max<int64_t>(0, capacity() - ledger_.bytes(place_, Phase::start));
    add("generator", "KV pages", kv_cache_bytes(options().generate.kv_memory, job_.models.actor.shape, degree(), element(), options().generate.max_batch,
                                               options().max_len(), free));
    const int64_t slice = generator_weight_bytes(job_.models.slices, place, element());
    if (place_ == Place::device) add_host("weight sync", "page-locked slices", slice);
  }

  // Page-locked copies through which checkpoints and weight syncs go, and what a delta is taken against.
  void host_mirrors(const std::vector<int>& group) {
    const int ranks = static_cast<int>(group.size());
    int64_t elements = shard_elements(job_.models.actor, ranks);
    const int64_t actor = elements;
    if (job_.models.critic) elements += shard_elements(*job_.models.critic, ranks);
    add_host("checkpoint", "page-locked copy of weights and moments", 12 * elements);
    add_host("weight sync", "page-locked own slices", element() * actor);
    if (options().weightsync.delta) add_host("weight sync", "weights as sent last", element() * actor);
  }

  std::vector<int> shard_group() const {
    const auto& ranks = job_.roles.trainer;
    const auto wish = static_cast<size_t>(options().train.shard_group);
    if (wish == 0 || wish >= ranks.size()) return ranks;
    const auto mine = static_cast<size_t>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin()) / wish * wish;
    return {ranks.begin() + static_cast<std::ptrdiff_t>(mine), ranks.begin() + static_cast<std::ptrdiff_t>(mine + wish)};
  }

  int degree() const { return static_cast<int>(options().generate.tensor_parallel); }

  // A rank's part of the place: a GPU, or its share of the node.
  int64_t capacity() const {
    if (place_ == Place::device) return job_.machine.device_bytes;
    const int node = job_.node_of_rank[static_cast<size_t>(rank_)];
    return job_.machine.host_bytes / std::count(job_.node_of_rank.begin(), job_.node_of_rank.end(), node);
  }

  void add(const std::string& owner, const std::string& what, int64_t bytes, PhaseSet phases = every_phase, Accuracy accuracy = Accuracy::exact) {
    ledger_.add({owner, what, place_, bytes, phases, accuracy});
  }
  void add_host(const std::string& owner, const std::string& what, int64_t bytes) {
    ledger_.add({owner, what, Place::host, bytes, every_phase, Accuracy::exact});
  }

  const Job& job_;
  int rank_;
  Place place_;
  Ledger ledger_;
};

}  // namespace

const Machine* known_machine(std::string_view name) {
  const auto found = std::find_if(machines().begin(), machines().end(), [name](const Machine& machine) { return machine.name == name; });
  return found == machines().end() ? nullptr : &*found;
}

std::string known_machine_names() {
  std::string out;
  for (const Machine& machine : machines()) out += (out.empty() ? "" : ", ") + machine.name;
  return out;
}

Ledger memory_of_rank(const Job& job, int rank) { return RankLedger(job, rank).build(); }

Fullest fullest_rank(const Job& job, Place place) {
  Fullest out;
  std::map<std::array<bool, 3>, bool> seen;  // ranks of the same roles hold the same but for the remainders of divisions
  for (int rank = 0; rank < static_cast<int>(job.node_of_rank.size()); ++rank) {
    const std::array roles{contains(job.roles.trainer, rank), contains(job.roles.generator, rank), contains(job.roles.reward, rank)};
    if (!seen.emplace(roles, true).second) continue;
    Ledger ledger = memory_of_rank(job, rank);
    const int64_t peak = ledger.peak(place);
    if (peak > out.peak) out = {rank, std::move(ledger), peak};
  }
  return out;
}

int64_t kv_cache_bytes(const config::MemoryShare& share, const config::ModelShape& shape, int tensor_parallel, int64_t element_bytes,
                       int64_t sequences, int64_t max_len, int64_t free) {
  const int64_t per_token = kv_bytes_per_token(shape, tensor_parallel, element_bytes);
  const int64_t useful = base::round_up<int64_t>(max_len + 1, 256) * sequences * per_token;
  if (share.bytes > 0) return std::min(share.bytes, useful);
  const auto granted = static_cast<int64_t>(share.fraction * static_cast<double>(free));
  return std::min(std::max(granted, per_token * (max_len + 256)), useful);
}

}  // namespace trireme::plan
