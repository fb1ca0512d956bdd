#include "trireme/checkpoint/run_lock.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "agree.hpp"
#include "lock_claims.hpp"
#include "lock_liveness.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/checkpoint/position.hpp"
#include "trireme/checkpoint/writer.hpp"

namespace trireme::checkpoint {
namespace {

constexpr double stale_intervals = 10;   // before take_over believes in a death
constexpr double watched_intervals = 3;  // how long a heart is listened to

std::string job_number(const std::string& job) {
  const size_t kind = job.find(' ');
  return kind == std::string::npos ? job : job.substr(0, job.find(' ', kind + 1));
}

bool heart_stands_still(const std::filesystem::path& folder, const Claim& claim,
                        const LockOptions& options) {
  const double watched = watched_intervals * options.heartbeat_seconds;
  // A beat sets both times at once. Where they lie apart nothing beats: a copy that keeps the first
  // (cp -a, rsync -a) set the other. Clocks of two hosts are not compared.
  if (claim.changed - claim.modified > watched) return true;
  log::info(base::text("the ", options.what, " ", folder.string(), " may be in use (",
                       describe(claim.holder), "): listening to its heartbeat for ",
                       base::human_seconds(watched)));
  for (const base::Stopwatch watch; watch.seconds() < watched; base::tick()) {
    std::this_thread::sleep_for(
        std::chrono::duration<double>(std::clamp(watched - watch.seconds(), 0.0, 1.0)));
  }
  const std::optional<Claim> later = current_claim(folder);
  return later && later->holder.fence == claim.holder.fence && later->modified == claim.modified;
}

// What speaks for the holder's end and is no proof of it; empty: nothing.
std::string sign_of_its_end(const Claim& claim, const LockHolder& me, Liveness process) {
  // Also where clients of a file system count its folders differently.
  if (claim.holder.folder != 0 && me.folder != 0 && claim.holder.folder != me.folder)
    return "its claim was copied here with the folder";
  if (process == Liveness::alive) return "";
  const bool same_job = !me.job.empty() && job_number(me.job) == job_number(claim.holder.job) &&
                        !is_of_another_cluster(claim.holder);
  if (same_job) return "it was an earlier start of this job";  // requeue, qrerun
  const Liveness job = ask_scheduler(claim.holder);
  if (job == Liveness::gone) return "the scheduler does not know its job any more";
  // Machines that share a name could share a folder.
  return job == Liveness::unknown && was_before_a_reboot(claim.holder)
             ? "its machine was started anew since"
             : "";
}

bool same_process(const LockHolder& a, const LockHolder& b) {
  return a.host == b.host && a.pid == b.pid && a.started == b.started && a.job == b.job &&
         a.cluster == b.cluster;
}

// Why the lock may be taken from its holder; empty: it may not.
std::string reason_to_take(const std::filesystem::path& folder, const Claim& claim,
                           const LockHolder& me, const LockOptions& options) {
  if (claim.holder.released) return "released";
  const Liveness process = ask_process_table(claim.holder);
  if (process == Liveness::gone) return "its process is dead";
  const std::string sign = sign_of_its_end(claim, me, process);
  if (!sign.empty())
    return (options.gone && same_process(*options.gone, claim.holder)) ||
                   heart_stands_still(folder, claim, options)
               ? sign
               : "";
  if (process == Liveness::alive) return "";
  const double silence = server_time(folder) - claim.modified;
  if (options.take_over && silence > stale_intervals * options.heartbeat_seconds) {
    return base::text("no heartbeat for ", base::human_seconds(silence));
  }
  return "";
}

[[noreturn]] void refuse(const std::filesystem::path& folder, const Claim& claim,
                         const std::string& what) {
  throw UserError(
      ExitCode::locked,
      base::text("the ", what, " ", folder.string(), " is in use (", describe(claim.holder),
                 ", heartbeat ",
                 base::human_seconds(std::max(0.0, server_time(folder) - claim.modified)),
                 " ago): wait for it, use another one, or give run.take_over=true once its "
                 "heartbeat has stopped"));
}

uint64_t inode_of(const std::filesystem::path& folder) {
  struct stat info {};
  return ::stat(folder.c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_ino) : 0;
}

// A fence that is newer than every checkpoint in `checkpoints`.
int64_t fence_above(const std::filesystem::path& checkpoints) {
  if (checkpoints.empty()) return 1;
  const std::vector<Position> found = list_committed(checkpoints);
  if (found.empty()) return 1;
  VALIDATE(
      found.front().fence < largest_fence, ExitCode::bad_data,
      (checkpoints / folder_name(found.front().step)).string(), " has the fence ",
      found.front().fence,
      ", which no run has come to by counting, and none can follow: move it out of the folder");
  return found.front().fence + 1;
}

int64_t fence_after(const std::optional<Claim>& current) {
  if (!current) return 1;
  VALIDATE(current->holder.fence < largest_fence, ExitCode::locked, current->path.string(),
           " has the fence ", current->holder.fence,
           ", which no run has come to by counting, and none can follow: make sure that no run "
           "uses the folder, then remove the file");
  return current->holder.fence + 1;
}

// Claims the next fence; throws locked. `from`: who had not released it.
LockHolder take(const std::filesystem::path& folder, const LockOptions& options,
                std::optional<LockHolder>& from) {
  LockHolder me = this_process();
  me.folder = inode_of(folder);
  for (;;) {
    const std::optional<Claim> current = current_claim(folder);
    me.fence = fence_after(current);
    if (current) {
      const std::string reason = reason_to_take(folder, *current, me, options);
      if (reason.empty()) refuse(folder, *current, options.what);
      if (!current->holder.released) {
        log::warning(base::text("taking the ", options.what, " over from ",
                                describe(current->holder), " (", reason, "), fence ", me.fence));
        // A copied claim's process may live on beside the original.
        const bool copied =
            current->holder.folder != 0 && me.folder != 0 && current->holder.folder != me.folder;
        if (!copied) from = current->holder;
      }
    }
    const int64_t above = fence_above(options.checkpoints);
    if (!try_claim(folder, me)) continue;  // somebody was faster: look again at who
    if (above <= me.fence) return me;
    // Claims exclude each other by having the same number, so the step to a greater one comes
    // after: whoever looks in between finds this process alive.
    me.fence = above;
    if (try_claim(folder, me)) return me;
  }
}

}  // namespace

// The lock on the rank that holds it: heartbeat and release.
class RunLock::Holder {
 public:
  Holder(std::filesystem::path folder, LockHolder me, double interval)
      : folder_(std::move(folder)), me_(std::move(me)), interval_(interval) {
    remove_claims_below(folder_, me_.fence);
    base::write_file_atomically(folder_ / "run.lock", to_json(me_) + "\n");
    thread_ = std::thread([this] { beat(); });
  }

