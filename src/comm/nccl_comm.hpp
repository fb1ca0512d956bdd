// A communicator of NCCL that cannot hang this program: it does not block, what it does is polled
// with a deadline, errors that NCCL finds by itself are seen by the watchdog, and it is aborted,
// not destroyed, when the program leaves by an exception: ncclCommDestroy waits for all ranks of
// the node, and streams wait for collectives that will never end. Private to trireme_comm_cuda.
#pragma once

#include <nccl.h>

#include <cstdint>
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
  // where the ranks do not find each other in device_support().patience.
  explicit NcclComm(const CommView& comm);
  NcclComm(const NcclComm&) = delete;
  ~NcclComm();  // collective, unless an exception is on its way

  ncclComm_t handle() const { return handle_; }
  // `result` is what a call returned: waits until NCCL has enqueued all of it. Throws InternalError
  // where NCCL refused or knows of an error.
  void complete(ncclResult_t result, const char* call);
  void enroll(std::byte* data,
              int64_t bytes);  // memory that NCCL may use without copies, until dismiss()
  void dismiss();

  // Of all communicators of this process, for any thread: what NCCL found wrong by itself.
  static std::optional<std::string> find_trouble();
  // Ends all that is under way on the device, so that nothing waits for it any more; communicators
  // are of no use afterwards. By the thread that uses them.
  static void abort_all();

 private:
  NcclComm* of_the_same_ranks() const;
  void begin(const CommView& comm, ncclConfig_t& config);
  void enter();
  void split_from(NcclComm& other, ncclConfig_t& config);
  ncclComm_t leave();  // nobody else sees the handle from here on
  std::string words(ncclResult_t result) const;

  ncclComm_t handle_ = nullptr;
  void* ranks_;  // an MPI_Comm
  int rank_, size_;
  std::vector<void*> registrations_;
};

// Calls that NCCL enqueues together. One that an exception leaves is closed: NCCL would add what
// comes later to it.
class NcclGroup {
 public:
  NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  ~NcclGroup();
  void end(NcclComm& comm);

 private:
  bool open_ = true;
};

}  // namespace trireme::comm
