// The fake NCCL: how communicators are made, asked and freed. One that blocks does a call's work in
// the caller's thread. One that does not goes on in a thread behind the caller's back until
// ncclCommGetAsyncError() says that the call is over, and refuses what it is asked before that.
#include "fakegpu/nccl_comm.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace trireme::fakegpu;

namespace {

struct Library {
  std::mutex mutex;
  std::string last_words;
  Faults faults;
  NcclCounts counts;
  std::set<ncclComm_t> alive;
};
Library& library() {
  static auto* library = new Library;
  return *library;
}

thread_local int group_depth = 0;
thread_local std::vector<ncclComm_t> aborted_in_group;

void find(const std::string& what) {
  const std::lock_guard lock(machine().mutex);
  machine().order.find(what);
}

// Joins and frees without a lock, as NCCL does.
void complete(ncclComm::Job* job) {
  if (job->joined.exchange(true)) {
    find("two threads complete one call of a communicator");
  } else {
    job->thread.join();
  }
  if (--job->references == 0) delete job;
}

void wait_for_the_end(ncclComm_t comm, const char* call) {
  if (comm->job != nullptr) complete(std::exchange(comm->job, nullptr));
  // For ever where they come after a kernel that will not end, as in NCCL.
  while (comm->on_streams > 0) std::this_thread::yield();
  if (comm->recorded.use_count() > 1)
    find(std::string(call) + " while a recording has the communicator's collectives: NCCL's waits");
}

void free_communicator(ncclComm_t comm) {
  for (auto* registration : comm->registrations) delete registration;
  end_windows(comm);
  {
    const std::lock_guard lock(library().mutex);
    library().alive.erase(comm);
  }
  delete comm;
}

void free_aborted() {
  const auto all = std::exchange(aborted_in_group, {});
  for (const ncclComm_t comm : all) wait_for_the_end(comm, "ncclCommAbort");
  for (const ncclComm_t comm : all) {
    free_communicator(comm);
    count(&NcclCounts::aborted);
  }
}

bool refuses_device() {
  int device = 0;
  cudaGetDevice(&device);
  const std::lock_guard lock(machine().mutex);
  return device != machine().device;
}
constexpr auto other_device =
    "the thread that makes a communicator is on a device that the program does not use";

// While the fault is wanted: the other ranks are not found.
void look_for_others(ncclComm_t comm) {
  static_cast<void>(comm->segment.wait_until([] { return !current_faults().endless_init; }));
}

// What NCCL tells devices apart by: two ranks on one are refused.
bool finds_duplicates(ncclComm_t comm) {
  std::array<char, 128> mine{};
  const char* host = std::getenv("NCCL_HOSTID");
  const char* several = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  constexpr int knows_several = 23003;
  {
    const std::lock_guard lock(machine().mutex);
    std::snprintf(mine.data(), mine.size(), "%s %s", host == nullptr ? "here" : host,
                  machine().bus_id.c_str());
  }
  std::set<std::string> devices;
  const auto outcome = comm->segment.show(
      {"init", 0}, mine.data(), mine.size(),
      [&](int, const std::byte* shown) { devices.insert(reinterpret_cast<const char*>(shown)); });
  const bool takes_them =
      several != nullptr && std::atoi(several) != 0 && current_faults().version >= knows_several;
  if (outcome != Segment::Outcome::done || takes_them ||
      devices.size() == static_cast<size_t>(comm->size))
    return false;
  report(comm, ncclInvalidUsage, "Duplicate GPU detected");
  return true;
}

struct Wish {
  int color, key, rank;
};

bool split(ncclComm_t comm, const Wish& mine, int number, bool blocks, ncclComm_t* made) {
  look_for_others(comm);
  std::vector<Wish> wishes;
  const auto outcome =
      comm->segment.show({"split", 0}, &mine, sizeof mine, [&](int, const std::byte* shown) {
        Wish wish;
        std::memcpy(&wish, shown, sizeof wish);
        if (wish.color == mine.color) wishes.push_back(wish);
      });
  if (outcome == Segment::Outcome::mismatch)
    report(comm, ncclInvalidUsage, "ranks made different calls");
  if (outcome != Segment::Outcome::done) return false;
  if (mine.color == NCCL_SPLIT_NOCOLOR) return true;
  std::ranges::stable_sort(wishes, {}, &Wish::key);
  const auto rank =
      static_cast<int>(std::ranges::find(wishes, comm->rank, &Wish::rank) - wishes.begin());
  const std::string name =
      comm->name + "-" + std::to_string(number) + "-" + std::to_string(mine.color);
  auto child = std::make_unique<ncclComm>(name, rank, static_cast<int>(wishes.size()), blocks,
                                          comm->aborted);
  if (!child->segment.meet()) return false;
  {
    const std::lock_guard lock(library().mutex);
    library().alive.insert(child.get());
  }
  *made = child.release();
  count(&NcclCounts::made);
  count(&NcclCounts::split);
  return true;
}

}  // namespace

ncclComm::ncclComm(const std::string& its_name, int its_rank, int its_size, bool blocks,
                   Flag its_flag)
    : name(its_name),
      rank(its_rank),
      size(its_size),
      blocking(blocks),
      aborted(std::move(its_flag)),
      segment(name, its_rank, its_size, *aborted) {
  random.seed(machine().delays.seed + static_cast<unsigned>(rank));
}

