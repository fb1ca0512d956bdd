#include "device_engine.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/device_copies.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::weightsync {
namespace {

constexpr int64_t alignment = 64;  // bytes, of what is packed

std::vector<int> ranks_of(const Members& members) {
  std::vector<int> ranks;
  for (const auto* side : {&members.sources, &members.targets}) {
    for (const auto& group : *side) ranks.insert(ranks.end(), group.begin(), group.end());
  }
  std::ranges::sort(ranks);
  const auto repeated = std::ranges::unique(ranks);
  ranks.erase(repeated.begin(), repeated.end());
  return ranks;
}

// A bucket that a rank passes on is unpacked when the round after that of its arrival has begun, so
// it can be packed for the one after that.
size_t first_round(const Flow& flow) {
  constexpr size_t later = 2;
  if (!flow.passed_on()) return 0;
  return flow.from == flow.home ? later : 2 * later;
}

// Between two ranks messages match by their order.
auto turn(const Flow& flow) { return std::tuple(flow.shard, flow.slice, flow.home); }

}  // namespace

DeviceWay::DeviceWay(const comm::CommView& comm, const Members& members)
    : ranks_(ranks_of(members)), part_(comm::Comm::subset(comm, ranks_, "weights between GPUs")) {
  if (std::ranges::find(ranks_, comm.rank()) != ranks_.end())
    messages_ = comm::make_device_messages(part_);
}

int DeviceWay::peer(int rank) const {
  return static_cast<int>(std::ranges::find(ranks_, rank) - ranks_.begin());
}

DeviceEngine::DeviceEngine(const comm::CommView& comm, const base::ShardLayout& source,
                           const base::ShardLayout& target, const Members& members,
                           const SyncOptions& options, const DeviceWay& way)
    : Engine(comm, source, members, options, false), way_(way) {
  VALIDATE(options.device && options.delta == DeltaScope::off, ExitCode::internal,
           "a weight sync from GPU to GPU of tensors on the host, or of deltas, was asked for");
  options_.plan.between_devices = true;
  plan_ = make_plan(source, target, members_, comm_.rank(), options_.plan);
  for (const Flow& flow : plan_.sends) {
    if (flow.route != Route::local) add(flow, true);
  }
  for (const Flow& flow : plan_.receives) add(flow, false);
  for (size_t number = 0; number < rounds_.size(); ++number) place(number);
  if (way_.messages() != nullptr)
    packed_ = way_.messages()->reserve(half_bytes_[0] + half_bytes_[1]);
}

void DeviceEngine::add(const Flow& flow, bool sends) {
  const size_t first = first_round(flow), last = first + flow.buckets.size();
  rounds_.resize(std::max(rounds_.size(), last));
  for (size_t i = 0; i < flow.buckets.size(); ++i) {
    Round& round = rounds_[first + i];
    (sends ? round.sends : round.receives).push_back({&flow, &flow.buckets[i]});
  }
}

// Which of a round's buckets are packed, and where.
void DeviceEngine::place(size_t number) {
  Round& round = rounds_[number];
  int64_t used = 0;
  for (auto* moves : {&round.sends, &round.receives}) {
    std::ranges::sort(*moves, {}, [](const Move& move) { return turn(*move.flow); });
    for (Move& move : *moves) {
      const bool at_source = moves == &round.sends && !move.flow->passed_on();
      move.run = one_run(pieces_of(*move.flow, *move.bucket),
                         at_source ? Side::source : Side::target, element_bytes_);
      if (move.run) continue;
      move.packed = used;
      used += base::round_up(bytes_of(*move.bucket), alignment);
    }
  }
  half_bytes_[number % 2] = std::max(half_bytes_[number % 2], used);
}

std::span<const void* const> DeviceEngine::tensors_of(const Flow& flow) const {
  if (flow.passed_on()) return targets_;
  return sources_.data;
}

std::byte* DeviceEngine::at(size_t number, const Move& move,
                            std::span<const void* const> tensors) const {
  if (!move.run) return packed_ + (number % 2 == 0 ? 0 : half_bytes_[0]) + move.packed;
  const void* tensor = tensors[move.run->tensor];
  return static_cast<std::byte*>(const_cast<void*>(tensor)) + move.run->offset;
}

void DeviceEngine::copy_local() {
  for (const Flow& flow : plan_.sends) {
    if (flow.route != Route::local) continue;
    start_local(copier_of(true), flow.pieces, element_bytes_, sources_.data, targets_);
    counters_.bytes_local += flow.elements() * element_bytes_;
  }
}

void DeviceEngine::pack_round(size_t number) {
  for (const Move& move : rounds_[number].sends) {
    if (move.run) continue;
    start_pack(copier_of(true), pieces_of(*move.flow, *move.bucket),
               move.flow->passed_on() ? Side::target : Side::source, element_bytes_,
               tensors_of(*move.flow), at(number, move, {}));
  }
}

void DeviceEngine::begin_round(size_t number) {
  std::vector<comm::DeviceMessage> sends, receives;
  for (const Move& move : rounds_[number].sends) {
    const int64_t bytes = bytes_of(*move.bucket);
    sends.push_back(
        {way_.peer(move.flow->to.front()), at(number, move, tensors_of(*move.flow)), bytes});
    counters_.bytes_sent += bytes;
    counters_.full_bytes += bytes;
    counters_.bytes_between_devices += bytes;
    if (leaves_node(*move.flow)) counters_.network_sent += bytes;
  }
  for (const Move& move : rounds_[number].receives) {
    const int64_t bytes = bytes_of(*move.bucket);
    receives.push_back({way_.peer(move.flow->from), at(number, move, targets_), bytes});
    counters_.bytes_received += bytes;
    (leaves_node(*move.flow) ? counters_.network_received : counters_.bytes_in_node) += bytes;
  }
  way_.messages()->begin(sends, receives);
}

void DeviceEngine::unpack_round(size_t number) {
  for (const Move& move : rounds_[number].receives) {
    if (move.run) continue;
    start_unpack(copier_of(true), pieces_of(*move.flow, *move.bucket), element_bytes_,
                 at(number, move, {}), targets_);
  }
}

// One round is under way while what it brings next is packed and what the last one brought is
// unpacked.
SyncCounters DeviceEngine::run(int64_t version, Sources sources, std::vector<void*> targets) {
  begin(version, std::move(sources), std::move(targets));
  trace::Region region{"weight sync", next_version_, trace::Category::communication};
  copy_local();
  for (size_t number = 0; number <= rounds_.size(); ++number) {
    if (number < rounds_.size()) {
      pack_round(number);
      begin_round(number);
    }
    if (number == 0) continue;
    way_.messages()->end();
    unpack_round(number - 1);
  }
  if (way_.messages() != nullptr) comm::finish_copies();
  agree();
  region.add_bytes(counters_.bytes_received);
  return end();
}

}  // namespace trireme::weightsync
