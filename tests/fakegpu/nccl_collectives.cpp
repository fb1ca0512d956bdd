// The fake NCCL: collectives, which run in the order of a stream.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "fakegpu/nccl_comm.hpp"
#include "trireme/base/bf16.hpp"

using namespace trireme::fakegpu;

namespace {

using Exchange = std::function<Segment::Outcome()>;
struct Pending {
  ncclComm_t comm;
  cudaStream_t stream;
  std::string what;
  std::vector<Range> ranges;
  Exchange exchange;
};
thread_local std::vector<Pending> group;

void wait_for_abort(ncclComm_t comm) {
  static_cast<void>(comm->segment.wait_until([] { return false; }));
}

}  // namespace

void trireme::fakegpu::run_call(ncclComm_t comm,
                                const std::function<Segment::Outcome()>& exchange) {
  const int call = ++comm->calls;
  const Faults faults = current_faults();
  if (call == faults.missing_at_call) {
    wait_for_abort(comm);
  } else if (call == faults.error_at_call) {
    report(comm, ncclRemoteError, "a link to a peer is gone");
    wait_for_abort(comm);
  } else if (!*comm->aborted && exchange() == Segment::Outcome::mismatch) {
    report(comm, ncclInvalidUsage, "ranks made different calls");
    wait_for_abort(comm);
  }
  --comm->on_streams;
}

namespace {

ncclResult_t submit(std::vector<Pending> calls) {
  if (calls.empty()) return ncclSuccess;
  const ncclComm_t comm = calls.front().comm;
  for (const Pending& call : calls) {
    if (call.comm != comm)
      return refuse(ncclInvalidUsage, "the fake NCCL knows groups of one communicator");
  }
  return carry_out(comm, [comm, calls = std::move(calls)] {
    for (const Pending& call : calls) {
      note_stream(comm, call.stream);
      enqueue(call.stream, {.what = call.what,
                            .ranges = call.ranges,
                            .begins = [comm] { ++comm->on_streams; },
                            .body = [comm, exchange = call.exchange] { run_call(comm, exchange); },
                            .keeps = comm->recorded});
    }
    return true;
  });
}

ncclResult_t collect(Pending call) {
  for (const Range& range : call.ranges) {
    if (!on_device(range.data, range.bytes))
      return refuse(ncclInvalidArgument, call.what + " of memory that is not the device's");
  }
  if (const ncclResult_t result = ready(call.comm); result != ncclSuccess) return result;
  if (!in_group()) return submit({std::move(call)});
  group.push_back(std::move(call));
  return ncclSuccess;
}

Segment::Outcome all_gather(ncclComm_t comm, const std::byte* from, std::byte* into, size_t bytes) {
  std::byte* own = into + static_cast<size_t>(comm->rank) * bytes;
  for (int rank = 0; rank < comm->size; ++rank) {
    if (rank != comm->rank || own != from) poison(into + static_cast<size_t>(rank) * bytes, bytes);
  }
  for (size_t done = 0; done < bytes; done += Segment::mailbox_bytes) {
    const size_t piece = std::min(Segment::mailbox_bytes, bytes - done);
    const auto outcome = comm->segment.show(
        {"all-gather", bytes}, from + done, piece, [&](int rank, const std::byte* shown) {
          if (rank != comm->rank || own != from)
            std::memcpy(into + static_cast<size_t>(rank) * bytes + done, shown, piece);
        });
    if (outcome != Segment::Outcome::done) return outcome;
  }
  return Segment::Outcome::done;
}

float value_of(const std::byte* values, size_t i, bool bf16) {
  return bf16 ? trireme::base::bf16_to_float(reinterpret_cast<const uint16_t*>(values)[i])
              : reinterpret_cast<const float*>(values)[i];
}

// Adds in fp32 and in the order of ranks, rounds once; NCCL promises neither.
class Sums {
 public:
  explicit Sums(bool bf16) : bf16_(bf16) {}
  void add(int rank, const std::byte* shown, size_t count) {
    if (rank == 0) values_.assign(count, 0);
    for (size_t i = 0; i < count; ++i)
      values_[i] = rank == 0 ? value_of(shown, i, bf16_) : values_[i] + value_of(shown, i, bf16_);
  }
  void write(std::byte* into) const {
    for (size_t i = 0; i < values_.size(); ++i) {
      if (bf16_) {
        reinterpret_cast<uint16_t*>(into)[i] = trireme::base::float_to_bf16(values_[i]);
      } else {
        reinterpret_cast<float*>(into)[i] = values_[i];
      }
    }
  }

