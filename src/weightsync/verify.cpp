// After a sync: do the generators' tensors hold what the trainers' do? Digests of what each flow
// moved, taken from the tensors themselves on either side, compared tensor by tensor.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "digest.hpp"
#include "engine.hpp"
#include "packing.hpp"
#include "trireme/base/text.hpp"
#include "trireme/comm/device_copies.hpp"

namespace trireme::weightsync {
namespace {

struct Record {
  int64_t shard = 0;
  int64_t slice = 0;
  int64_t home = 0;  // rank that got it from the origin
  int64_t tensor = 0;
  uint64_t digest = 0;
};
using Key = std::tuple<int64_t, int64_t, int64_t, int64_t>;

using Digests = std::map<uint32_t, uint64_t>;  // by tensor

// Of each tensor's part of a flow, as it lies on the host.
Digests on_host(const Flow& flow, Side side, int64_t element_bytes,
                std::span<const void* const> tensors) {
  Digests digests;
  XXH3_state_t* state = XXH3_createState();
  for (size_t p = 0; p < flow.pieces.size();) {
    const uint32_t tensor = flow.pieces[p].tensor;
    XXH3_64bits_reset(state);
    for (; p < flow.pieces.size() && flow.pieces[p].tensor == tensor; ++p) {
      const TensorRows rows = rows_of(flow.pieces[p].run, side, element_bytes);
      for (int64_t r = 0; r < rows.rows; ++r)
        XXH3_64bits_update(
            state, static_cast<const std::byte*>(tensors[tensor]) + rows.offset + r * rows.stride,
            static_cast<size_t>(rows.bytes));
    }
    digests[tensor] = XXH3_64bits_digest(state);
  }
  XXH3_freeState(state);
  return digests;
}

// Of all flows at once: sums of the words' bits, each by its place in the flow's part of a tensor,
// made where the tensors lie.
std::vector<Digests> on_device(const std::vector<const Flow*>& flows, Side side,
                               int64_t element_bytes, std::span<const void* const> tensors) {
  std::vector<comm::DeviceRows> rows;
  for (const Flow* flow : flows) {
    int64_t words = 0;
    for (size_t p = 0; p < flow->pieces.size(); ++p) {
      const Piece& piece = flow->pieces[p];
      if (p > 0 && flow->pieces[p - 1].tensor != piece.tensor) words = 0;
      const TensorRows at = rows_of(piece.run, side, element_bytes);
      rows.push_back({static_cast<const std::byte*>(tensors[piece.tensor]) + at.offset, at.rows,
                      at.bytes, at.stride, words});
      words += at.rows * at.bytes / comm::summed_word;
    }
  }
  const std::vector<uint64_t> sums = comm::sum_rows(rows);
  std::vector<Digests> out;
  size_t next = 0;
  for (const Flow* flow : flows) {
    Digests& digests = out.emplace_back();
    for (const Piece& piece : flow->pieces) digests[piece.tensor] += sums[next++];
  }
  return out;
}

std::vector<Digests> digests_of(const std::vector<const Flow*>& flows, Side side, bool device,
                                int64_t element_bytes, std::span<const void* const> tensors) {
  if (device) return on_device(flows, side, element_bytes, tensors);
  std::vector<Digests> out;
  for (const Flow* flow : flows) out.push_back(on_host(*flow, side, element_bytes, tensors));
  return out;
}

}  // namespace

std::string Engine::differences(const Sources& sources, std::span<void* const> targets) const {
  std::vector<std::vector<Record>> to(static_cast<size_t>(comm_.size()));
  std::vector<const Flow*> given, got;
  for (const Flow& flow : plan_.sends) {
    if (!flow.passed_on()) given.push_back(&flow);
    if (flow.route == Route::local) got.push_back(&flow);
  }
  for (const Flow& flow : plan_.receives) got.push_back(&flow);
  const auto sent = digests_of(given, Side::source, options_.device, element_bytes_, sources.data);
  for (size_t i = 0; i < given.size(); ++i) {
    const Flow& flow = *given[i];
    std::set<int> readers{flow.home};  // and those to whom it may go on
    for (const auto& replica : members_.targets) {
      const int rank = replica[static_cast<size_t>(flow.slice)];
      const bool near = members_.node_of[static_cast<size_t>(rank)] ==
                        members_.node_of[static_cast<size_t>(flow.home)];
      if (flow.route == Route::message && (plan_.relay || near)) readers.insert(rank);
    }
    for (const auto& [tensor, digest] : sent[i]) {
      const Record record{flow.shard, flow.slice, flow.home, tensor, digest};
      for (const int reader : readers) to[static_cast<size_t>(reader)].push_back(record);
    }
  }
  std::map<Key, uint64_t> expected;
  for (const Record& record : comm_.all_to_all_values(to))
    expected[{record.shard, record.slice, record.home, record.tensor}] = record.digest;
  std::set<std::string> differing;
  const auto held = digests_of(got, Side::target, options_.device, element_bytes_, targets);
  for (size_t i = 0; i < got.size(); ++i) {
    const Flow& flow = *got[i];
    for (const auto& [tensor, digest] : held[i]) {
      const auto found = expected.find({flow.shard, flow.slice, flow.home, tensor});
      if (found == expected.end() || found->second != digest)
        differing.insert(tensors_[tensor].name);
    }
  }
  std::vector<std::string> names(differing.begin(), differing.end());
  constexpr size_t shown = 5;
  const size_t count = names.size();
  names.resize(std::min(count, shown));
  std::string message;
  if (count > 0)
    message = base::text("rank ", comm_.rank(), " differs from the trainers in ", count,
                         " tensors: ", base::join(names));
  for (const std::string& each : comm_.all_gather(message)) {
    if (!each.empty()) return base::text("weights after sync ", version_, ": ", each);
  }
  return "";
}

}  // namespace trireme::weightsync
