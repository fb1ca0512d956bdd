#include "comm/nccl_comm.hpp"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/cuda_support.hpp"
#include "comm/shard_exchange_parts.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/stopwatch.hpp"

namespace trireme::comm {
namespace {

// The communicators that exist. The watchdog looks at them in its own thread: none is freed
// meanwhile.
struct Registry {
  std::mutex mutex;
  std::vector<NcclComm*> comms;
};
Registry& registry() {
  static Registry registry;
  return registry;
}

// Enqueueing takes microseconds, meeting the other ranks seconds.
void nap(int looks) {
  if (looks < 1000) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

}  // namespace

NcclComm::NcclComm(const CommView& comm)
    : ranks_(comm.native()), rank_(comm.rank()), size_(comm.size()) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.splitShare = 1;
  if (NcclComm* other = of_the_same_ranks()) {
    split_from(*other, config);
  } else {
    begin(comm, config);
  }
}

void NcclComm::begin(const CommView& comm, ncclConfig_t& config) {
  ncclUniqueId id{};
  if (rank_ == 0) TRIREME_NCCL_CALL(ncclGetUniqueId(&id));
  id = comm.broadcast_value(id, 0);
  const ncclResult_t result = ncclCommInitRankConfig(&handle_, size_, id, rank_, &config);
  enter();
  try {
    complete(result, "ncclCommInitRankConfig");
  } catch (...) {
    static_cast<void>(ncclCommAbort(leave()));
    throw;
  }
}

// All are made and freed by all of their ranks together: each rank finds the same one.
NcclComm* NcclComm::of_the_same_ranks() const {
  const std::lock_guard lock(registry().mutex);
  for (NcclComm* other : registry().comms) {
    int relation = MPI_UNEQUAL;
    MPI_Comm_compare(static_cast<MPI_Comm>(ranks_), static_cast<MPI_Comm>(other->ranks_),
                     &relation);
    if (relation == MPI_IDENT || relation == MPI_CONGRUENT) return other;
  }
  return nullptr;
}

void NcclComm::enter() {
  const std::lock_guard lock(registry().mutex);
  registry().comms.push_back(this);
}

void NcclComm::split_from(NcclComm& other, ncclConfig_t& config) {
  TRIREME_CUDA_CALL(
      cudaDeviceSynchronize());  // a communicator is split when nothing of it is under way
  const ncclResult_t result = ncclCommSplit(other.handle_, 0, rank_, &handle_, &config);
  try {
    other.complete(result, "ncclCommSplit");  // until then the handle is not there
  } catch (...) {
    abort_all();  // and NCCL may still write it
    if (handle_ != nullptr) static_cast<void>(ncclCommAbort(handle_));
    throw;
  }
  enter();
}

NcclComm::~NcclComm() {
  if (std::uncaught_exceptions() > 0) abort_all();
  dismiss();
  bool all_came = true;
  try {
    if (handle_ != nullptr) complete(ncclCommFinalize(handle_), "ncclCommFinalize");
  } catch (const UserError&) {  // no rank can be waited for
    all_came = false;
  }
  const ncclComm_t handle = leave();
  if (handle != nullptr)
    static_cast<void>(all_came ? ncclCommDestroy(handle) : ncclCommAbort(handle));
}

// What NCCL does with the handle is done without the mutex: were it to hang, the watchdog must not
// hang with it.
ncclComm_t NcclComm::leave() {
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().comms, this);
  return std::exchange(handle_, nullptr);
}

// A call may say ncclSuccess while it is under way (ncclCommSplit of 2.28 does): the communicator
// knows.
void NcclComm::complete(ncclResult_t result, const char* call) {
  const double patience = device_support().patience;
  const base::Stopwatch watch;
  for (int looks = 0; result == ncclInProgress || (result == ncclSuccess && looks == 0); ++looks) {
    if (patience > 0 && watch.seconds() > patience) {
      throw InternalError(
          base::text("NCCL: rank ", rank_, " of ", size_, " waits in ", call, " for ",
                     base::human_seconds(watch.seconds()),
                     ": a rank, its GPU or the network between them is gone, or NCCL uses the "
                     "wrong interface (NCCL_SOCKET_IFNAME, NCCL_DEBUG=INFO)"));
    }
    if (looks > 0) nap(looks);
    const ncclResult_t asked = ncclCommGetAsyncError(handle_, &result);
    if (asked != ncclSuccess) result = asked;
  }
  if (result != ncclSuccess) throw InternalError(base::text(words(result), ", seen in ", call));
}

std::string NcclComm::words(ncclResult_t result) const {
  return base::text("NCCL: rank ", rank_, " of ", size_, ": ", ncclGetErrorString(result), " (",
                    ncclGetLastError(handle_), ")");
}

void NcclComm::enroll(std::byte* data, int64_t bytes) {
  if (bytes == 0) return;
  void* registration = nullptr;
  complete(ncclCommRegister(handle_, data, static_cast<size_t>(bytes), &registration),
           "ncclCommRegister");
  registrations_.push_back(registration);
}

void NcclComm::dismiss() {
  for (void* registration : std::exchange(registrations_, {})) {
    if (handle_ != nullptr) static_cast<void>(ncclCommDeregister(handle_, registration));
  }
}

std::optional<std::string> NcclComm::find_trouble() {
  const std::lock_guard lock(registry().mutex);
  for (const NcclComm* comm : registry().comms) {
    ncclResult_t result = ncclSuccess;
    if (comm->handle_ == nullptr || ncclCommGetAsyncError(comm->handle_, &result) != ncclSuccess)
      continue;
    if (result != ncclSuccess && result != ncclInProgress) return comm->words(result);
  }
  return std::nullopt;
}

void NcclComm::abort_all() {
  std::vector<NcclComm*> all;
  {
    const std::lock_guard lock(registry().mutex);
    all = registry().comms;
  }
  for (NcclComm* comm : all) {
    comm->registrations_.clear();  // gone with the communicator
    static_cast<void>(ncclCommAbort(comm->leave()));
  }
}

NcclGroup::NcclGroup() { TRIREME_NCCL_CALL(ncclGroupStart()); }

NcclGroup::~NcclGroup() {
  if (open_) static_cast<void>(ncclGroupEnd());
}

void NcclGroup::end(NcclComm& comm) {
  open_ = false;
  comm.complete(ncclGroupEnd(), "ncclGroupEnd");
}

}  // namespace trireme::comm
