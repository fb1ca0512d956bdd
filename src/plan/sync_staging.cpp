#include "plan/sync_staging.hpp"

#include <algorithm>

#include "plan/groups.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/config/placement.hpp"
#include "trireme/plan/decisions.hpp"
#include "trireme/plan/model_bytes.hpp"
#include "trireme/plan/sync_buckets.hpp"

namespace trireme::plan {
namespace {

// The roles as the sync sees them.
class Staging {
 public:
  Staging(const Job& job, bool between_devices)
      : job_(job),
        between_devices_(between_devices),
        degree_(static_cast<int>(job.options.generate.tensor_parallel)) {
    const auto trainers = static_cast<int>(job.roles.trainer.size());
    const auto wish = static_cast<int>(job.options.train.shard_group);
    shards_ = wish == 0 || wish >= trainers ? trainers : wish;
    replicas_ = config::replica_groups(job.roles.generator, job.node_of_rank, degree_);
    ModelLayout all = job.models.actor;  // the first sync sends frozen weights, too
    all.trainable.assign(all.tensors.size(), true);
    flow_ = base::ceil_div<int64_t>(shard_elements(all, shards_), degree_) *
            config::bytes_per_element(job.compute);
    most_on_node_ = most_on_a_node();
    relays_ = find_relays();
    if (std::ssize(job.node_of_rank) <= counted_ranks && !job.models.slices.tensors().empty())
      count_flows();
  }

  // The most that a rank with the roles of this one has: ranks of the same roles count alike in the
  // plan.
  SyncStaging of_role(int rank) {
    if (flows_.empty()) return bytes(rank);
    SyncStaging out;
    for (int other = 0; other < static_cast<int>(job_.node_of_rank.size()); ++other) {
      if (trains(other) != trains(rank) || writes(other) != writes(rank)) continue;
      const SyncStaging has = bytes(other);
      out = {std::max(out.rings, has.rings), std::max(out.mapped, has.mapped),
             std::max(out.messages, has.messages), std::max(out.device, has.device)};
    }
    return out;
  }

 private:
  // Counts of a rank.
  struct Count {
    int64_t rings = 0, mapped = 0;
    int64_t sent = 0, taken = 0;  // flows by messages
    int64_t of_one = 0;           // of those that are taken, such as have one bucket
    int64_t slot = 0;             // largest bucket of a flow by messages: bytes
  };

  SyncStaging bytes(int whose) {
    rank_ = whose;
    slice_ = -1;
    for (const auto& replica : replicas_) {
      const auto found = std::ranges::find(replica, whose);
      if (found != replica.end()) slice_ = static_cast<int>(found - replica.begin());
    }
    Count count;
    if (const int shard = shard_of(rank_); shard >= 0) give(shard, count);
    if (slice_ >= 0) take(count);
    const int64_t header = between_devices_ ? 0 : bucket_header;
    const int64_t slot = base::round_up(count.slot, bucket_header) + header;
    const int64_t open = passes() || between_devices_
                             ? count.sent + count.taken
                             : std::max<int64_t>(2, message_staging / (buckets_in_flight * slot));
    const int64_t spared = count.taken <= open ? count.of_one * (buckets_in_flight - 1) : 0;
    SyncStaging out;
    out.rings = count.rings;
    out.mapped = count.mapped;
    (between_devices_ ? out.device : out.messages) =
        ((std::min(count.sent, open) + std::min(count.taken, open)) * buckets_in_flight - spared) *
        slot;
    return out;
  }

  void give(int shard, Count& count) const {
    for (size_t number = 0; number < replicas_.size(); ++number) {
      const auto& replica = replicas_[number];
      for (size_t slice = 0; slice < replica.size(); ++slice) {
        const int rank = replica[slice];
        if (!flows_.empty() && holder(shard, number + slice, rank) != rank_) continue;
        const bool near = rank == rank_ || (shares() && node(rank) == node(rank_));
        const int64_t most =
            std::min(near ? inside() : outside(), flow(shard, static_cast<int>(slice)));
        if (!near) count.slot = std::max(count.slot, most);
        if (rank == rank_ || most == 0) continue;
        if (near) {
          count.rings += ring(most, 1);
        } else {
          ++count.sent;
        }
      }
    }
  }

