#include "plan/sync_staging.hpp"

#include <algorithm>

#include "plan/groups.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/config/placement.hpp"
#include "trireme/plan/model_bytes.hpp"
#include "trireme/plan/sync_buckets.hpp"

namespace trireme::plan {
namespace {

// The roles as the sync sees them.
class Staging {
 public:
  Staging(const Job& job, int rank) : job_(job), rank_(rank), degree_(static_cast<int>(job.options.generate.tensor_parallel)) {
    const auto trainers = static_cast<int>(job.roles.trainer.size());
    const auto wish = static_cast<int>(job.options.train.shard_group);
    shards_ = wish == 0 || wish >= trainers ? trainers : wish;
    for (const auto& replica : config::replica_groups(job.roles.generator, job.node_of_rank, degree_)) {
      for (size_t slice = 0; slice < replica.size(); ++slice) {
        if (replica[slice] == rank) slice_ = static_cast<int>(slice);
      }
      replicas_.push_back(replica);
    }
    const int64_t element = config::bytes_per_element(job.compute);
    flow_ = base::ceil_div<int64_t>(shard_elements(job.models.actor, shards_), degree_) * element;
  }

  SyncStaging bytes() const {
    SyncStaging out;
    const int64_t bucket = job_.options.weightsync.bucket_bytes.count;
    const int64_t passed = std::min({bucket, passed_bucket, part_of_staging(shards_)});
    const bool shares = job_.options.weightsync.shared_memory == config::SharedMemory::automatic;
    const int64_t inside = std::min({node_bucket, bucket, part_of_staging(most_on_a_node())});
    int64_t sent = 0, taken = 0;  // flows by messages
    if (trains(rank_)) {
      for (const auto& replica : replicas_) {
        for (const int rank : replica) {
          if (rank == rank_) continue;
          if (shares && node(rank) == node(rank_)) {
            out.rings += ring(inside);
          } else {
            ++sent;
          }
        }
      }
    }
    const bool passes = several_on_a_node() || relays();
    if (slice_ >= 0) {
      const int64_t far = far_shards(), here = with_my_slice(true), elsewhere = with_my_slice(false);
      // What others of the node have first, and, with relays, what comes through another node's replica.
      const int64_t homes = relays() ? 1 + base::ceil_div(elsewhere, here) : 1;
      if (shares && here > 1) out.rings += far * homes * ring(passed);
      taken += far * homes;
      if (!shares) {
        sent += far * homes * (here - 1);
        taken += far * homes * (here - 1);
      }
      if (relays()) sent += far * (nodes_of_my_slice() - 1);
    }
    const int64_t slot = std::min(passes ? passed : bucket, flow_) + bucket_header;
    const int64_t open = passes ? sent + taken : std::max<int64_t>(2, message_staging / (buckets_in_flight * slot));
    out.messages = (std::min(sent, open) + std::min(taken, open)) * buckets_in_flight * slot;
    return out;
  }

 private:
  bool trains(int rank) const { return std::ranges::find(job_.roles.trainer, rank) != job_.roles.trainer.end(); }
  int node(int rank) const { return job_.node_of_rank[static_cast<size_t>(rank)]; }
  int64_t ring(int64_t bucket) const { return buckets_in_flight * (std::min(bucket, flow_) + bucket_header); }
  static int64_t part_of_staging(int64_t rings) { return std::max(smallest_bucket, node_staging / (2 * rings)); }

  int64_t most_on_a_node() const {
    int64_t most = 1;
    for (const int rank : job_.roles.generator) most = std::max(most, std::ranges::count(job_.roles.generator, node(rank), [&](int other) { return node(other); }));
    return most;
  }
  bool several_on_a_node() const { return most_on_a_node() > degree_; }
  bool relays() const {
    std::vector<int> of_trainers, of_generators;
    for (const int rank : job_.roles.trainer) of_trainers.push_back(node(rank));
    for (const int rank : job_.roles.generator) of_generators.push_back(node(rank));
    return replicas_.size() > 1 && distinct(of_generators) > distinct(of_trainers);
  }
  static std::ptrdiff_t distinct(std::vector<int>& nodes) {
    std::ranges::sort(nodes);
    return std::unique(nodes.begin(), nodes.end()) - nodes.begin();
  }
  // Of a shard group, those that no rank of this node holds.
  int64_t far_shards() const {
    int64_t far = 0;
    for (int shard = 0; shard < shards_; ++shard) {
      bool held = false;
      for (size_t t = static_cast<size_t>(shard); t < job_.roles.trainer.size(); t += static_cast<size_t>(shards_)) held |= node(job_.roles.trainer[t]) == node(rank_);
      far += held ? 0 : 1;
    }
    return far;
  }
  // Replicas whose rank for this slice lies on this node, or does not.
  int64_t with_my_slice(bool here) const {
    return std::ranges::count_if(replicas_, [&](const auto& replica) { return (node(replica[static_cast<size_t>(slice_)]) == node(rank_)) == here; });
  }
  int64_t nodes_of_my_slice() const {
    std::vector<int> nodes;
    for (const auto& replica : replicas_) nodes.push_back(node(replica[static_cast<size_t>(slice_)]));
    return distinct(nodes);
  }

  const Job& job_;
  int rank_;
  int degree_;
  int shards_ = 1;
  int slice_ = -1;  // of this rank's replica; -1: it is none
  std::vector<std::vector<int>> replicas_;
  int64_t flow_ = 0;  // bytes of a shard that a slice takes
};

}  // namespace

SyncStaging sync_staging(const Job& job, int rank) { return reads_in_place(job) ? SyncStaging{} : Staging(job, rank).bytes(); }

}  // namespace trireme::plan
