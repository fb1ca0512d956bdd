#include "trireme/weightsync/sync.hpp"

#include <algorithm>
#include <map>

#include "engine.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"

namespace trireme::weightsync {
SyncTotals WeightSync::Engine::totals(const SyncCounters& counters) const {
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
    out.full += one.full_bytes;
    out.messages += one.messages;
    out.seconds = std::max(out.seconds, one.seconds);
    out.stall = std::max(out.stall, one.stall);
  }
  out.changed = changed_shares();
  return out;
}

std::string describe(const SyncTotals& totals) {
  const auto bytes = [](int64_t count) { return base::human_bytes(static_cast<double>(count)); };
  const auto ratio = [](int64_t of, int64_t to) {
    return base::fixed(static_cast<double>(of) / static_cast<double>(std::max<int64_t>(to, 1)), 2);
  };
  std::string out =
      base::text("weight sync ", totals.version, ": ", bytes(totals.weights), " in ",
                 base::human_seconds(totals.seconds), ", ",
                 base::fixed(static_cast<double>(totals.weights) / totals.seconds / 1e9, 2),
                 " GB/s, ", base::human_seconds(totals.stall), " of it waiting; ");
  if (totals.network > 0) {
    out += base::text(bytes(totals.network), " between nodes, the busiest took ",
                      bytes(totals.busiest_node), ", the busiest rank moved ",
                      bytes(totals.busiest_rank), ", ", ratio(totals.busiest_rank, totals.bound),
                      " x max(S/M, S/max(t, g)); ");
  }
  out += base::text(
      bytes(totals.in_node), " inside nodes",
      totals.in_place > 0 ? base::text(" (", bytes(totals.in_place), " read in place)") : "",
      ", copied ", bytes(totals.local), ", ", totals.messages, " messages");
  if (totals.sent < totals.full)
    out += base::text("; deltas: 1/", ratio(totals.full, totals.sent), " of the bytes");
  for (const ChangedShare& one : totals.changed) {
    out += base::text(&one == totals.changed.data() ? "; changed: " : ", ", one.group, " ",
                      base::fixed(100 * one.share, 2), " %");
  }
  return out;
}

WeightSync::WeightSync(const comm::CommView& comm, const base::ShardLayout& source,
                       const base::ShardLayout& target, const Members& members,
                       const SyncOptions& options)
    : engine_(std::make_unique<Engine>(comm, source, target, members, options)) {}
WeightSync::~WeightSync() = default;

SyncCounters WeightSync::run(int64_t version, const Sources& sources,
                             std::span<void* const> targets) {
  return engine_->run(version, sources, {targets.begin(), targets.end()});
}
std::string WeightSync::differences(const Sources& sources, std::span<void* const> targets) {
  return engine_->differences(sources, targets);
}
void WeightSync::forget() { engine_->forget(); }
int64_t WeightSync::version() const { return engine_->version(); }
const Plan& WeightSync::plan() const { return engine_->plan(); }
SyncTotals WeightSync::totals(const SyncCounters& counters) const {
  return engine_->totals(counters);
}
void WeightSync::corrupt_next(int64_t bucket) { engine_->corrupt_next(bucket); }

}  // namespace trireme::weightsync
