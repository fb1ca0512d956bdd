// One writer per run folder, and one per folder of checkpoints, which several run folders may name.
// Schedulers do start a second job while the ranks of the first still live (requeue, qrerun), so a
// run holds a lock with a fence number: each holder has a greater number than every one before and
// than every checkpoint in the folder where it saves, and a run that finds a greater one than its
// own writes nothing more.
//
// On disk: a claim file `.run.lock.<fence>` per holder, made complete by link(2), which succeeds
// for one process only; the greatest number is the holder. `run.lock` is a copy for people and
// scripts. The heartbeat is the claim's mtime and a counter.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "trireme/comm/comm.hpp"

namespace trireme::checkpoint {

// Who holds a lock, as written into it.
struct LockHolder {
  std::string job;      // "slurm 4711", "pbs 12.server" or "" outside a scheduler
  std::string cluster;  // whose Slurm gave that number; "": none, or an older version did not say
  std::string host;
  int64_t pid = 0;
  int64_t started =
      0;  // start time of the process in clock ticks after boot: tells a reused pid apart
  std::string namespace_id;  // of the pid, and of the boot: a pid means nothing elsewhere
  std::string since;         // UTC, ISO 8601
  uint64_t folder =
      0;  // inode of the locked folder: a copy of it is nobody's; 0: an older version did not say
  int64_t fence = 0;
  bool released = false;
};

struct LockOptions {
  double heartbeat_seconds = 10;
  // Take over from a holder whose fate cannot be found out once its heartbeat is older than 10
  // intervals.
  bool take_over = false;
  // Where the holder saves. Its fence is greater than those of the checkpoints there, which may
  // have come from another run folder. Empty: nowhere.
  std::filesystem::path checkpoints{};
  // taken_from() of another lock, whose process was found gone: its heart is not listened to a
  // second time.
  std::optional<LockHolder> gone{};
  // What `folder` is, for messages.
  std::string what = "run folder";
};

class RunLock {
 public:
  // Collective over `world`; rank 0 takes the lock and beats. Creates the folder. Throws
  // UserError(locked) on every rank, naming the holder, unless the holder released the lock, its
  // process on this host is dead, its heartbeat is stale and take_over was given, or its heart
  // stands still and something says that it is gone: its job was started again or is unknown
  // (squeue, qstat), its machine was started anew, or the claim seems to have been copied here with
  // the folder. The heart is listened to for 3 intervals.
  RunLock(const comm::CommView& world, std::filesystem::path folder,
          const LockOptions& options = {});
  RunLock(const RunLock&) = delete;
  // Releases the lock when it is still ours. Not collective.
  ~RunLock();

  int64_t fence() const { return fence_; }
  // False once another run has claimed a greater fence. Asks the file system; answers on rank 0,
  // true elsewhere. Not collective.
  bool still_mine() const;
  const std::filesystem::path& folder() const { return folder_; }
  // Whose lock it was without having been released, unless the claim was a copy. On rank 0.
  const std::optional<LockHolder>& taken_from() const { return taken_from_; }

 private:
  class Holder;
  std::filesystem::path folder_;
  int64_t fence_ = 0;
  std::optional<LockHolder> taken_from_;
  std::unique_ptr<Holder> holder_;  // on rank 0
};

// The holder of a folder's lock, as far as it can be seen without taking the lock or asking twice.
struct LockView {
  LockHolder holder;
  // Its process is in this machine's process table or, on another machine, has given a heartbeat
  // within 10 intervals.
  bool alive = false;
  double silence = 0;  // seconds since the last heartbeat, by this machine's clock
};
// nullopt: no run has ever locked the folder. Local.
std::optional<LockView> look_at_lock(const std::filesystem::path& folder);

}  // namespace trireme::checkpoint