  // The trainer that gives a shard to a rank, as weightsync/plan.cpp chooses it; `number`: of the
  // rank's replica and slice, added.
  int holder(int shard, size_t number, int rank) const {
    const auto& trainers = job_.roles.trainer;
    const auto of_group = static_cast<size_t>(shards_), own = static_cast<size_t>(shard);
    const size_t groups = trainers.size() / of_group;
    const auto in_turn = [&](size_t i) {
      return trainers[(number + own + i) % groups * of_group + own];
    };
    int chosen = -1;
    for (size_t i = 0; i < groups; ++i) {
      const int from = in_turn(i);
      if (from == rank) return from;
      if (chosen < 0 && node(from) == node(rank)) chosen = from;
    }
    return chosen >= 0 ? chosen : in_turn(0);
  }

  void take(Count& count) const {
    for (int shard = 0; shard < shards_; ++shard) {
      const bool mine = holds(shard, [&](int rank) { return rank == rank_; }),
                 here = holds(shard, [&](int rank) { return node(rank) == node(rank_); });
      const bool near = mine || (here && shares());
      const int64_t whole = flow(shard, slice_);
      if (!near) count.slot = std::max(count.slot, std::min(outside(), whole));
      if (near && in_place() && !trains(rank_)) count.mapped += whole;
      if (near || !here || whole == 0) continue;
      ++count.taken;
      count.of_one += whole <= outside() ? 1 : 0;
    }
    const int64_t far = far_shards(), here = with_my_slice(true), elsewhere = with_my_slice(false);
    // What others of the node have first, and, with relays, what comes through another node's
    // replica.
    const int64_t homes = relays() ? 1 + base::ceil_div(elsewhere, here) : 1;
    if (shares() && here > 1)
      count.rings += far * homes * ring(std::min(passed(), flow_), here - 1);
    count.taken += far * homes;
    if (!shares()) {
      count.sent += far * homes * (here - 1);
      count.taken += far * homes * (here - 1);
    }
    if (relays()) count.sent += far * (nodes_of_my_slice() - 1);
  }

  // Bytes of a bucket inside a node, of one that a replica passes on, and of one by messages.
  int64_t inside() const {
    return std::min({node_bucket, bucket(), part_of_staging(most_on_node_)});
  }
  int64_t passed() const {
    return between_devices_ ? bucket()
                            : std::min({bucket(), passed_bucket, part_of_staging(shards_)});
  }
  int64_t outside() const { return passes() ? passed() : bucket(); }
  int64_t bucket() const {
    const int64_t wish = job_.options.weightsync.bucket_bytes.count;
    return between_devices_
               ? device_bucket(wish, device_flows(shards_, degree_, std::ssize(replicas_),
                                                  most_on_node_, relays()))
               : wish;
  }
  bool shares() const {
    return !between_devices_ && config::shares(job_.options.weightsync.shared_memory);
  }
  // Trainers' weights lie in a window of their node.
  bool in_place() const {
    if (job_.machine.device_bytes > 0 ||
        job_.options.weightsync.shared_memory != config::SharedMemory::automatic || relays())
      return false;
    return job_.options.train.node_weights ||
           one_node(job_, shard_group(job_, job_.roles.trainer.front()));
  }
  bool passes() const { return several_on_a_node() || relays(); }
  bool relays() const { return relays_; }

