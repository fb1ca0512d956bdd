#include "trireme/weightsync/plan.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "flow_builder.hpp"
#include "trireme/base/error.hpp"

namespace trireme::weightsync {
namespace {

using base::ShardLayout;

// The targets of one slice on one node.
struct Target {
  int rank = 0;
  int replica = 0;
};
struct Place {
  int node = 0;
  std::vector<Target> targets;
};

class Planner {
 public:
  Planner(const ShardLayout& source, const ShardLayout& target, const Members& members, int rank,
          const PlanOptions& options)
      : source_(source), target_(target), members_(members), rank_(rank), options_(options) {}

  Plan make();

 private:
  void validate() const;
  int node_of(int rank) const {
    return members_.node_of.empty() ? rank : members_.node_of[static_cast<size_t>(rank)];
  }
  int source_rank(int group, int shard) const {
    return members_.sources[static_cast<size_t>(group)][static_cast<size_t>(shard)];
  }
  bool shares_memory(int rank) const {
    return members_.shares_memory.empty() || members_.shares_memory[static_cast<size_t>(rank)];
  }
  std::vector<std::vector<Place>> find_places() const;
  bool is_held(int shard, int node) const;
  int holder(int shard, int slice, const Target& target) const;
  Flow whole_flow(int shard, int slice, int from, int to, int64_t bucket_bytes) const;
  void plan_slice(Plan& plan, int shard, int slice, const std::vector<Place>& places) const;
  void plan_direct(Plan& plan, int shard, int slice, const Target& target) const;
  void plan_far(Plan& plan, int shard, int slice, std::span<const Place> places) const;
  void pass_inside(Plan& plan, const Flow& flow, int from, const Place& place) const;
  bool passes_messages(const Place& place) const;
  bool takes_part(int shard, std::span<const Place> places) const;
  void keep(Plan& plan, Flow flow) const;
  Route route(int from, int to) const {
    if (from == to) return Route::local;
    return node_of(from) == node_of(to) && shares_memory(from) && shares_memory(to)
               ? Route::node
               : Route::message;
  }

