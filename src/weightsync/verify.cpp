// After a sync: do the generators' tensors hold what the trainers' do? Digests of what each flow
// moved, taken from the tensors themselves on either side, compared tensor by tensor.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "digest.hpp"
#include "engine.hpp"
#include "trireme/base/error.hpp"

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

// Digest of a tensor's part of a flow as it lies in `tensors`.
class FlowDigests {
 public:
  FlowDigests(const Flow& flow, Side side, int64_t element_bytes, bool device)
      : flow_(flow), side_(side), element_bytes_(element_bytes), copier_(copier_of(device)) {
    if (!device) return;  // rows are read where they are
    int64_t largest = 0;
    for (const Piece& piece : flow.pieces) {
      const TensorRows rows = rows_of(piece.run, side, element_bytes);
      largest = std::max(largest, rows.rows * rows.bytes);
    }
    scratch_ =
        comm::PinnedBuffer(largest, "a bucket of weights", "set a smaller weightsync.bucket_bytes");
  }

  template <class Pointer>
  std::map<uint32_t, uint64_t> of(std::span<Pointer const> tensors) const {
    std::map<uint32_t, uint64_t> digests;
    XXH3_state_t* state = XXH3_createState();
    for (size_t p = 0; p < flow_.pieces.size();) {
      const uint32_t tensor = flow_.pieces[p].tensor;
      XXH3_64bits_reset(state);
      for (; p < flow_.pieces.size() && flow_.pieces[p].tensor == tensor; ++p)
        add(state, flow_.pieces[p].run, static_cast<const std::byte*>(tensors[tensor]));
      digests[tensor] = XXH3_64bits_digest(state);
    }
    XXH3_freeState(state);
    return digests;
  }

 private:
  void add(XXH3_state_t* state, const base::CopyRun& run, const std::byte* tensor) const {
    const TensorRows rows = rows_of(run, side_, element_bytes_);
    if (std::byte* scratch = scratch_.data()) {
      copier_.start(
          {scratch, tensor + rows.offset, rows.rows, rows.bytes, rows.bytes, rows.stride});
      copier_.finish();
      XXH3_64bits_update(state, scratch, static_cast<size_t>(rows.rows * rows.bytes));
      return;
    }
    for (int64_t r = 0; r < rows.rows; ++r)
      XXH3_64bits_update(state, tensor + rows.offset + r * rows.stride,
                         static_cast<size_t>(rows.bytes));
  }

  const Flow& flow_;
  Side side_;
  int64_t element_bytes_;
  const Copier& copier_;
  comm::PinnedBuffer scratch_;  // where a device's rows are copied to, a piece at a time
};

}  // namespace

std::string WeightSync::Engine::differences(const Sources& sources,
                                            std::span<void* const> targets) const {
  std::vector<std::vector<Record>> to(static_cast<size_t>(comm_.size()));
  for (const Flow& flow : plan_.sends) {
    if (flow.passed_on()) continue;
    std::set<int> readers{flow.home};  // and those to whom it may go on
    for (const auto& replica : members_.targets) {
      const int rank = replica[static_cast<size_t>(flow.slice)];
      const bool near = members_.node_of[static_cast<size_t>(rank)] ==
                        members_.node_of[static_cast<size_t>(flow.home)];
      if (flow.route == Route::message && (plan_.relay || near)) readers.insert(rank);
    }
    for (const auto& [tensor, digest] :
         FlowDigests(flow, Side::source, element_bytes_, options_.device)
             .of<const void*>(sources.data)) {
      const Record record{flow.shard, flow.slice, flow.home, tensor, digest};
      for (const int reader : readers) to[static_cast<size_t>(reader)].push_back(record);
    }
  }
  std::map<Key, uint64_t> expected;
  for (const Record& record : comm_.all_to_all_values(to))
    expected[{record.shard, record.slice, record.home, record.tensor}] = record.digest;
  std::set<std::string> differing;
  auto compare = [&](const Flow& flow) {
    for (const auto& [tensor, digest] :
         FlowDigests(flow, Side::target, element_bytes_, options_.device).of<void*>(targets)) {
      const auto found = expected.find({flow.shard, flow.slice, flow.home, tensor});
      if (found == expected.end() || found->second != digest)
        differing.insert(tensors_[tensor].name);
    }
  };
  for (const Flow& flow : plan_.receives) compare(flow);
  for (const Flow& flow : plan_.sends) {
    if (flow.route == Route::local) compare(flow);
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
