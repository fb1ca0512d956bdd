#include "engine.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "trireme/comm/agree.hpp"
#include "trireme/comm/topology.hpp"

namespace trireme::weightsync {
namespace {

// With the nodes of the ranks, and whether these share memory inside them.
Members with_nodes(Members members, const comm::CommView& comm, bool shares_memory) {
  if (members.node_of.empty()) members.node_of = comm::discover(comm).node_of;
  members.shares_memory.assign(static_cast<size_t>(comm.size()), shares_memory);
  return members;
}

}  // namespace

Engine::Engine(const comm::CommView& comm, const base::ShardLayout& source, const Members& members,
               const SyncOptions& options, bool shares_memory)
    : comm_(comm),
      options_(options),
      members_(with_nodes(members, comm, shares_memory)),
      tensors_(source.tensors()),
      element_bytes_(options.plan.element_bytes) {
  for (const auto& group : members_.sources) {
    for (size_t shard = 0; shard < group.size(); ++shard) {
      if (group[shard] != comm_.rank()) continue;
      shard_elements_.resize(tensors_.size());
      for (size_t i = 0; i < tensors_.size(); ++i)
        shard_elements_[i] =
            std::max<int64_t>(0, source.block(i, static_cast<int>(shard)).elements());
    }
  }
}

void Engine::begin(int64_t version, Sources sources, std::vector<void*> targets) {
  EXPECT(!running_);
  VALIDATE(shard_elements_.empty() || sources.data.size() == tensors_.size(), ExitCode::internal,
           "a trainer rank gives ", sources.data.size(), " of ", tensors_.size(),
           " tensors to a weight sync");
  const bool receives =
      !plan_.receives.empty() || std::any_of(plan_.sends.begin(), plan_.sends.end(),
                                             [](const Flow& f) { return f.route == Route::local; });
  VALIDATE(!receives || targets.size() == tensors_.size(), ExitCode::internal,
           "a generator rank gives ", targets.size(), " of ", tensors_.size(),
           " tensors to a weight sync");
  VALIDATE(version >= 0, ExitCode::internal, "a weight sync cannot have the version ", version);
  running_ = true;
  next_version_ = version;
  sources_ = std::move(sources);
  targets_ = std::move(targets);
  counters_ = {};
  counters_.version = version;
  error_.reset();
  watch_.restart();
}

// At the end: the same version everywhere and no error anywhere, or the same error on every rank.
void Engine::agree() {
  const int64_t of_rank_0 = comm_.broadcast_value(next_version_, 0);
  const auto failure = comm::failure_of_any(comm_, [&] {
    if (error_) throw *error_;
    VALIDATE(next_version_ == of_rank_0, ExitCode::internal, "weight sync of version ",
             next_version_, " while rank 0 syncs version ", of_rank_0);
  });
  if (!failure) return;
  running_ = false;
  version_ = never;  // the targets hold a mixture
  throw UserError(failure->code, failure->message);
}

SyncCounters Engine::end() {
  version_ = next_version_;
  running_ = false;
  counters_.seconds = watch_.seconds();
  return counters_;
}

bool Engine::leaves_node(const Flow& flow) const {
  return members_.node_of[static_cast<size_t>(flow.from)] !=
         members_.node_of[static_cast<size_t>(flow.to.front())];
}

SyncTotals Engine::totals(const SyncCounters& counters) const {
  SyncTotals out;
  out.version = counters.version;
  out.weights = plan_.total_bytes;
  out.bound = plan_.bound_bytes();
  std::map<int, int64_t> taken;
  const auto all = comm_.gather_values(counters);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const SyncCounters& one = all[rank];
    int64_t& node = taken[members_.node_of[rank]];
    node += one.network_received;
    out.network += one.network_received;
    out.busiest_node = std::max(out.busiest_node, node);
    out.busiest_rank = std::max({out.busiest_rank, one.network_sent, one.network_received});
    out.in_node += one.bytes_in_node;
    out.in_place += one.bytes_in_place;
    out.local += one.bytes_local;
    out.sent += one.bytes_sent;
    out.between_devices += one.bytes_between_devices;
    out.full += one.full_bytes;
    out.messages += one.messages;
    out.seconds = std::max(out.seconds, one.seconds);
    out.stall = std::max(out.stall, one.stall);
  }
  out.changed = changed_shares();
  return out;
}

}  // namespace trireme::weightsync
