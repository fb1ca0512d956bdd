#include "trireme/weightsync/sync.hpp"

#include <algorithm>

#include "digest.hpp"
#include "engine.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/base/text.hpp"

namespace trireme::weightsync {
namespace {

constexpr int64_t sampled_bytes = 4096;  // of each end of a tensor

uint64_t sample_digest(std::span<const void* const> tensors, std::span<const int64_t> bytes) {
  uint64_t digest = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto size = static_cast<size_t>(std::min(bytes[i], sampled_bytes));
    const auto* begin = static_cast<const std::byte*>(tensors[i]);
    digest = XXH3_64bits_withSeed(begin, size, digest + i);
    digest = XXH3_64bits_withSeed(begin + bytes[i] - static_cast<int64_t>(size), size, digest);
  }
  return digest;
}

}  // namespace

SyncCounters sync_shared(const comm::CommView& comm, int64_t version, std::span<const void* const> tensors, std::span<const int64_t> bytes) {
  const base::Stopwatch watch;
  VALIDATE(tensors.size() == bytes.size(), ExitCode::internal, tensors.size(), " shared tensors with ", bytes.size(), " sizes");
  struct Seen {
    int64_t version = 0;
    uint64_t digest = 0;
    uint64_t reads = 0;
  };
  const auto all = comm.gather_values(Seen{version, sample_digest(tensors, bytes), tensors.empty() ? 0u : 1u});
  const auto first = std::ranges::find(all, 1u, &Seen::reads);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    VALIDATE(all[rank].version == all[0].version, ExitCode::internal, "rank ", rank, " is at version ", all[rank].version,
             " of the shared weights, rank 0 at ", all[0].version);
    VALIDATE(all[rank].reads == 0 || all[rank].digest == first->digest, ExitCode::internal, "rank ", rank,
             " sees other bytes of the shared weights than rank ", first - all.begin());
  }
  SyncCounters counters;
  counters.version = version;
  counters.seconds = watch.seconds();
  return counters;
}

std::string WeightSync::Engine::describe(const SyncCounters& counters) const {
  const double seconds = comm_.max(counters.seconds);
  const double stall = comm_.max(counters.stall);
  const auto sent = comm_.sum(counters.bytes_sent);
  const auto full = comm_.sum(counters.full_bytes);
  const auto local = comm_.sum(counters.bytes_local);
  const auto in_node = comm_.sum(counters.bytes_in_node);
  const auto messages = comm_.sum(counters.messages);
  const auto busiest = comm_.max(std::max(counters.bytes_sent, counters.bytes_received));
  std::string out = base::text("weight sync ", counters.version, ": ", base::human_bytes(static_cast<double>(plan_.total_bytes)), " in ",
                               base::human_seconds(seconds), " (", base::fixed(static_cast<double>(plan_.total_bytes) / seconds / 1e9, 2),
                               " GB/s, stall ", base::human_seconds(stall), "); sent ", base::human_bytes(static_cast<double>(sent)), ", ",
                               base::human_bytes(static_cast<double>(in_node)), " of it inside nodes, copied ",
                               base::human_bytes(static_cast<double>(local)), ", ", messages, " messages; busiest rank ",
                               base::human_bytes(static_cast<double>(busiest)), ", ",
                               base::fixed(static_cast<double>(busiest) / static_cast<double>(std::max<int64_t>(plan_.bound_bytes(), 1)), 2),
                               " x max(S/M, S/max(t, g))");
  if (sent < full) out += base::text("; deltas: 1/", base::fixed(static_cast<double>(full) / static_cast<double>(std::max<int64_t>(sent, 1)), 1), " of the bytes");
  return out;
}

WeightSync::WeightSync(const comm::CommView& comm, const base::ShardLayout& source, const base::ShardLayout& target, const Members& members,
                       const SyncOptions& options)
    : engine_(std::make_unique<Engine>(comm, source, target, members, options)) {}
WeightSync::~WeightSync() = default;

SyncCounters WeightSync::run(int64_t version, const Sources& sources, std::span<void* const> targets) {
  return engine_->run(version, sources, {targets.begin(), targets.end()});
}
std::string WeightSync::differences(const Sources& sources, std::span<void* const> targets) { return engine_->differences(sources, targets); }
void WeightSync::forget() { engine_->forget(); }
int64_t WeightSync::version() const { return engine_->version(); }
const Plan& WeightSync::plan() const { return engine_->plan(); }
std::string WeightSync::describe(const SyncCounters& counters) const { return engine_->describe(counters); }
void WeightSync::corrupt_next(int64_t bucket) { engine_->corrupt_next(bucket); }

}  // namespace trireme::weightsync
