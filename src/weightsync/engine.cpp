// Setting up: which flows this rank has, their tags, rings and buffers. Nothing here depends on a version.
#include "engine.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"

namespace trireme::weightsync {
namespace {

constexpr int64_t staging_bytes = int64_t{256} << 20;  // of message buffers per direction
constexpr int64_t largest_message = int64_t{1} << 30;

// Ranks that share a node, for the plan; every rank alone when shared memory is not wanted.
Members with_nodes(Members members, const comm::CommView& comm, const SyncOptions& options) {
  if (!options.shared_memory) {
    members.node_of.resize(static_cast<size_t>(comm.size()));
    std::iota(members.node_of.begin(), members.node_of.end(), 0);
  } else if (members.node_of.empty()) {
    members.node_of = comm::discover(comm).node_of;
  }
  return members;
}

// The order in which flows between ranks go, the same on both ends: with only some of them active at a time, the first unfinished
// one of all is active on both sides, so nobody waits in a circle. Neighbours first spreads the senders over the receivers.
auto turn(const Flow& flow, comm::Tag tag, int ranks) {
  return std::make_tuple((flow.to - flow.from + ranks) % ranks, flow.from, flow.to, tag);
}

template <class List>
void sort_by_turn(List& list, int ranks) {
  std::sort(list.begin(), list.end(), [&](const auto& a, const auto& b) { return turn(*a.flow, a.tag, ranks) < turn(*b.flow, b.tag, ranks); });
}

struct RingPlace {
  int64_t to = 0;
  comm::Tag tag = comm::Tag::first_flow;
  int32_t unused = 0;
  int64_t offset = 0;
};

comm::Tag flow_tag(int number) {
  VALIDATE(number <= static_cast<int>(comm::Tag::last_flow), ExitCode::internal, "weight sync: flow ", number, " of one pair of ranks");
  return static_cast<comm::Tag>(static_cast<int>(comm::Tag::first_flow) + number);
}

}  // namespace

WeightSync::Engine::Engine(const comm::CommView& comm, const base::ShardLayout& source, const base::ShardLayout& target, const Members& members,
                           const SyncOptions& options)
    : comm_(comm), options_(options), members_(with_nodes(members, comm, options)), tensors_(source.tensors()),
      element_bytes_(options.plan.element_bytes), copier_(copier_of(options.device)) {
  VALIDATE(options.plan.bucket_bytes <= largest_message, ExitCode::configuration, "weightsync.bucket_bytes = ", options.plan.bucket_bytes,
           " is more than 1 GiB: some MiB overlap better");
  while (!set_up(source, target)) {
  }
  size_buffers();
}

// Plan, flows and rings; false when some nodes cannot share memory: their ranks now count as nodes of their own, and it begins
// anew, since the plan chooses whom to ask by nodes. Every round takes at least one node away. Collective.
bool WeightSync::Engine::set_up(const base::ShardLayout& source, const base::ShardLayout& target) {
  plan_ = make_plan(source, target, members_, comm_.rank(), options_.plan);
  outgoing_.clear();
  incoming_.clear();
  shard_elements_.clear();
  for (const auto& group : members_.sources) {
    for (size_t shard = 0; shard < group.size(); ++shard) {
      if (group[shard] != comm_.rank()) continue;
      shard_elements_.resize(tensors_.size());
      for (size_t i = 0; i < tensors_.size(); ++i) shard_elements_[i] = std::max<int64_t>(0, source.block(i, static_cast<int>(shard)).elements());
    }
  }
  list_flows();
  connect_passes();
  std::string problem;
  try {
    open_rings();
  } catch (const UserError& error) {  // on all ranks of the node
    if (error.code() != ExitCode::out_of_memory && error.code() != ExitCode::unfit_environment) throw;
    problem = error.what();
  }
  const std::vector<std::string> problems = comm_.all_gather(problem);
  const auto first = std::find_if(problems.begin(), problems.end(), [](const std::string& text) { return !text.empty(); });
  if (first == problems.end()) return true;
  if (comm_.rank() == 0) {
    const auto count = std::count_if(problems.begin(), problems.end(), [](const std::string& text) { return !text.empty(); });
    log::warning(base::text("weight sync: ", count, " ranks send messages inside their node instead of sharing memory (",
                            "weightsync.shared_memory): ", *first));
  }
  window_lock_ = {};
  window_ = {};
  node_comm_ = {};
  int next = 1 + *std::max_element(members_.node_of.begin(), members_.node_of.end());
  for (size_t rank = 0; rank < problems.size(); ++rank) {
    if (!problems[rank].empty()) members_.node_of[rank] = next++;
  }
  return false;
}

// Both ends see all flows of their pair in the plan's order, so counting them gives the same tag on both.
void WeightSync::Engine::list_flows() {
  std::map<int, int> next_tag_to;
  std::map<int, int> next_tag_from;
  for (const Flow& flow : plan_.sends) {
    if (flow.route == Route::local) continue;
    outgoing_.emplace_back();
    outgoing_.back().flow = &flow;
    outgoing_.back().tag = flow_tag(next_tag_to[flow.to]++);
  }
  for (const Flow& flow : plan_.receives) {
    incoming_.emplace_back();
    incoming_.back().flow = &flow;
    incoming_.back().tag = flow_tag(next_tag_from[flow.from]++);
  }
  sort_by_turn(outgoing_, comm_.size());
  sort_by_turn(incoming_, comm_.size());
}

void WeightSync::Engine::connect_passes() {
  for (Incoming& in : incoming_) {
    for (Outgoing& out : outgoing_) {
      const bool fed = out.flow->relayed() && out.flow->shard == in.flow->shard && out.flow->slice == in.flow->slice && !in.flow->relayed();
      if (fed) in.passes.push_back(&out);
    }
    in.passed.assign(in.passes.size(), false);
  }
}

int64_t WeightSync::Engine::slot_bytes(const Flow& flow) const {
  int64_t most = 0;
  for (const Bucket& bucket : flow.buckets) most = std::max(most, bucket.elements);
  // Slots begin on cache lines; the header goes in front.
  return static_cast<int64_t>(sizeof(BucketHeader)) + (most * element_bytes_ + 63) / 64 * 64;
}

int64_t WeightSync::Engine::largest_bucket() const {
  int64_t most = 0;
  for (const auto* flows : {&plan_.sends, &plan_.receives}) {
    for (const Flow& flow : *flows) {
      for (const Bucket& bucket : flow.buckets) most = std::max(most, bucket.elements * element_bytes_);
    }
  }
  return most;
}

// A ring per flow between two ranks of a node lies in the sender's part of one window; the table of places goes round once.
void WeightSync::Engine::open_rings() {
  const int me = comm_.rank();
  const int node = members_.node_of.empty() ? me : members_.node_of[static_cast<size_t>(me)];
  const bool alone = std::count(members_.node_of.begin(), members_.node_of.end(), node) <= 1;
  node_comm_ = comm::Comm::split(comm_, alone ? -1 : node, me, "weightsync node");
  if (alone) return;
  std::vector<RingPlace> mine;
  int64_t bytes = 0;
  for (const Outgoing& out : outgoing_) {
    if (out.flow->route != Route::node) continue;
    mine.push_back({out.flow->to, out.tag, 0, bytes});
    bytes += ring_bytes(options_.in_flight, slot_bytes(*out.flow));
  }
  window_ = comm::SharedWindow(node_comm_.view(), bytes, "trireme weightsync");
  if (options_.device) window_lock_ = comm::LockedPages(window_.part(0), window_.total_bytes(), "the buckets of weights between ranks of a node");
  const std::vector<int32_t> ranks = node_comm_.view().gather_values<int32_t>(me);
  const auto tables = node_comm_.view().gather_ragged<RingPlace>(mine);
  auto place = [&](int from, int to, comm::Tag tag) {
    const auto sender = std::find(ranks.begin(), ranks.end(), from) - ranks.begin();
    for (const RingPlace& found : tables[static_cast<size_t>(sender)]) {
      if (found.to == to && found.tag == tag) return window_.part(static_cast<int>(sender)) + found.offset;
    }
    throw InternalError(base::text("rank ", from, " has no ring for its flow ", static_cast<int>(tag), " to rank ", to));
  };
  for (Outgoing& out : outgoing_) {
    if (out.flow->route == Route::node) out.ring = place(me, out.flow->to, out.tag);
  }
  for (Incoming& in : incoming_) {
    if (in.flow->route == Route::node) in.ring = place(in.flow->from, me, in.tag);
  }
}

// Relays must all be open, or a bucket to be passed on could wait for a flow whose turn never comes; their buckets are small.
void WeightSync::Engine::size_buffers() {
  int64_t bytes = static_cast<int64_t>(sizeof(BucketHeader));
  for (const Outgoing& out : outgoing_) bytes = std::max(bytes, slot_bytes(*out.flow));
  for (const Incoming& in : incoming_) bytes = std::max(bytes, slot_bytes(*in.flow));
  pool_ = std::make_unique<BufferPool>(bytes, options_.device);
  if (options_.device) scratch_ = comm::PinnedBuffer(largest_bucket(), "a bucket of weights", "set a smaller weightsync.bucket_bytes");
  const auto fit = static_cast<size_t>(staging_bytes / (options_.in_flight * bytes));
  most_active_ = plan_.relay ? outgoing_.size() + incoming_.size() : std::max<size_t>(2, fit);
}

}  // namespace trireme::weightsync
