// The fake NCCL: sends and receives. Those of a group go on together, in one operation of their
// stream; one alone is a group of its own. Between two ranks they match by their order: one that
// nothing matches never ends, one of another length is an error.
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "fakegpu/nccl_comm.hpp"

using namespace trireme::fakegpu;

namespace {

struct Message {
  ncclComm_t comm;
  cudaStream_t stream;
  int peer;
  bool sent;
  std::byte* data;
  size_t bytes;
  size_t done = 0;
};
thread_local std::vector<Message> waiting;

// What of it can be done now. `mismatch` is set where the other rank's is of another length. One
// that is sent is not over before all of it was taken.
bool advance(Segment& segment, Message& m, bool& mismatch) {
  if (m.done == m.bytes) return false;
  const size_t piece = std::min(Segment::piece_bytes, m.bytes - m.done);
  if (m.sent) {
    if (!segment.put(m.peer, m.bytes, m.data + m.done, piece)) return false;
  } else {
    const auto taken = segment.take(m.peer, m.bytes, m.data + m.done, piece);
    mismatch |= taken == Segment::Taken::mismatch;
    if (taken != Segment::Taken::piece) return false;
  }
  m.done += piece;
  return true;
}

bool is_over(const Segment& segment, const Message& m) {
  return m.done == m.bytes && (!m.sent || segment.is_taken(m.peer));
}

// The first unfinished message of each direction with each rank moves.
Segment::Outcome exchange(ncclComm_t comm, std::vector<Message> messages) {
  for (const Message& m : messages) {
    if (!m.sent) poison(m.data, m.bytes);
  }
  std::map<std::pair<int, bool>, std::vector<Message*>>
      lanes;  // by peer and direction, the next last
  for (Message& m : messages) lanes[{m.peer, m.sent}].push_back(&m);
  for (auto& [_, lane] : lanes) std::ranges::reverse(lane);
  bool mismatch = false;
  const bool over = comm->segment.wait_until([&] {
    for (bool moved = true; moved && !mismatch;) {
      moved = false;
      for (auto& [_, lane] : lanes) {
        if (lane.empty()) continue;
        moved |= advance(comm->segment, *lane.back(), mismatch);
        if (!is_over(comm->segment, *lane.back())) continue;
        lane.pop_back();
        moved = true;
      }
    }
    return mismatch ||
           std::ranges::all_of(lanes, [](const auto& one) { return one.second.empty(); });
  });
  if (!over) return Segment::Outcome::given_up;
  return mismatch ? Segment::Outcome::mismatch : Segment::Outcome::done;
}

Range range_of(const Message& m) {
  return m.sent ? reads(m.data, m.bytes) : writes(m.data, m.bytes);
}

// They have no order among each other.
bool overlap(const std::vector<Message>& messages) {
  for (const Message& written : messages) {
    for (const Message& other : messages) {
      if (!written.sent && &written != &other && written.data < other.data + other.bytes &&
          other.data < written.data + written.bytes)
        return true;
    }
  }
  return false;
}

ncclResult_t submit(std::vector<Message> messages) {
  const Message first = messages.front();
  for (const Message& m : messages) {
    if (m.comm != first.comm || m.stream != first.stream)
      return refuse(ncclInvalidUsage,
                    "the fake NCCL knows groups of messages of one communicator and stream");
  }
  if (overlap(messages)) {
    const std::lock_guard lock(machine().mutex);
    machine().order.find("messages of one group use the same memory");
  }
  const ncclComm_t comm = first.comm;
  return carry_out(comm, [comm, stream = first.stream, messages = std::move(messages)] {
    std::vector<Range> ranges;
    for (const Message& m : messages) ranges.push_back(range_of(m));
    note_stream(comm, stream);
    enqueue(stream,
            {.what = "messages",
             .ranges = std::move(ranges),
             .begins = [comm] { ++comm->on_streams; },
             .body = [comm, messages] { run_call(comm, [&] { return exchange(comm, messages); }); },
             .keeps = comm->recorded});
    return true;
  });
}

ncclResult_t collect(const Message& message) {
  if (message.peer < 0 || message.peer >= message.comm->size)
    return refuse(ncclInvalidArgument, "no such rank");
  if (message.peer == message.comm->rank)
    return refuse(ncclInvalidUsage, "the fake NCCL has no messages of a rank to itself");
  if (!on_device(message.data, message.bytes))
    return refuse(ncclInvalidArgument, "a message of memory that is not the device's");
  if (const ncclResult_t result = ready(message.comm); result != ncclSuccess) return result;
  if (!in_group()) return submit({message});
  waiting.push_back(message);
  return ncclSuccess;
}

size_t bytes_of(size_t count, ncclDataType_t type) {
  switch (type) {
    case ncclUint8: return count;
    case ncclBfloat16: return 2 * count;
    case ncclFloat: return 4 * count;
    default: return 0;
  }
}

}  // namespace

namespace trireme::fakegpu {

bool messages_wait() { return !waiting.empty(); }
ncclResult_t submit_messages() { return submit(std::exchange(waiting, {})); }
void drop_messages() { waiting.clear(); }

}  // namespace trireme::fakegpu

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  if (bytes_of(count, type) == 0)
    return refuse(ncclInvalidArgument, "the fake NCCL sends some fp32, bf16 or bytes");
  return collect({comm, stream, peer, true, static_cast<std::byte*>(const_cast<void*>(data)),
                  bytes_of(count, type)});
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  if (bytes_of(count, type) == 0)
    return refuse(ncclInvalidArgument, "the fake NCCL receives some fp32, bf16 or bytes");
  return collect({comm, stream, peer, false, static_cast<std::byte*>(data), bytes_of(count, type)});
}
