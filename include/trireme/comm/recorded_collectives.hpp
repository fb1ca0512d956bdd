// Recordings (CUDA graphs) that have collectives of communicators between GPUs. NCCL frees no
// communicator, nor aborts one, before the recordings are gone that have its collectives: whoever
// owns such recordings is one of these, so that they can be dropped first. Used by the thread that
// operates the communicators only.
#pragma once

namespace trireme::comm {

class RecordedCollectives {
 public:
  RecordedCollectives(const RecordedCollectives&) = delete;
  static void drop_all();  // of this process, before communicators are aborted

 protected:
  RecordedCollectives();
  ~RecordedCollectives();

 private:
  virtual void drop() = 0;  // one that is under way ends with the abort
};

}  // namespace trireme::comm