 private:
  bool bf16_;
  std::vector<float> values_;
};

Segment::Outcome reduce_scatter(ncclComm_t comm, const std::byte* from, std::byte* into,
                                size_t count, bool bf16) {
  const auto ranks = static_cast<size_t>(comm->size);
  const size_t element = bf16 ? sizeof(uint16_t) : sizeof(float),
               most = Segment::mailbox_bytes / element / ranks;
  std::vector<std::byte> parts;
  Sums sums(bf16);
  poison(into, count * element);
  for (size_t done = 0; done < count; done += most) {
    const size_t piece = std::min(most, count - done);
    parts.clear();
    for (size_t to = 0; to < ranks; ++to) {
      const std::byte* part = from + (to * count + done) * element;
      parts.insert(parts.end(), part, part + piece * element);
    }
    const auto outcome = comm->segment.show(
        {"reduce-scatter", count}, parts.data(), parts.size(),
        [&](int rank, const std::byte* shown) {
          sums.add(rank, shown + static_cast<size_t>(comm->rank) * piece * element, piece);
        });
    if (outcome != Segment::Outcome::done) return outcome;
    sums.write(into + done * element);
  }
  return Segment::Outcome::done;
}

// `call`: what all ranks must call alike.
Segment::Outcome all_reduce(ncclComm_t comm, const Call& call, const std::byte* from,
                            std::byte* into, bool bf16) {
  const size_t element = bf16 ? sizeof(uint16_t) : sizeof(float),
               most = Segment::mailbox_bytes / element;
  Sums sums(bf16);
  for (size_t done = 0; done < call.count; done += most) {
    const size_t piece = std::min(most, call.count - done);
    const auto outcome =
        comm->segment.show(call, from + done * element, piece * element,
                           [&](int rank, const std::byte* shown) { sums.add(rank, shown, piece); });
    if (outcome != Segment::Outcome::done) return outcome;
    sums.write(into + done * element);
  }
  return Segment::Outcome::done;
}

}  // namespace

namespace trireme::fakegpu {

ncclResult_t submit_group() {
  if (!group.empty() && messages_wait()) {
    group.clear();
    drop_messages();
    return refuse(ncclInvalidUsage, "the fake NCCL has no groups of collectives and messages");
  }
  return messages_wait() ? submit_messages() : submit(std::exchange(group, {}));
}

}  // namespace trireme::fakegpu

ncclResult_t ncclAllGather(const void* from, void* into, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclFloat && type != ncclBfloat16 && type != ncclUint8)
    return refuse(ncclInvalidArgument, "the fake NCCL gathers fp32, bf16 and bytes");
  const size_t bytes = count * (type == ncclFloat ? 4 : type == ncclBfloat16 ? 2 : 1);
  const auto* source = static_cast<const std::byte*>(from);
  auto* target = static_cast<std::byte*>(into);
  return collect({comm,
                  stream,
                  "all-gather",
                  {reads(from, bytes), writes(into, bytes * static_cast<size_t>(comm->size))},
                  [=] { return all_gather(comm, source, target, bytes); }});
}

ncclResult_t ncclReduceScatter(const void* from, void* into, size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  if ((type != ncclFloat && type != ncclBfloat16) || operation != ncclSum)
    return refuse(ncclInvalidArgument, "the fake NCCL sums fp32 and bf16");
  const bool bf16 = type == ncclBfloat16;
  const size_t bytes = count * (bf16 ? 2 : 4);
  const auto* source = static_cast<const std::byte*>(from);
  auto* target = static_cast<std::byte*>(into);
  return collect({comm,
                  stream,
                  "reduce-scatter",
                  {reads(from, bytes * static_cast<size_t>(comm->size)), writes(into, bytes)},
                  [=] { return reduce_scatter(comm, source, target, count, bf16); }});
}

ncclResult_t ncclAllReduce(const void* from, void* into, size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  if ((type != ncclFloat && type != ncclBfloat16) || operation != ncclSum)
    return refuse(ncclInvalidArgument, "the fake NCCL sums fp32 and bf16");
  const bool bf16 = type == ncclBfloat16;
  const size_t bytes = count * (bf16 ? 2 : 4);
  const auto* source = static_cast<const std::byte*>(from);
  auto* target = static_cast<std::byte*>(into);
  // In windows at one place on all ranks, or on no rank.
  Call call{"all-reduce", count};
  const auto place = place_in_window(comm, from, bytes);
  const bool windows = place && place_in_window(comm, into, bytes) == place;
  if (windows) std::snprintf(call.name, sizeof call.name, "all-reduce at %zx", *place);
  return collect({comm, stream, "all-reduce", {reads(from, bytes), writes(into, bytes)}, [=] {
                    if (windows) trireme::fakegpu::count(&NcclCounts::window_sums);
                    return all_reduce(comm, call, source, target, bf16);
                  }});
}
