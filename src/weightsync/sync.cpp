#include "trireme/weightsync/sync.hpp"

#include <algorithm>

#include "bucket_engine.hpp"
#include "device_engine.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"

namespace trireme::weightsync {

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
  if (totals.gathered > 0) {
    out += base::text(bytes(totals.gathered), " by the trainers' gathers");
  } else {
    out += base::text(
        bytes(totals.in_node), " inside nodes",
        totals.in_place > 0 ? base::text(" (", bytes(totals.in_place), " read in place)") : "");
  }
  if (totals.between_devices > 0)
    out += base::text(", ", bytes(totals.between_devices), " from GPU to GPU by NCCL");
  out += base::text(", copied ", bytes(totals.local), ", ", totals.messages, " messages");
  if (totals.sent < totals.full)
    out += base::text("; deltas: 1/", ratio(totals.full, totals.sent), " of the bytes");
  for (const ChangedShare& one : totals.changed) {
    out += base::text(&one == totals.changed.data() ? "; changed: " : ", ", one.group, " ",
                      base::fixed(100 * one.share, 2), " %");
  }
  return out;
}

namespace {

// Of what is given for each tensor, what belongs to some of them; of an empty list nothing.
template <class T>
std::vector<T> select(std::vector<T> all, const std::vector<size_t>& tensors) {
  if (all.empty() || tensors.empty()) return all;
  std::vector<T> out;
  for (const size_t tensor : tensors) out.push_back(all.at(tensor));
  return out;
}

}  // namespace

WeightSync::WeightSync(const comm::CommView& comm, const base::ShardLayout& source,
                       const base::ShardLayout& target, const Members& members,
                       const SyncOptions& options)
    : comm_(comm), source_(source), target_(target), members_(members), options_(options) {
  if (options_.plan.between_devices) way_ = std::make_unique<DeviceWay>(comm_, members_);
  set_up({});
}
WeightSync::~WeightSync() = default;

void WeightSync::set_up(const std::vector<size_t>& tensors) {
  if (engine_ && moving_ == tensors) return;
  engine_.reset();  // its windows make room
  moving_ = tensors;
  SyncOptions options = options_;
  options.groups = select(options_.groups, tensors);
  if (moving_ != options_.tensors) options.delta = DeltaScope::off;  // the next sync moves others
  const auto layout = [&](const base::ShardLayout& all) {
    return tensors.empty() ? all : all.select(tensors);
  };
  if (way_) {
    engine_ = std::make_unique<DeviceEngine>(comm_, layout(source_), layout(target_), members_,
                                             options, *way_);
  } else {
    engine_ =
        std::make_unique<BucketEngine>(comm_, layout(source_), layout(target_), members_, options);
  }
}

Sources WeightSync::moved(const Sources& sources) const {
  Sources out{select(sources.data, moving_), select(sources.changed, moving_)};
  if (std::ranges::find(out.changed, nullptr) != out.changed.end()) out.changed.clear();
  return out;
}
std::vector<void*> WeightSync::moved(std::span<void* const> targets) const {
  return select(std::vector<void*>(targets.begin(), targets.end()), moving_);
}

SyncCounters WeightSync::run(int64_t version, const Sources& sources,
                             std::span<void* const> targets) {
  set_up(all_arrived_ ? options_.tensors : std::vector<size_t>{});
  const SyncCounters counters = engine_->run(version, moved(sources), moved(targets));
  all_arrived_ = true;
  return counters;
}
std::string WeightSync::differences(const Sources& sources, std::span<void* const> targets) {
  return engine_->differences(moved(sources), moved(targets));
}
void WeightSync::forget() {
  all_arrived_ = false;
  engine_->forget();
}
int64_t WeightSync::version() const { return engine_->version(); }
const Plan& WeightSync::plan() const { return engine_->plan(); }
SyncTotals WeightSync::totals(const SyncCounters& counters) const {
  return engine_->totals(counters);
}

}  // namespace trireme::weightsync