  bool trains(int rank) const {
    return std::ranges::find(job_.roles.trainer, rank) != job_.roles.trainer.end();
  }
  bool writes(int rank) const {
    return std::ranges::find(job_.roles.generator, rank) != job_.roles.generator.end();
  }
  // -1: it trains nothing.
  int shard_of(int rank) const {
    const auto found = std::ranges::find(job_.roles.trainer, rank);
    return found == job_.roles.trainer.end()
               ? -1
               : static_cast<int>(found - job_.roles.trainer.begin()) % shards_;
  }
  // Bytes that a slice takes of a shard; where there are many ranks the mean.
  int64_t flow(int shard, int slice) const {
    return flows_.empty() ? flow_ : flows_[static_cast<size_t>(shard * degree_ + slice)];
  }
  void count_flows() {
    const auto source = base::ShardLayout::by_rows(job_.models.actor.tensors, shards_);
    for (int shard = 0; shard < shards_; ++shard) {
      for (int slice = 0; slice < degree_; ++slice) {
        int64_t elements = 0;
        for (size_t p = 0; p < source.tensors().size(); ++p)
          elements += base::intersect(source.block(p, shard), job_.models.slices.block(p, slice))
                          .elements();
        flows_.push_back(elements * config::bytes_per_element(job_.compute));
      }
    }
  }
  int node(int rank) const { return job_.node_of_rank[static_cast<size_t>(rank)]; }
  // Of buckets of at most so many bytes, with a counter for its writer and each reader, on pages of
  // its own.
  static int64_t ring(int64_t most, int64_t readers) {
    constexpr int64_t counter = 64, page = 4096;
    return base::round_up(
        (1 + readers) * counter +
            buckets_in_flight * (base::round_up(most, bucket_header) + bucket_header),
        page);
  }
  static int64_t part_of_staging(int64_t rings) {
    return std::max(smallest_bucket, node_staging / (2 * rings));
  }

  int64_t most_on_a_node() const {
    int64_t most = 1;
    for (const int rank : job_.roles.generator)
      most = std::max(most, std::ranges::count(job_.roles.generator, node(rank),
                                               [&](int other) { return node(other); }));
    return most;
  }
  bool several_on_a_node() const { return most_on_node_ > degree_; }
  bool find_relays() const {
    std::vector<int> of_trainers, of_generators;
    for (const int rank : job_.roles.trainer) of_trainers.push_back(node(rank));
    for (const int rank : job_.roles.generator) of_generators.push_back(node(rank));
    return replicas_.size() > 1 && distinct(of_generators) > distinct(of_trainers);
  }
  static std::ptrdiff_t distinct(std::vector<int>& nodes) {
    std::ranges::sort(nodes);
    return std::unique(nodes.begin(), nodes.end()) - nodes.begin();
  }
  // Whether one of the ranks that have a shard is such.
  template <class Which>
  bool holds(int shard, const Which& which) const {
    bool found = false;
    for (size_t t = static_cast<size_t>(shard); t < job_.roles.trainer.size();
         t += static_cast<size_t>(shards_))
      found |= which(job_.roles.trainer[t]);
    return found;
  }
  // Of a shard group, those that no rank of this node holds.
  int64_t far_shards() const {
    int64_t far = 0;
    for (int shard = 0; shard < shards_; ++shard)
      far += holds(shard, [&](int rank) { return node(rank) == node(rank_); }) ? 0 : 1;
    return far;
  }
  // Replicas whose rank for this slice lies on this node, or does not.
  int64_t with_my_slice(bool here) const {
    return std::ranges::count_if(replicas_, [&](const auto& replica) {
      return (node(replica[static_cast<size_t>(slice_)]) == node(rank_)) == here;
    });
  }
  int64_t nodes_of_my_slice() const {
    std::vector<int> nodes;
    for (const auto& replica : replicas_)
      nodes.push_back(node(replica[static_cast<size_t>(slice_)]));
    return distinct(nodes);
  }

  static constexpr int counted_ranks = 32;

  const Job& job_;
  bool between_devices_;  // all flows open at a time, as messages
  int rank_ = 0;          // whose
  int degree_;
  int shards_ = 1;
  int64_t most_on_node_ = 1;  // generators
  bool relays_ = false;
  int slice_ = -1;  // of this rank's replica; -1: it is none
  std::vector<std::vector<int>> replicas_;
  int64_t flow_ = 0;            // bytes of a shard that a slice takes, their mean
  std::vector<int64_t> flows_;  // [shards, degree]; empty: the mean of all
};

}  // namespace

SyncStaging sync_staging(const Job& job, int rank) {
  const SyncWay way = sync_way(job);
  if (reads_in_place(job) || way == SyncWay::gathers) return {};
  return Staging(job, way == SyncWay::messages).of_role(rank);
}

}  // namespace trireme::plan