  ~Holder() {
    const base::FileWork work{"release", folder_};
    {
      const std::lock_guard lock(mutex_);
      leaving_ = true;
    }
    wake_.notify_all();
    thread_.join();
    try {
      if (!still_mine()) return;
      me_.released = true;
      rewrite_claim(folder_, me_);
      std::error_code ignored;
      std::filesystem::remove(folder_ / "run.lock", ignored);
    } catch (const std::exception& error) {
      log::warning(base::text("the run lock was not released (", error.what(),
                              "): the next run finds this process dead"));
    }
  }

  bool still_mine() const {
    const base::FileWork work{"listing", folder_};
    server_time(
        folder_);  // makes a file: a client of a network file system then lists the folder anew
    const auto fences = claimed_fences(folder_);
    return !fences.empty() && fences.front() == me_.fence;
  }
  int64_t fence() const { return me_.fence; }

 private:
  void beat() {
    int64_t count = 0;
    bool heard = true;
    std::unique_lock lock(mutex_);
    while (
        !wake_.wait_for(lock, std::chrono::duration<double>(interval_), [&] { return leaving_; })) {
      const int error = write_beat(++count);
      if (error != 0 && heard) {
        // No reason to stop the run: every commit asks whether the lock is still its own.
        log::warning(base::text(
            "the heartbeat in ", claim_path(folder_, me_.fence).string(), " cannot be written (",
            std::strerror(error), "): tried again every ", base::human_seconds(interval_),
            ". Until it can, start no other run in this folder: it might take this run for dead"));
      }
      if (error == 0 && !heard) log::info("the heartbeat is written again");
      heard = error == 0;
    }
  }

  // 0, or why others do not see the beat; the next one then opens the claim anew. A write sets
  // mtime by the server's clock, and where there is no room for it futimens does; without the sync
  // a client of a network file system may keep it for half a minute.
  int write_beat(int64_t count) {
    if (!claim_.valid())
      claim_ = base::FileDescriptor(
          ::open(claim_path(folder_, me_.fence).c_str(), O_WRONLY | O_CLOEXEC));
    if (!claim_.valid()) return errno;
    char line[32];
    const int size = std::snprintf(line, sizeof line, "%020ld\n", static_cast<long>(count));
    const auto at = static_cast<off_t>(to_json(me_).size() + 1);
    if (::pwrite(claim_.get(), line, static_cast<size_t>(size), at) == size &&
        ::fdatasync(claim_.get()) == 0)
      return 0;
    if (::futimens(claim_.get(), nullptr) == 0) return 0;
    const int error = errno;
    claim_ = {};
    return error;
  }

  std::filesystem::path folder_;
  LockHolder me_;
  double interval_;
  base::FileDescriptor claim_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool leaving_ = false;
  std::thread thread_;
};

RunLock::RunLock(const comm::CommView& world, std::filesystem::path folder,
                 const LockOptions& options)
    : folder_(std::move(folder)) {
  agreed_on_root(world, [&] {
    const base::FileWork work{"locking", folder_};
    std::filesystem::create_directories(folder_);
    LockHolder me = take(folder_, options, taken_from_);
    fence_ = me.fence;
    holder_ = std::make_unique<Holder>(folder_, std::move(me), options.heartbeat_seconds);
  });
  fence_ = world.broadcast_value(fence_, 0);
}

RunLock::~RunLock() = default;

bool RunLock::still_mine() const { return !holder_ || holder_->still_mine(); }

std::optional<LockView> look_at_lock(const std::filesystem::path& folder) {
  const std::optional<Claim> claim = current_claim(folder);
  if (!claim) return std::nullopt;
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  LockView view{claim->holder, false, std::max(0.0, now - claim->modified)};
  const uint64_t inode = inode_of(folder);
  const bool copied = view.holder.folder != 0 && inode != 0 && view.holder.folder != inode;
  if (view.holder.released || copied) return view;
  const Liveness process = ask_process_table(view.holder);
  const double stale = stale_intervals * LockOptions{}.heartbeat_seconds;
  view.alive = process == Liveness::alive || (process == Liveness::unknown && view.silence < stale);
  return view;
}

}  // namespace trireme::checkpoint
