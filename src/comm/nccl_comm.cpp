#include "comm/nccl_comm.hpp"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "comm/cuda_support.hpp"
#include "comm/shard_exchange_parts.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/comm/recorded_collectives.hpp"

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

ncclConfig_t configuration() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  config.splitShare = 1;
  return config;
}

// In one group: each abort waits for the communicator's kernels, which may come after a kernel of
// another one that only its own abort ends. A group tells all to end before it waits.
void abort_together(const std::vector<ncclComm_t>& handles) {
  static_cast<void>(ncclGroupStart());
  for (const ncclComm_t handle : handles) {
    if (handle != nullptr) static_cast<void>(ncclCommAbort(handle));
  }
  static_cast<void>(ncclGroupEnd());
}

// A call that a helper thread does.
struct HelpersCall {
  std::mutex mutex;
  std::condition_variable over;
  std::optional<ncclResult_t> result;
  bool left_behind = false;
};

// The result of `work`, which waits for other ranks; nullopt where that takes longer than the
// patience. The thread is then left behind, and does `late` should `work` end after all.
std::optional<ncclResult_t> in_time(const std::function<ncclResult_t()>& work,
                                    const std::function<void()>& late) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return ncclUnhandledCudaError;
  const auto call = std::make_shared<HelpersCall>();
  std::thread helper;
  try {
    helper = std::thread([call, device, work, late] {
      const ncclResult_t result =
          cudaSetDevice(device) == cudaSuccess ? work() : ncclUnhandledCudaError;
      std::unique_lock lock(call->mutex);
      call->result = result;
      call->over.notify_all();
      const bool left_behind = call->left_behind;
      lock.unlock();
      if (left_behind) late();
    });
  } catch (const std::system_error&) {  // no thread to be had: better without a deadline
    return work();
  }
  const auto is_over = [&] { return call->result.has_value(); };
  const double patience = device_support().patience;
  std::unique_lock lock(call->mutex);
  if (patience <= 0) {
    call->over.wait(lock, is_over);
  } else if (!call->over.wait_for(lock, std::chrono::duration<double>(patience), is_over)) {
    call->left_behind = true;
    device_support().call_left_behind = true;
    helper.detach();
    return std::nullopt;
  }
  lock.unlock();
  helper.join();
  return call->result;
}

}  // namespace

NcclComm::NcclComm(const CommView& comm)
    : ranks_(comm.native()), rank_(comm.rank()), size_(comm.size()) {
  if (NcclComm* other = of_the_same_ranks()) {
    split_from(*other);
  } else {
    begin(comm);
  }
  enter();
}

void NcclComm::begin(const CommView& comm) {
  ncclUniqueId id{};
  if (rank_ == 0) TRIREME_NCCL_CALL(ncclGetUniqueId(&id));
  id = comm.broadcast_value(id, 0);
  const auto made = std::make_shared<ncclComm_t>(nullptr);
  meet_others(
      "ncclCommInitRankConfig",
      [made, id, rank = rank_, size = size_] {
        ncclConfig_t config = configuration();
        return ncclCommInitRankConfig(made.get(), size, id, rank, &config);
      },
      [made] { return std::vector{*made}; });
  handle_ = *made;
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

void NcclComm::split_from(NcclComm& other) {
  TRIREME_CUDA_CALL(
      cudaDeviceSynchronize());  // a communicator is split when nothing of it is under way
  const ncclComm_t parent = other.handle_;
  const auto made = std::make_shared<ncclComm_t>(nullptr);
  try {
    meet_others(
        "ncclCommSplit",
        [made, parent, rank = rank_] {
          ncclConfig_t config = configuration();
          return ncclCommSplit(parent, 0, rank, made.get(), &config);
        },
        [made, parent] {
          return std::vector{*made, parent};
        });
  } catch (...) {
    other.forget_memory();
    static_cast<void>(other.leave());  // aborted, or in the hands of the helper
    throw;
  }
  handle_ = *made;
}

// Does what all ranks do together; `made` are the communicators that nobody can use where that
// fails.
void NcclComm::meet_others(const char* call, const std::function<ncclResult_t()>& work,
                           const std::function<std::vector<ncclComm_t>()>& made) {
  const base::Stopwatch watch;
  const auto result = in_time(work, [made] { abort_together(made()); });
  if (!result) {
    throw InternalError(
        base::text("NCCL: rank ", rank_, " of ", size_, " waits in ", call, " for ",
                   base::human_seconds(watch.seconds()),
                   ": a rank, its GPU or the network between them is gone, or NCCL uses the "
                   "wrong interface (NCCL_SOCKET_IFNAME, NCCL_DEBUG=INFO)"));
  }
  if (*result == ncclSuccess) return;
  const std::string problem = words(*result);
  RecordedCollectives::drop_all();
  abort_together(made());
  throw InternalError(base::text(problem, ", seen in ", call));
}

void NcclComm::enter() {
  const std::lock_guard lock(registry().mutex);
  registry().comms.push_back(this);
}

// What NCCL does with the handle is done without the mutex: were it to hang, the watchdog must not
// hang with it.
ncclComm_t NcclComm::leave() {
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().comms, this);
  return std::exchange(handle_, nullptr);
}

