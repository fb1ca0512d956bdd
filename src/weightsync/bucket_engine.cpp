// Setting up: which flows this rank has, their tags, rings and buffers. Nothing here depends on a
// version.
#include "bucket_engine.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"

namespace trireme::weightsync {
namespace {

constexpr int64_t largest_message = int64_t{1} << 30;

// The order in which flows between ranks go, the same on both ends: with only some of them active
// at a time, the first unfinished one of all is active on both sides, so nobody waits in a circle.
// Neighbours first spreads the senders over the receivers.
auto turn(const Flow& flow, comm::Tag tag, int ranks) {
  return std::make_tuple((flow.to.front() - flow.from + ranks) % ranks, flow.from, flow.to.front(),
                         tag);
}

template <class List>
void sort_by_turn(List& list, int ranks) {
  std::sort(list.begin(), list.end(), [&](const auto& a, const auto& b) {
    return turn(*a.flow, a.tag, ranks) < turn(*b.flow, b.tag, ranks);
  });
}

// Where in its rank's part of the window a flow's ring lies.
struct RingPlace {
  int32_t shard = 0;
  int32_t slice = 0;
  int64_t home = 0;
  int64_t offset = 0;
  bool is_of(const Flow& flow) const {
    return shard == flow.shard && slice == flow.slice && home == flow.home;
  }
};

comm::Tag flow_tag(int number) {
  VALIDATE(number <= static_cast<int>(comm::Tag::last_flow), ExitCode::internal,
           "weight sync: flow ", number, " of one pair of ranks");
  return static_cast<comm::Tag>(static_cast<int>(comm::Tag::first_flow) + number);
}

}  // namespace

BucketEngine::BucketEngine(const comm::CommView& comm, const base::ShardLayout& source,
                           const base::ShardLayout& target, const Members& members,
                           const SyncOptions& options)
    : Engine(comm, source, members, options, options.shared_memory),
      copier_(copier_of(options.device)),
      target_copier_(copier_to_targets(
          options.device, source.total_elements() / std::max(1, target.ranks()) * element_bytes_)) {
  // A message is posted as long as its bucket may be, so it must not be one that is sent in pieces.
  VALIDATE(options.plan.bucket_bytes <= largest_message - plan::bucket_header,
           ExitCode::configuration, "weightsync.bucket_bytes = ", options.plan.bucket_bytes,
           " is a GiB or more: some MiB overlap better");
  VALIDATE(!options.device || options.delta == DeltaScope::off, ExitCode::internal,
           "a weight sync between devices sends whole rows, deltas were asked for");
  while (!set_up(source, target)) {}
  size_buffers();
  look_for_sources_in_place();
}

// Plan, flows and rings; false when some nodes cannot share memory: it begins anew with messages
// between their ranks. Every round takes at least one node away. Collective.
bool BucketEngine::set_up(const base::ShardLayout& source, const base::ShardLayout& target) {
  plan_ = make_plan(source, target, members_, comm_.rank(), options_.plan);
  outgoing_.clear();
  incoming_.clear();
  list_flows();
  connect_passes();
  std::string problem;
  try {
    open_rings();
  } catch (const UserError& error) {  // on all ranks of the node
    if (error.code() != ExitCode::out_of_memory && error.code() != ExitCode::unfit_environment)
      throw;
    problem = error.what();
  }
  const std::vector<std::string> problems = comm_.all_gather(problem);
  const auto first = std::find_if(problems.begin(), problems.end(),
                                  [](const std::string& text) { return !text.empty(); });
  if (first == problems.end()) return true;
  if (comm_.rank() == 0) {
    const auto count = std::count_if(problems.begin(), problems.end(),
                                     [](const std::string& text) { return !text.empty(); });
    log::warning(base::text("weight sync: ", count,
                            " ranks send messages inside their node instead of sharing memory (",
                            "weightsync.shared_memory): ", *first));
  }
  window_lock_ = {};
  window_ = {};
  node_ranks_.clear();
  node_comm_ = {};
  for (size_t rank = 0; rank < problems.size(); ++rank) {
    if (!problems[rank].empty()) members_.shares_memory[rank] = false;
  }
  return false;
}

// Both ends see all messages of their pair in the plan's order, so counting them gives the same tag
// on both.
void BucketEngine::list_flows() {
  std::map<int, int> next_tag_to;
  std::map<int, int> next_tag_from;
  for (const Flow& flow : plan_.sends) {
    if (flow.route == Route::local) continue;
    outgoing_.emplace_back();
    outgoing_.back().flow = &flow;
    if (flow.route == Route::message)
      outgoing_.back().tag = flow_tag(next_tag_to[flow.to.front()]++);
  }
  for (const Flow& flow : plan_.receives) {
    incoming_.emplace_back();
    incoming_.back().flow = &flow;
    if (flow.route == Route::message) incoming_.back().tag = flow_tag(next_tag_from[flow.from]++);
  }
  sort_by_turn(outgoing_, comm_.size());
  sort_by_turn(incoming_, comm_.size());
}

void BucketEngine::connect_passes() {
  for (Incoming& in : incoming_) {
    for (Outgoing& out : outgoing_) {
      if (out.flow->passed_on() && out.flow->shard == in.flow->shard &&
          out.flow->slice == in.flow->slice && out.flow->home == in.flow->home) {
        in.passes.push_back(&out);
      }
    }
    in.passed.assign(in.passes.size(), false);
  }
}

int64_t BucketEngine::slot_bytes(const Flow& flow) const {
  int64_t most = 0;
  for (const Bucket& bucket : flow.buckets) most = std::max(most, bucket.elements);
  // Slots begin on cache lines; the header goes in front.
  return static_cast<int64_t>(sizeof(BucketHeader)) + (most * element_bytes_ + 63) / 64 * 64;
}

// The ring of a flow inside a node lies in the sender's part of one window; the table of places
// goes round once.
void BucketEngine::open_rings() {
  const int me = comm_.rank();
  const auto node = [&](int rank) { return members_.node_of[static_cast<size_t>(rank)]; };
  int together = 0;
  for (int rank = 0; rank < comm_.size(); ++rank)
    together += node(rank) == node(me) && members_.shares_memory[static_cast<size_t>(rank)] ? 1 : 0;
  const bool alone = together <= 1 || !members_.shares_memory[static_cast<size_t>(me)];
  node_comm_ = comm::Comm::split(comm_, alone ? -1 : node(me), me, "weightsync node");
  if (alone) return;
  std::vector<RingPlace> mine;
  int64_t bytes = 0;
  for (const Outgoing& out : outgoing_) {
    if (out.flow->route != Route::node) continue;
    mine.push_back({out.flow->shard, out.flow->slice, out.flow->home, bytes});
    bytes += ring_bytes(options_.in_flight, slot_bytes(*out.flow),
                        static_cast<int>(out.flow->to.size()));
  }
  window_ = comm::SharedWindow(node_comm_.view(), bytes, "trireme weightsync");
  if (options_.device)
    window_lock_ = comm::LockedPages(window_.part(0), window_.total_bytes(),
                                     "the buckets of weights between ranks of a node");
  node_ranks_ = node_comm_.view().gather_values<int32_t>(me);
  const auto tables = node_comm_.view().gather_ragged<RingPlace>(mine);
  auto place = [&](const Flow& flow) {
    const int sender = node_rank(flow.from);
    for (const RingPlace& found : tables[static_cast<size_t>(sender)]) {
      if (found.is_of(flow)) return window_.part(sender) + found.offset;
    }
    throw InternalError(base::text("rank ", flow.from, " has no ring for shard ", flow.shard,
                                   " of slice ", flow.slice, " to rank ", me));
  };
  for (Outgoing& out : outgoing_) {
    if (out.flow->route == Route::node) out.ring = place(*out.flow);
  }
  for (Incoming& in : incoming_) {
    if (in.flow->route == Route::node) in.ring = place(*in.flow);
  }
}

// A replica forwards buckets as they came.
void BucketEngine::look_for_sources_in_place() {
  if (node_ranks_.empty() || options_.device || !options_.in_place || plan_.relay ||
      options_.delta == DeltaScope::everywhere)
    return;
  std::vector<int> wanted;
  for (const Incoming& in : incoming_) {
    if (in.ring == nullptr || in.flow->passed_on()) continue;
    EXPECT(in.passes.empty());
    const int from = node_rank(in.flow->from);
    if (std::ranges::find(wanted, from) == wanted.end()) wanted.push_back(from);
  }
  in_place_.emplace(node_comm_.view(), std::move(wanted), options_.verify);
}

// Where messages are passed on all flows must be open, or a bucket could wait for a flow whose turn
// never comes; their buckets are small.
void BucketEngine::size_buffers() {
  int64_t bytes = static_cast<int64_t>(sizeof(BucketHeader));
  const auto see = [&](const Flow& flow) {
    if (flow.route == Route::message) bytes = std::max(bytes, slot_bytes(flow));
  };
  for (const Outgoing& out : outgoing_) see(*out.flow);
  for (const Incoming& in : incoming_) see(*in.flow);
  pool_ = std::make_unique<BufferPool>(bytes, options_.device);
  const auto fit = static_cast<size_t>(plan::message_staging / (options_.in_flight * bytes));
  most_active_ =
      plan_.passes_messages ? outgoing_.size() + incoming_.size() : std::max<size_t>(2, fit);
}

}  // namespace trireme::weightsync