namespace trireme::fakegpu {

void count(int NcclCounts::*what) {
  const std::lock_guard lock(library().mutex);
  ++(library().counts.*what);
}
void set_faults(const Faults& its_faults) {
  const std::lock_guard lock(library().mutex);
  library().faults = its_faults;
}
Faults current_faults() {
  const std::lock_guard lock(library().mutex);
  return library().faults;
}
NcclCounts nccl_counts() {
  const std::lock_guard lock(library().mutex);
  return library().counts;
}

Recording::Recording(cudaStream_t stream) {
  const std::lock_guard lock(library().mutex);
  for (const ncclComm_t comm : library().alive) {
    if (comm->streams.contains(stream)) communicators_.push_back(comm->recorded);
  }
}

ncclResult_t refuse(ncclResult_t result, const std::string& words) {
  const std::lock_guard lock(library().mutex);
  library().last_words = words;
  return result;
}

void report(ncclComm_t comm, ncclResult_t result, const std::string& words) {
  refuse(result, words);
  comm->status = result;
}

ncclResult_t ready(ncclComm_t comm) {
  ncclResult_t status = ncclSuccess;
  ncclCommGetAsyncError(comm, &status);
  if (status == ncclInProgress)
    return refuse(ncclInvalidArgument, "the communicator was used before its last call was over");
  return status;
}

ncclResult_t carry_out(ncclComm_t comm, std::function<bool()> work) {
  if (comm->blocking) {
    dawdle(comm->random, machine().delays.others_us);
    if (work()) return ncclSuccess;
    const ncclResult_t status = comm->status;
    return status == ncclSuccess ? refuse(ncclInternalError, "given up") : status;
  }
  comm->status = ncclInProgress;
  comm->job = new ncclComm::Job;
  count(&NcclCounts::threads);
  comm->job->thread = std::thread([comm, work = std::move(work)] {
    dawdle(comm->random, machine().delays.others_us);
    ncclResult_t expected = ncclInProgress;
    if (work()) comm->status.compare_exchange_strong(expected, ncclSuccess);
  });
  return ncclInProgress;
}

bool in_group() { return group_depth > 0; }

void note_stream(ncclComm_t comm, cudaStream_t stream) {
  const std::lock_guard lock(library().mutex);
  comm->streams.insert(stream);
}

}  // namespace trireme::fakegpu

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "an error that the fake NCCL has no words for";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  static thread_local std::string copy;
  const std::lock_guard lock(library().mutex);
  copy = library().last_words;
  return copy.c_str();
}

// What LibTorch 2.11 comes with.
ncclResult_t ncclGetVersion(int* version) {
  const std::lock_guard lock(library().mutex);
  *version = library().faults.version;
  return ncclSuccess;
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
  if (refuses_device()) return refuse(ncclInvalidUsage, other_device);
  *comm = new ncclComm(id.internal, rank, ranks, config == nullptr || config->blocking != 0,
                       std::make_shared<std::atomic<bool>>(false));
  count(&NcclCounts::made);
  {
    const std::lock_guard lock(library().mutex);
    library().alive.insert(*comm);
  }
  return carry_out(*comm, [made = *comm] {
    look_for_others(made);
    return !*made->aborted && made->segment.meet() && !finds_duplicates(made);
  });
}

// The new handle is there when the old communicator's call is over, not before. As 2.28 does, one
// that does not block says ncclSuccess meanwhile: only ncclCommGetAsyncError() knows better.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made,
                           ncclConfig_t* config) {
  if (config == nullptr || config->splitShare != 1)
    return refuse(ncclInvalidUsage, "the fake NCCL splits what shares");
  if (refuses_device()) return refuse(ncclInvalidUsage, other_device);
  if (const ncclResult_t result = ready(comm); result != ncclSuccess) return result;
  if (comm->on_streams > 0)
    return refuse(ncclInvalidUsage, "a communicator was split while it had collectives under way");
  *made = nullptr;
  if (current_faults().failing_split) return refuse(ncclSystemError, "no memory");
  const ncclResult_t result =
      carry_out(comm, [comm, mine = Wish{color, key, comm->rank}, number = ++comm->splits,
                       blocks = config->blocking != 0,
                       made] { return split(comm, mine, number, blocks, made); });
  return result == ncclInProgress ? ncclSuccess : result;
}

// As NCCL's: who sees that a call is over completes it, without a lock.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = comm->status;
  if (*error == ncclSuccess && comm->job != nullptr) {
    complete(comm->job);
    comm->job = nullptr;
  }
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (const ncclResult_t result = ready(comm); result != ncclSuccess) return result;
  comm->finalized = true;
  return carry_out(comm, [comm] {
    return comm->segment.wait_until([comm] { return comm->on_streams == 0; }) &&
           comm->segment.meet();
  });
}

// Without ncclCommFinalize() it waits for all ranks of the node, as NCCL's does.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (const ncclResult_t result = ready(comm); result != ncclSuccess) return result;
  if (!comm->finalized) comm->segment.meet();
  wait_for_the_end(comm, "ncclCommDestroy");
  free_communicator(comm);
  count(&NcclCounts::destroyed);
  return ncclSuccess;
}

// In a group all are told to end before one is waited for.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  *comm->aborted = true;
  aborted_in_group.push_back(comm);
  if (!in_group()) free_aborted();
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--group_depth > 0) return ncclSuccess;
  free_aborted();
  return submit_group();
}
