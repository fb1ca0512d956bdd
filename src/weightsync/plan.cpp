#include "trireme/weightsync/plan.hpp"

#include <algorithm>
#include <map>

#include "trireme/base/error.hpp"

namespace trireme::weightsync {
namespace {

using base::CopyRun;
using base::ShardLayout;

constexpr int64_t node_staging = int64_t{64} << 20;    // bytes of rings that a rank gives to its node
constexpr int64_t smallest_bucket = int64_t{64} << 10;
// A relay passes a bucket on only when it has all of it, so small ones pipeline better (docs/design/0008).
constexpr int64_t relay_bucket = int64_t{256} << 10;

// Splits `run` after at most `limit` elements: the part before, and the rest in place.
CopyRun cut(CopyRun& run, int64_t limit) {
  CopyRun head = run;
  if (run.columns <= limit && run.rows > 1) {  // whole rows
    head.rows = std::min(run.rows, limit / run.columns);
    run.rows -= head.rows;
    run.source_offset += head.rows * run.source_stride;
    run.target_offset += head.rows * run.target_stride;
    return head;
  }
  // One row, or rows longer than a bucket: a part of the first row. A run of several such rows must go row by row, so that the rest
  // of the first one comes next; the caller has split it.
  head.rows = 1;
  head.columns = std::min(run.columns, limit);
  run.columns -= head.columns;
  run.source_offset += head.columns;
  run.target_offset += head.columns;
  return head;
}

// Appends `run` to a flow's pieces, row by row where its rows are longer than a bucket.
class FlowBuilder {
 public:
  FlowBuilder(Flow& flow, int64_t bucket_elements) : flow_(flow), limit_(bucket_elements) {}

  void add(uint32_t tensor, const CopyRun& run) {
    if (run.rows == 1 || run.columns <= limit_) {
      add_cuttable(tensor, run);
      return;
    }
    for (int64_t r = 0; r < run.rows; ++r) {
      CopyRun row = run;
      row.rows = 1;
      row.source_offset += r * run.source_stride;
      row.target_offset += r * run.target_stride;
      add_cuttable(tensor, row);
    }
  }

  void finish() {
    if (open_.elements > 0) close();
  }

 private:
  void add_cuttable(uint32_t tensor, CopyRun run) {
    for (;;) {
      const int64_t room = limit_ - open_.elements;
      if (run.elements() <= room) {
        append(tensor, run);
        return;
      }
      // A row that does not fit into what is left begins the next bucket, unless it alone is longer than one.
      if (room == 0 || (run.rows > 1 && run.columns > room)) {
        close();
        continue;
      }
      append(tensor, cut(run, room));
      close();
    }
  }

  void append(uint32_t tensor, const CopyRun& run) {
    flow_.pieces.push_back({tensor, run});
    open_.last = flow_.pieces.size();
    open_.elements += run.elements();
  }

  void close() {
    open_.number = next_++;
    flow_.buckets.push_back(open_);
    open_ = Bucket{flow_.pieces.size(), flow_.pieces.size(), 0, 0};
  }

  Flow& flow_;
  int64_t limit_;
  Bucket open_;
  int32_t next_ = 0;
};

// Drops the buckets that `wanted` refuses, with their pieces.
template <class F>
void keep_buckets(Flow& flow, F&& wanted) {
  Flow kept = flow;
  kept.pieces.clear();
  kept.buckets.clear();
  for (Bucket bucket : flow.buckets) {
    if (!wanted(bucket)) continue;
    const size_t first = kept.pieces.size();
    kept.pieces.insert(kept.pieces.end(), flow.pieces.begin() + static_cast<std::ptrdiff_t>(bucket.first),
                       flow.pieces.begin() + static_cast<std::ptrdiff_t>(bucket.last));
    bucket.first = first;
    bucket.last = kept.pieces.size();
    kept.buckets.push_back(bucket);
  }
  flow = std::move(kept);
}

class Planner {
 public:
  Planner(const ShardLayout& source, const ShardLayout& target, const Members& members, int rank, const PlanOptions& options)
      : source_(source), target_(target), members_(members), rank_(rank), options_(options) {}

  Plan make();