  const ShardLayout& source_;
  const ShardLayout& target_;
  const Members& members_;
  int rank_;
  PlanOptions options_;
  int64_t passed_bytes_ = 0;  // buckets of what is passed on
};

void Planner::validate() const {
  const auto& s = source_.tensors();
  const auto& t = target_.tensors();
  VALIDATE(!members_.sources.empty() && !members_.targets.empty(), ExitCode::configuration,
           "a weight sync needs trainers and generators");
  for (const auto& group : members_.sources) {
    VALIDATE(static_cast<int>(group.size()) == source_.ranks(), ExitCode::configuration,
             "a trainer group has ", group.size(), " ranks, its layout ", source_.ranks());
  }
  for (const auto& replica : members_.targets) {
    VALIDATE(static_cast<int>(replica.size()) == target_.ranks(), ExitCode::configuration,
             "a generator replica has ", replica.size(), " ranks, its layout ", target_.ranks());
  }
  VALIDATE(s.size() == t.size(), ExitCode::configuration, "the trainer has ", s.size(),
           " tensors, the generator ", t.size());
  for (size_t i = 0; i < s.size(); ++i) {
    VALIDATE(
        s[i].name == t[i].name && s[i].rows() == t[i].rows() && s[i].columns() == t[i].columns(),
        ExitCode::configuration, "tensor ", i, " is ", s[i].name, " [", s[i].rows(), ", ",
        s[i].columns(), "] in the trainer and ", t[i].name, " [", t[i].rows(), ", ", t[i].columns(),
        "] in the generator");
  }
  VALIDATE(options_.bucket_bytes >= options_.element_bytes &&
               options_.node_bucket_bytes >= options_.element_bytes,
           ExitCode::configuration, "weightsync.bucket_bytes = ", options_.bucket_bytes,
           " holds no element: use some MiB");
}

// By slice and node, in the order of the replicas.
std::vector<std::vector<Place>> Planner::find_places() const {
  std::vector<std::vector<Place>> out(static_cast<size_t>(target_.ranks()));
  std::vector<std::map<int, size_t>> known(out.size());  // node -> place
  for (size_t replica = 0; replica < members_.targets.size(); ++replica) {
    for (size_t slice = 0; slice < out.size(); ++slice) {
      const int rank = members_.targets[replica][slice];
      const auto [at, fresh] = known[slice].try_emplace(node_of(rank), out[slice].size());
      if (fresh) out[slice].push_back({at->first, {}});
      out[slice][at->second].targets.push_back({rank, static_cast<int>(replica)});
    }
  }
  return out;
}

bool Planner::is_held(int shard, int node) const {
  return std::any_of(members_.sources.begin(), members_.sources.end(),
                     [&](const std::vector<int>& group) {
                       return node_of(group[static_cast<size_t>(shard)]) == node;
                     });
}

// The rank that gives `shard` to a target: the target itself, else a holder on its node, else one
// of the groups in turn, so that they share the work.
int Planner::holder(int shard, int slice, const Target& target) const {
  const int groups = static_cast<int>(members_.sources.size());
  const int turn = (target.replica + slice + shard) %
                   groups;  // every group gets every slice: slices differ in size
  int chosen = -1;
  for (int i = 0; i < groups; ++i) {
    const int from = source_rank((turn + i) % groups, shard);
    if (from == target.rank) return from;
    if (chosen < 0 && node_of(from) == node_of(target.rank)) chosen = from;
  }
  return chosen >= 0 ? chosen : source_rank(turn, shard);
}

// Everything of shard x slice.
Flow Planner::whole_flow(int shard, int slice, int from, int to, int64_t bucket_bytes) const {
  Flow flow;
  flow.from = flow.origin = from;
  flow.to = {to};
  flow.home = to;
  flow.shard = shard;
  flow.slice = slice;
  flow.route = route(from, to);
  FlowBuilder builder(flow, bucket_bytes / options_.element_bytes);
  for (size_t i = 0; i < source_.tensors().size(); ++i) {
    const auto run = base::copy_between(source_.block(i, shard), target_.block(i, slice));
    if (run) builder.add(static_cast<uint32_t>(i), *run);
  }
  builder.finish();
  return flow;
}

// Keeps a flow that is this rank's.
void Planner::keep(Plan& plan, Flow flow) const {
  const bool mine =
      flow.from == rank_ || std::find(flow.to.begin(), flow.to.end(), rank_) != flow.to.end();
  if (!mine || flow.buckets.empty()) return;
  flow.pieces.shrink_to_fit();
  flow.buckets.shrink_to_fit();
  plan.memory_bytes += static_cast<int64_t>(flow.pieces.size() * sizeof(Piece) +
                                            flow.buckets.size() * sizeof(Bucket) + sizeof(Flow));
  (flow.from == rank_ ? plan.sends : plan.receives).push_back(std::move(flow));
}

void Planner::plan_direct(Plan& plan, int shard, int slice, const Target& target) const {
  const int from = holder(shard, slice, target);
  if (from != rank_ && target.rank != rank_) return;
  const bool message = route(from, target.rank) == Route::message;
  keep(plan, whole_flow(shard, slice, from, target.rank,
                        message ? options_.bucket_bytes : options_.node_bucket_bytes));
}

bool Planner::takes_part(int shard, std::span<const Place> places) const {
  for (const auto& group : members_.sources) {
    if (group[static_cast<size_t>(shard)] == rank_) return true;
  }
  return std::any_of(places.begin(), places.end(), [&](const Place& place) {
    return std::ranges::find(place.targets, rank_, &Target::rank) != place.targets.end();
  });
}

// From trainers of other nodes to all targets of `places`: bucket b to target (b + shard) mod their
// number, its home; from there to one target of every other place; from these to the others of the
// place.
void Planner::plan_far(Plan& plan, int shard, int slice, std::span<const Place> places) const {
  if (!takes_part(shard, places)) return;
  size_t targets = 0;
  for (const Place& place : places) targets += place.targets.size();
  const int64_t bytes = targets > 1 ? passed_bytes_ : options_.bucket_bytes;
  const Target& any = places.front().targets.front();
  const Flow whole = whole_flow(shard, slice, holder(shard, slice, any), any.rank, bytes);
  size_t number = 0;
  for (const Place& near : places) {
    for (const Target& home : near.targets) {
      Flow flow = every_nth_bucket(whole, targets, number);
      flow.from = flow.origin = holder(shard, slice, home);
      flow.to = {home.rank};
      flow.home = home.rank;
      keep(plan, flow);
      pass_inside(plan, flow, home.rank, near);
      for (const Place& far : places) {
        if (&far == &near) continue;
        const int entry = far.targets[number % far.targets.size()].rank;
        flow.from = home.rank;
        flow.to = {entry};
        keep(plan, flow);
        pass_inside(plan, flow, entry, far);
      }
      ++number;
    }
  }
}

// Whether targets of a node that cannot share memory pass on what comes from others.
bool Planner::passes_messages(const Place& place) const {
  if (place.targets.size() < 2 || std::ranges::all_of(place.targets, [&](const Target& target) {
        return shares_memory(target.rank);
      }))
    return false;
  for (int shard = 0; shard < source_.ranks(); ++shard) {
    if (!is_held(shard, place.node)) return true;
  }
  return false;
}

// What `from` got goes on to the other targets of its node: once to all that share its memory.
void Planner::pass_inside(Plan& plan, const Flow& flow, int from, const Place& place) const {
  Flow shared = flow;
  shared.from = from;
  shared.to.clear();
  shared.route = Route::node;
  for (const Target& target : place.targets) {
    if (target.rank == from) continue;
    if (route(from, target.rank) == Route::node) {
      shared.to.push_back(target.rank);
      continue;
    }
    Flow pass = flow;
    pass.from = from;
    pass.to = {target.rank};
    keep(plan, std::move(pass));
  }
  if (!shared.to.empty()) keep(plan, std::move(shared));
}

void Planner::plan_slice(Plan& plan, int shard, int slice, const std::vector<Place>& places) const {
  std::vector<Place> far;  // of relays
  for (const Place& place : places) {
    if (is_held(shard, place.node)) {
      for (const Target& target : place.targets) plan_direct(plan, shard, slice, target);
    } else if (plan.relay) {
      far.push_back(place);
    } else {
      plan_far(plan, shard, slice, {&place, 1});
    }
  }
  if (!far.empty()) plan_far(plan, shard, slice, far);
}

Plan Planner::make() {
  validate();
  Plan plan;
  plan.sources = source_.ranks();
  plan.slices = target_.ranks();
  plan.replicas = static_cast<int>(members_.targets.size());
  plan.total_bytes = source_.total_elements() * options_.element_bytes;
  std::map<int, int> generators_on;
  std::set<int> nodes_of_trainers;
  for (const auto& replica : members_.targets) {
    for (const int rank : replica)
      plan.targets_per_node = std::max(plan.targets_per_node, ++generators_on[node_of(rank)]);
  }
  for (const auto& group : members_.sources) {
    for (const int rank : group) nodes_of_trainers.insert(node_of(rank));
  }
  // Staging inside a node is a ring per pair of ranks, and one per shard for what is passed on:
  // many of them get smaller ones.
  const auto part_of_staging = [](int rings) {
    return std::max(plan::smallest_bucket, plan::node_staging / (2 * rings));
  };
  plan.relay = plan.replicas > 1 && (options_.relay == PlanOptions::Relay::always ||
                                     (options_.relay == PlanOptions::Relay::automatic &&
                                      generators_on.size() > nodes_of_trainers.size()));
  if (options_.between_devices)
    options_.bucket_bytes = plan::device_bucket(
        options_.bucket_bytes, plan::device_flows(plan.sources, plan.slices, plan.replicas,
                                                  plan.targets_per_node, plan.relay));
  options_.node_bucket_bytes = std::min(
      {options_.node_bucket_bytes, options_.bucket_bytes, part_of_staging(plan.targets_per_node)});
  passed_bytes_ =
      options_.between_devices
          ? options_.bucket_bytes
          : std::min({options_.bucket_bytes, plan::passed_bucket, part_of_staging(plan.sources)});
  const auto places = find_places();
  plan.passes_messages =
      plan.relay || std::any_of(places.begin(), places.end(), [&](const auto& of_slice) {
        return std::any_of(of_slice.begin(), of_slice.end(),
                           [&](const Place& place) { return passes_messages(place); });
      });
  if (plan.passes_messages) options_.bucket_bytes = passed_bytes_;  // all flows are open at a time
  for (int shard = 0; shard < plan.sources; ++shard) {
    for (int slice = 0; slice < plan.slices; ++slice)
      plan_slice(plan, shard, slice, places[static_cast<size_t>(slice)]);
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
  return std::max(total_bytes / std::max(sources, 1),
                  total_bytes / std::max({slices, targets_per_node, 1}));
}

Plan make_plan(const ShardLayout& source, const ShardLayout& target, const Members& members,
               int rank, const PlanOptions& options) {
  return Planner(source, target, members, rank, options).make();
}

}  // namespace trireme::weightsync
