// The made-up NCCL: communicators that do not block, as ours are made. Calls go on in a thread
// behind the caller's back until ncclCommGetAsyncError() says that they are over, and a
// communicator that is asked for more before that refuses.
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fakegpu/machine.hpp"
#include "fakegpu/segment.hpp"
#include "trireme/base/bf16.hpp"

using namespace trireme::fakegpu;

struct ncclComm {
  using Flag = std::shared_ptr<std::atomic<bool>>;
  ncclComm(const std::string& its_name, int its_rank, int its_size, Flag its_flag)
      : name(its_name),
        rank(its_rank),
        size(its_size),
        aborted(std::move(its_flag)),
        segment(name, its_rank, its_size, *aborted) {
    random.seed(machine().delays.seed + static_cast<unsigned>(rank));
  }

  const std::string name;
  const int rank, size;
  const Flag
      aborted;  // one for all that were split off from each other: they share what NCCL aborts
  Segment segment;
  int splits = 0;
  std::atomic<ncclResult_t> status{ncclSuccess};
  std::atomic<int> on_streams{0};  // collectives that are not over
  int calls = 0;
  bool finalized = false;
  std::minstd_rand random;
  std::thread helper;
};

namespace {

std::mutex texts;
std::string last_words;
Faults faults;
NcclCounts counts;
std::vector<std::pair<ncclComm_t, std::pair<const void*, size_t>*>> registrations;

ncclResult_t refuse(ncclResult_t result, const std::string& words) {
  const std::lock_guard lock(texts);
  last_words = words;
  return result;
}

void report(ncclComm_t comm, ncclResult_t result, const std::string& words) {
  refuse(result, words);
  comm->status = result;
}

// ncclSuccess where the communicator takes a call.
ncclResult_t ready(ncclComm_t comm) {
  const ncclResult_t status = comm->status;
  if (status == ncclInProgress)
    return refuse(ncclInvalidArgument, "the communicator was used before its last call was over");
  return status;
}

// Work behind the caller's back; true: the call went well.
ncclResult_t in_background(ncclComm_t comm, std::function<bool()> work) {
  if (comm->helper.joinable()) comm->helper.join();
  comm->status = ncclInProgress;
  comm->helper = std::thread([comm, work = std::move(work)] {
    dawdle(comm->random, machine().delays.others_us);
    ncclResult_t expected = ncclInProgress;
    if (work()) comm->status.compare_exchange_strong(expected, ncclSuccess);
  });
  return ncclInProgress;
}

// ---- collectives
// -------------------------------------------------------------------------------------------------------

using Exchange = std::function<Segment::Outcome()>;
struct Pending {
  ncclComm_t comm;
  cudaStream_t stream;
  std::string what;
  std::vector<Range> ranges;
  Exchange exchange;
};
thread_local int group_depth = 0;
thread_local std::vector<Pending> group;

void wait_for_abort(ncclComm_t comm) {
  static_cast<void>(comm->segment.wait_until([] { return false; }));
}

void run(ncclComm_t comm, const Exchange& exchange) {
  const int call = ++comm->calls;
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

ncclResult_t submit(std::vector<Pending> calls) {
  if (calls.empty()) return ncclSuccess;
  const ncclComm_t comm = calls.front().comm;
  for (const Pending& call : calls) {
    if (call.comm != comm)
      return refuse(ncclInvalidUsage, "the made-up NCCL knows groups of one communicator");
  }
  return in_background(comm, [comm, calls = std::move(calls)] {
    for (const Pending& call : calls) {
      ++comm->on_streams;
      enqueue(call.stream, call.what, call.ranges,
              [comm, exchange = call.exchange] { run(comm, exchange); });
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
  if (group_depth == 0) return submit({std::move(call)});
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

Segment::Outcome all_reduce(ncclComm_t comm, const std::byte* from, std::byte* into, size_t count,
                            bool bf16) {
  const size_t element = bf16 ? sizeof(uint16_t) : sizeof(float),
               most = Segment::mailbox_bytes / element;
  Sums sums(bf16);
  for (size_t done = 0; done < count; done += most) {
    const size_t piece = std::min(most, count - done);
    const auto outcome =
        comm->segment.show({"all-reduce", count}, from + done * element, piece * element,
                           [&](int rank, const std::byte* shown) { sums.add(rank, shown, piece); });
    if (outcome != Segment::Outcome::done) return outcome;
    sums.write(into + done * element);
  }
  return Segment::Outcome::done;
}

void free_communicator(ncclComm_t comm) {
  if (comm->helper.joinable()) comm->helper.join();
  while (comm->on_streams > 0) std::this_thread::yield();
  delete comm;
}

}  // namespace

namespace trireme::fakegpu {

void set_faults(const Faults& its_faults) { faults = its_faults; }
NcclCounts nccl_counts() { return counts; }

}  // namespace trireme::fakegpu

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "an error that the made-up NCCL has no words for";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  static thread_local std::string copy;
  const std::lock_guard lock(texts);
  copy = last_words;
  return copy.c_str();
}

ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
  if (allocate(data, bytes) == cudaSuccess) return ncclSuccess;
  static_cast<void>(cudaGetLastError());  // NCCL asks the driver, not the run time
  return refuse(ncclUnhandledCudaError, "Cuda failure 'out of memory'");
}

// Waits for nobody: what still uses the memory is a finding.
ncclResult_t ncclMemFree(void* data) {
  return data == nullptr || release(data)
             ? ncclSuccess
             : refuse(ncclInvalidArgument, "no memory of ncclMemAlloc");
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static int number = 0;
  const char* name = std::getenv(
      "FAKEGPU_NAME");  // so that whoever kills processes can remove what they leave in /dev/shm
  std::snprintf(id->internal, sizeof id->internal, "/fakegpu-%s-%d-%d", name == nullptr ? "" : name,
                static_cast<int>(getpid()), ++number);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config == nullptr || config->blocking != 0)
    return refuse(ncclInvalidUsage, "the made-up NCCL knows communicators that do not block");
  *comm = new ncclComm(id.internal, rank, ranks, std::make_shared<std::atomic<bool>>(false));
  ++counts.made;
  return in_background(*comm, [made = *comm, endless = faults.endless_init] {
    if (endless) wait_for_abort(made);
    return !*made->aborted && made->segment.meet();
  });
}

// The new handle is there when the old communicator's call is over, not before. As 2.28 does, it
// says ncclSuccess meanwhile: only ncclCommGetAsyncError() knows better.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made,
                           ncclConfig_t* config) {
  if (config == nullptr || config->blocking != 0 || config->splitShare != 1)
    return refuse(ncclInvalidUsage, "the made-up NCCL splits without blocking, and shares");
  if (const ncclResult_t result = ready(comm); result != ncclSuccess) return result;
  if (comm->on_streams > 0)
    return refuse(ncclInvalidUsage, "a communicator was split while it had collectives under way");
  *made = nullptr;
  static_cast<void>(in_background(
      comm, [comm, color, key, made, number = ++comm->splits, endless = faults.endless_init] {
        if (endless) wait_for_abort(comm);
        struct Wish {
          int color, key, rank;
        };
        const Wish mine{color, key, comm->rank};
        std::vector<Wish> wishes;
        const auto outcome =
            comm->segment.show({"split", 0}, &mine, sizeof mine, [&](int, const std::byte* shown) {
              Wish wish;
              std::memcpy(&wish, shown, sizeof wish);
              if (wish.color == color) wishes.push_back(wish);
            });
        if (outcome == Segment::Outcome::mismatch)
          report(comm, ncclInvalidUsage, "ranks made different calls");
        if (outcome != Segment::Outcome::done) return false;
        if (color == NCCL_SPLIT_NOCOLOR) return true;
        std::ranges::stable_sort(wishes, {}, &Wish::key);
        const auto rank =
            static_cast<int>(std::ranges::find(wishes, comm->rank, &Wish::rank) - wishes.begin());
        const std::string name =
            comm->name + "-" + std::to_string(number) + "-" + std::to_string(color);
        auto child =
            std::make_unique<ncclComm>(name, rank, static_cast<int>(wishes.size()), comm->aborted);
        if (!child->segment.meet()) return false;
        *made = child.release();
        ++counts.made;
        ++counts.split;
        return true;
      }));
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = comm->status;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (const ncclResult_t result = ready(comm); result != ncclSuccess) return result;
  comm->finalized = true;
  return in_background(comm, [comm] {
    return comm->segment.wait_until([comm] { return comm->on_streams == 0; }) &&
           comm->segment.meet();
  });
}

// Without ncclCommFinalize() it waits for all ranks of the node, as NCCL's does.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (const ncclResult_t result = ready(comm); result != ncclSuccess) return result;
  if (!comm->finalized) comm->segment.meet();
  ++counts.destroyed;
  free_communicator(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  *comm->aborted = true;
  ++counts.aborted;
  free_communicator(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* data, size_t bytes, void** handle) {
  if (const ncclResult_t result = ready(comm); result != ncclSuccess) return result;
  if (!on_device(data, bytes))
    return refuse(ncclInvalidArgument, "registration of memory that is not the device's");
  registrations.emplace_back(comm, new std::pair<const void*, size_t>(data, bytes));
  *handle = registrations.back().second;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  const auto found = std::ranges::find_if(
      registrations, [&](const auto& r) { return r.first == comm && r.second == handle; });
  if (found == registrations.end())
    return refuse(ncclInvalidArgument, "no registration of this communicator");
  const bool freed = !on_device(found->second->first, found->second->second);
  delete found->second;
  registrations.erase(found);
  return freed ? refuse(ncclInvalidUsage, "the memory was freed before its registration")
               : ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  return --group_depth > 0 ? ncclSuccess : submit(std::exchange(group, {}));
}

ncclResult_t ncclAllGather(const void* from, void* into, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclFloat && type != ncclBfloat16 && type != ncclUint8)
    return refuse(ncclInvalidArgument, "the made-up NCCL gathers fp32, bf16 and bytes");
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
    return refuse(ncclInvalidArgument, "the made-up NCCL sums fp32 and bf16");
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
    return refuse(ncclInvalidArgument, "the made-up NCCL sums fp32 and bf16");
  const bool bf16 = type == ncclBfloat16;
  const size_t bytes = count * (bf16 ? 2 : 4);
  const auto* source = static_cast<const std::byte*>(from);
  auto* target = static_cast<std::byte*>(into);
  return collect({comm, stream, "all-reduce", {reads(from, bytes), writes(into, bytes)}, [=] {
                    return all_reduce(comm, source, target, count, bf16);
                  }});
}