NcclComm::~NcclComm() {
  if (std::uncaught_exceptions() > 0) abort_all();
  dismiss();
  const ncclComm_t handle = leave();
  if (handle == nullptr) return;
  const auto result = in_time(
      [handle] {
        return ncclCommFinalize(handle) == ncclSuccess ? ncclCommDestroy(handle)
                                                       : ncclCommAbort(handle);
      },
      [] {});
  if (!result)
    log::warning(base::text("NCCL: rank ", rank_, " of ", size_,
                            " leaves a communicator that the others do not come to free"));
}

std::string NcclComm::words(ncclResult_t result) const {
  return base::text("NCCL: rank ", rank_, " of ", size_, ": ", ncclGetErrorString(result), " (",
                    ncclGetLastError(handle_), ")");
}

void NcclComm::fail(ncclResult_t result, const char* call) const {
  throw InternalError(base::text(words(result), ", seen in ", call));
}

void NcclComm::enroll(std::byte* data, int64_t bytes) {
  if (bytes == 0) return;
  void* registration = nullptr;
  check(ncclCommRegister(handle_, data, static_cast<size_t>(bytes), &registration),
        "ncclCommRegister");
  registrations_.push_back(registration);
}

// By a helper, as what is made: it waits for the other ranks.
bool NcclComm::open_window(std::byte* data, int64_t bytes) {
  const auto window = std::make_shared<ncclWindow_t>(nullptr);
  const ncclComm_t handle = handle_;
  try {
    meet_others(
        "ncclCommWindowRegister",
        [=] {
          return ncclCommWindowRegister(handle, data, static_cast<size_t>(bytes), window.get(),
                                        NCCL_WIN_COLL_SYMMETRIC);
        },
        [handle] { return std::vector{handle}; });
  } catch (...) {
    forget_memory();
    static_cast<void>(leave());  // aborted, or in the hands of the helper
    throw;
  }
  if (*window != nullptr) windows_.push_back(*window);
  return *window != nullptr;
}

void NcclComm::dismiss() {
  for (const ncclWindow_t window : std::exchange(windows_, {})) {
    if (handle_ != nullptr) static_cast<void>(ncclCommWindowDeregister(handle_, window));
  }
  for (void* registration : std::exchange(registrations_, {})) {
    if (handle_ != nullptr) static_cast<void>(ncclCommDeregister(handle_, registration));
  }
}

std::optional<std::string> NcclComm::find_trouble() {
  const std::lock_guard lock(registry().mutex);
  for (const NcclComm* comm : registry().comms) {
    ncclResult_t result = ncclSuccess;
    if (ncclCommGetAsyncError(comm->handle_, &result) == ncclSuccess && result != ncclSuccess)
      return comm->words(result);
  }
  return std::nullopt;
}

void NcclComm::abort_all() {
  std::vector<ncclComm_t> handles;
  {
    const std::lock_guard lock(registry().mutex);
    for (NcclComm* comm : std::exchange(registry().comms, {})) {
      comm->forget_memory();
      handles.push_back(std::exchange(comm->handle_, nullptr));
    }
  }
  if (handles.empty()) return;
  RecordedCollectives::drop_all();
  abort_together(handles);
}

NcclGroup::NcclGroup() { TRIREME_NCCL_CALL(ncclGroupStart()); }

NcclGroup::~NcclGroup() {
  if (open_) static_cast<void>(ncclGroupEnd());
}

void NcclGroup::end(const NcclComm& comm) {
  open_ = false;
  comm.check(ncclGroupEnd(), "ncclGroupEnd");
}

}  // namespace trireme::comm
