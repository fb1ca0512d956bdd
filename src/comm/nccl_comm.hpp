// A communicator of NCCL that cannot hang this program. It blocks, so that one thread operates it
// at a time and no call makes a thread: calls that wait for other ranks (making, splitting,
// freeing) are done by a helper thread while its user waits, for device_support().patience at most;
// what hangs in a collective is ended by the watchdog, which also sees the errors that NCCL finds
// by itself. It is aborted, not destroyed, when the program leaves by an exception: ncclCommDestroy
// waits for all ranks of the node, and streams wait for collectives that will never end. Private to
// trireme_comm_cuda.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/comm.hpp"

namespace trireme::comm {

class NcclComm {
 public:
  // Collective over `comm`, which must outlive this. Where another one of the same ranks exists it
  // is split off from that, and shares the connections and buffers that NCCL holds on the device:
  // the device must then come to an end of its work. Throws InternalError, with rank and cause,
  // where the ranks do not find each other in time: the communicator that it is split off from is
  // then lost, too.
  explicit NcclComm(const CommView& comm);
  NcclComm(const NcclComm&) = delete;
  ~NcclComm();  // collective, unless an exception is on its way

  ncclComm_t handle() const { return handle_; }
  // `result` is what a call returned. Throws InternalError where NCCL refused or knows of an error.
  void check(ncclResult_t result, const char* call) const {
    if (result != ncclSuccess) fail(result, call);
  }
  void enroll(std::byte* data,
              int64_t bytes);  // memory that NCCL may use without copies, until dismiss()
  // Memory of ncclMemAlloc, as much on all ranks, becomes a symmetric window until dismiss().
  // False: NCCL made none here. Collective. Throws as the constructor does; this is lost then.
  bool open_window(std::byte* data, int64_t bytes);
  void dismiss();  // both

  // Of all communicators of this process, for any thread: what NCCL found wrong by itself. NCCL
  // reads a state for it; only communicators that do not block do more, for one thread.
  static std::optional<std::string> find_trouble();
  // Ends all that is under way on the device, so that nothing waits for it any more; communicators
  // are of no use afterwards. Drops what RecordedCollectives have. By the thread that uses them.
  static void abort_all();

 private:
  NcclComm* of_the_same_ranks() const;
  void begin(const CommView& comm);
  void split_from(NcclComm& other);
  void enter();
  ncclComm_t leave();     // nobody else sees the handle from here on
  void forget_memory() {  // gone with the communicator
    registrations_.clear();
    windows_.clear();
  }
  void meet_others(const char* call, const std::function<ncclResult_t()>& work,
                   const std::function<std::vector<ncclComm_t>()>& made);
  std::string words(ncclResult_t result) const;
  [[noreturn]] void fail(ncclResult_t result, const char* call) const;

  ncclComm_t handle_ = nullptr;
  void* ranks_;  // an MPI_Comm
  int rank_, size_;
  std::vector<void*> registrations_;
  std::vector<ncclWindow_t> windows_;
};

// Calls that NCCL enqueues together. One that an exception leaves is closed: NCCL would add what
// comes later to it.
class NcclGroup {
 public:
  NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  ~NcclGroup();
  void end(const NcclComm& comm);

 private:
  bool open_ = true;
};

}  // namespace trireme::comm