 private:
  void validate() const;
  int node_of(int rank) const { return members_.node_of.empty() ? rank : members_.node_of[static_cast<size_t>(rank)]; }
  int target_rank(int replica, int slice) const {
    return members_.targets[static_cast<size_t>(replica)][static_cast<size_t>(slice)];
  }
  int source_rank(int group, int shard) const { return members_.sources[static_cast<size_t>(group)][static_cast<size_t>(shard)]; }
  int holder(int shard, int replica, int slice) const;
  Flow whole_flow(int shard, int slice, int from, int to) const;
  void plan_direct(Plan& plan, int shard, int replica, int slice) const;
  void plan_relayed(Plan& plan, int shard, int slice) const;
  void keep(Plan& plan, Flow flow) const;
  Route route(int from, int to) const {
    if (from == to) return Route::local;
    return node_of(from) == node_of(to) ? Route::node : Route::message;
  }

  const ShardLayout& source_;
  const ShardLayout& target_;
  const Members& members_;
  int rank_;
  PlanOptions options_;
};

void Planner::validate() const {
  const auto& s = source_.tensors();
  const auto& t = target_.tensors();
  VALIDATE(!members_.sources.empty() && !members_.targets.empty(), ExitCode::configuration, "a weight sync needs trainers and generators");
  for (const auto& group : members_.sources) {
    VALIDATE(static_cast<int>(group.size()) == source_.ranks(), ExitCode::configuration, "a trainer group has ", group.size(),
             " ranks, its layout ", source_.ranks());
  }
  for (const auto& replica : members_.targets) {
    VALIDATE(static_cast<int>(replica.size()) == target_.ranks(), ExitCode::configuration, "a generator replica has ", replica.size(),
             " ranks, its layout ", target_.ranks());
  }
  VALIDATE(s.size() == t.size(), ExitCode::configuration, "the trainer has ", s.size(), " tensors, the generator ", t.size());
  for (size_t i = 0; i < s.size(); ++i) {
    VALIDATE(s[i].name == t[i].name && s[i].rows() == t[i].rows() && s[i].columns() == t[i].columns(), ExitCode::configuration, "tensor ", i,
             " is ", s[i].name, " [", s[i].rows(), ", ", s[i].columns(), "] in the trainer and ", t[i].name, " [", t[i].rows(), ", ",
             t[i].columns(), "] in the generator");
  }
  VALIDATE(options_.bucket_bytes >= options_.element_bytes && options_.node_bucket_bytes >= options_.element_bytes, ExitCode::configuration,
           "weightsync.bucket_bytes = ", options_.bucket_bytes, " holds no element: use some MiB");
}

// Which of the groups that hold `shard` gives it to a target: the target itself, else a holder on its node, else in turn, so that
// the groups share the work.
int Planner::holder(int shard, int replica, int slice) const {
  const int to = target_rank(replica, slice);
  const int groups = static_cast<int>(members_.sources.size());
  const int turn = (replica + slice + shard) % groups;  // every group gets every slice: slices differ in size
  int chosen = -1;
  for (int i = 0; i < groups; ++i) {
    const int group = (turn + i) % groups;
    const int from = source_rank(group, shard);
    if (from == to) return group;
    if (chosen < 0 && node_of(from) == node_of(to)) chosen = group;
  }
  return chosen >= 0 ? chosen : turn;
}

// Everything of shard x slice, in buckets for the way from one rank to the other.
Flow Planner::whole_flow(int shard, int slice, int from, int to) const {
  Flow flow;
  flow.from = from;
  flow.to = to;
  flow.shard = shard;
  flow.slice = slice;
  flow.origin = from;
  flow.route = route(from, to);
  const int64_t bytes = flow.route == Route::message ? options_.bucket_bytes : std::min(options_.node_bucket_bytes, options_.bucket_bytes);
  FlowBuilder builder(flow, bytes / options_.element_bytes);
  for (size_t i = 0; i < source_.tensors().size(); ++i) {
    const auto run = base::copy_between(source_.block(i, shard), target_.block(i, slice));
    if (run) builder.add(static_cast<uint32_t>(i), *run);
  }
  builder.finish();
  return flow;
}

void Planner::keep(Plan& plan, Flow flow) const {
  if (flow.buckets.empty()) return;
  flow.pieces.shrink_to_fit();
  flow.buckets.shrink_to_fit();
  plan.memory_bytes += static_cast<int64_t>(flow.pieces.size() * sizeof(Piece) + flow.buckets.size() * sizeof(Bucket) + sizeof(Flow));
  if (flow.from == rank_) {
    plan.sends.push_back(std::move(flow));
  } else {
    plan.receives.push_back(std::move(flow));
  }
}

void Planner::plan_direct(Plan& plan, int shard, int replica, int slice) const {
  const int to = target_rank(replica, slice);
  const int from = source_rank(holder(shard, replica, slice), shard);
  if (from != rank_ && to != rank_) return;
  keep(plan, whole_flow(shard, slice, from, to));
}

// Bucket b of shard x slice goes to replica (b + shard) mod R, which passes it on. All flows of one shard x slice use the same
// buckets (those of a message), whatever their route. A replica that holds the shard itself needs no relay.
void Planner::plan_relayed(Plan& plan, int shard, int slice) const {
  const int replicas = static_cast<int>(members_.targets.size());
  std::vector<int> others;  // replicas whose rank is no holder of the shard
  for (int r = 0; r < replicas; ++r) {
    if (source_rank(holder(shard, r, slice), shard) == target_rank(r, slice)) {
      plan_direct(plan, shard, r, slice);
    } else {
      others.push_back(r);
    }
  }
  if (others.empty()) return;
  const int fan = static_cast<int>(others.size());
  const int origin = source_rank(holder(shard, others[0], slice), shard);
  const bool mine = origin == rank_ || std::any_of(others.begin(), others.end(), [&](int r) { return target_rank(r, slice) == rank_; });
  if (!mine) return;
  PlanOptions as_message = options_;
  as_message.node_bucket_bytes = options_.bucket_bytes;
  const Planner same_buckets(source_, target_, members_, rank_, as_message);
  for (int home = 0; home < fan; ++home) {
    const int first = target_rank(others[static_cast<size_t>(home)], slice);
    Flow hop = same_buckets.whole_flow(shard, slice, origin, first);
    keep_buckets(hop, [&](const Bucket& b) { return (b.number + shard) % fan == home; });
    for (const int other : others) {
      const int second = target_rank(other, slice);
      if (second == first || (first != rank_ && second != rank_)) continue;
      Flow pass = hop;
      pass.from = first;
      pass.to = second;
      pass.route = route(first, second);
      keep(plan, std::move(pass));
    }
    if (origin == rank_ || first == rank_) keep(plan, std::move(hop));
  }
}

Plan Planner::make() {
  validate();
  Plan plan;
  plan.sources = source_.ranks();
  plan.slices = target_.ranks();
  plan.replicas = static_cast<int>(members_.targets.size());
  plan.total_bytes = source_.total_elements() * options_.element_bytes;
  std::map<int, int> generators_on;
  for (const auto& replica : members_.targets) {
    for (const int rank : replica) plan.targets_per_node = std::max(plan.targets_per_node, ++generators_on[node_of(rank)]);
  }
  // Staging inside a node is one ring per pair of ranks: many ranks get smaller ones.
  options_.node_bucket_bytes = std::min(options_.node_bucket_bytes, std::max(smallest_bucket, node_staging / (2 * plan.targets_per_node)));
  const int trainers = static_cast<int>(members_.sources.size()) * plan.sources;
  const bool across_nodes = generators_on.size() > 1;
  plan.relay = plan.replicas > 1 && (options_.relay == PlanOptions::Relay::always ||
                                     (options_.relay == PlanOptions::Relay::automatic && across_nodes && plan.replicas * plan.slices > trainers));
  if (plan.relay) options_.bucket_bytes = std::min(options_.bucket_bytes, relay_bucket);
  for (int shard = 0; shard < plan.sources; ++shard) {
    for (int slice = 0; slice < plan.slices; ++slice) {
      if (plan.relay) {
        plan_relayed(plan, shard, slice);
        continue;
      }
      for (int replica = 0; replica < plan.replicas; ++replica) plan_direct(plan, shard, replica, slice);
    }
  }
  return plan;
}

}  // namespace

int64_t Flow::elements() const {
  int64_t sum = 0;
  for (const Bucket& bucket : buckets) sum += bucket.elements;
  return sum;
}

int64_t Plan::bound_bytes() const {
  return std::max(total_bytes / std::max(sources, 1), total_bytes / std::max({slices, targets_per_node, 1}));
}

Plan make_plan(const ShardLayout& source, const ShardLayout& target, const Members& members, int rank, const PlanOptions& options) {
  return Planner(source, target, members, rank, options).make();
}

}  // namespace trireme::weightsync
