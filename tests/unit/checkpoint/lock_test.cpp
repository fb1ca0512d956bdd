#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>

#include "checkpoint/lock_claims.hpp"
#include "checkpoint/lock_liveness.hpp"
#include "fixture.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"

namespace trireme::checkpoint {
namespace {

using test::world;

TEST(RunLock, ASecondRunIsRefusedByName) {
  const SharedFolder folder;
  const RunLock lock(world(), folder.path());
  EXPECT_EQ(lock.fence(), 1);
  EXPECT_TRUE(lock.still_mine());
  std::string message;
  EXPECT_EQ(code_of([&] { RunLock(world(), folder.path()); }, &message), ExitCode::locked);
  EXPECT_THAT(message, testing::HasSubstr(
                           "pid " + std::to_string(world().broadcast_value<int>(::getpid(), 0))));
  EXPECT_THAT(message, testing::HasSubstr("since 20"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "run.lock"));
  world().barrier();  // rank 0 releases the lock at the end of its scope
}

TEST(RunLock, FencesGrowAfterACleanExit) {
  const SharedFolder folder;
  for (int64_t fence = 1; fence <= 3; ++fence) {
    const RunLock lock(world(), folder.path());
    EXPECT_EQ(lock.fence(), fence);
    world().barrier();
  }
  world().barrier();
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "run.lock"));
}

TEST(RunLock, NoFileOfItIsForMoreThanTheUmaskAllows) {
  const SharedFolder folder;
  const mode_t before = ::umask(077);
  {
    const RunLock lock(world(), folder.path());
    world().barrier();
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      EXPECT_EQ(entry.status().permissions() &
                    (std::filesystem::perms::group_all | std::filesystem::perms::others_all),
                std::filesystem::perms::none)
          << entry.path();
    }
    world().barrier();
  }
  ::umask(before);
  world().barrier();
}

// A folder of checkpoints may come from another run, whose starts were more than this one's.
TEST(RunLock, TheFenceIsAboveTheCheckpointsOfItsFolder) {
  const SharedFolder folder;
  const auto ckpt = folder.path() / "copied";
  {
    RunLock first(world(), folder.path() / "other");
    world().barrier();
  }
  world().barrier();
  {
    const RunLock second(world(), folder.path() / "other");
    EXPECT_EQ(second.fence(), 2);
    save_test(world(), ckpt, 7, {.lock = &second});
    world().barrier();
  }
  const LockOptions options{.checkpoints = ckpt};
  {
    const RunLock lock(world(), folder.path() / "run", options);
    EXPECT_EQ(lock.fence(), 3) << "and not 1, the first of this folder";
    EXPECT_TRUE(lock.still_mine());
    EXPECT_EQ(claimed_fences(folder.path() / "run"), std::vector<int64_t>{3});
    EXPECT_EQ(code_of([&] { RunLock(world(), folder.path() / "run", options); }), ExitCode::locked);
    save_test(world(), ckpt, 5, {.keep = 2, .resumed_from = Position{2, 7}, .lock = &lock});
    world().barrier();
  }
  EXPECT_EQ(list_committed(ckpt).front(), (Position{3, 5}));
  world().barrier();
  const RunLock next(world(), folder.path() / "run", options);
  EXPECT_EQ(next.fence(), 4);
}

// The overtaken run finds out at its next commit and leaves the folder alone.
TEST(RunLock, TheOvertakenRunCommitsNothing) {
  const SharedFolder folder;
  const RunLock lock(world(), folder.path());
  save_test(world(), folder.path() / "ckpt", 1, {.lock = &lock});
  if (world().rank() == 0) {
    LockHolder other = this_process();
    other.fence = 2;
    EXPECT_TRUE(try_claim(folder.path(), other));
  }
  world().barrier();
  EXPECT_EQ(lock.still_mine(), world().rank() != 0);
  EXPECT_EQ(code_of([&] { save_test(world(), folder.path() / "ckpt", 2, {.lock = &lock}); }),
            ExitCode::locked);
  EXPECT_EQ(list_steps(folder.path() / "ckpt"), std::vector<int64_t>{1});
}

// The claim of a process that does not exist any more.
void leave_claim(const std::filesystem::path& folder, LockHolder holder) {
  if (world().rank() == 0) { EXPECT_TRUE(try_claim(folder, holder)); }
  world().barrier();
}

// Somebody who keeps a claim alive.
class Heart {
 public:
  explicit Heart(const std::filesystem::path& claim) {
    if (world().rank() != 0) return;
    thread_ = std::thread([this, claim] {
      while (!done_) {
        std::error_code taken_over;
        std::filesystem::last_write_time(claim, std::filesystem::file_time_type::clock::now(),
                                         taken_over);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    });
  }
  Heart(const Heart&) = delete;
  ~Heart() {
    done_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<bool> done_{false};
  std::thread thread_;
};

TEST(RunLock, ADeadProcessOfThisHostIsTakenOver) {
  const SharedFolder folder;
  LockHolder dead = this_process();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  dead.pid = child;
  dead.fence = 4;
  leave_claim(folder.path(), dead);
  const RunLock lock(world(), folder.path());
  EXPECT_EQ(lock.fence(), 5);
}

TEST(RunLock, AReusedPidIsNotTheHolder) {
  const SharedFolder folder;
  LockHolder earlier = this_process();
  earlier.started -= 100;
  earlier.fence = 1;
  leave_claim(folder.path(), earlier);
  const RunLock lock(world(), folder.path());
  EXPECT_EQ(lock.fence(), 2);
}

TEST(RunLock, AnUnknownHolderNeedsSilenceAndTakeOver) {
  const SharedFolder folder;
  LockHolder far = this_process();
  far.host = "elsewhere";
  far.namespace_id = "another boot";
  far.fence = 1;
  leave_claim(folder.path(), far);
  EXPECT_EQ(code_of([&] { RunLock(world(), folder.path(), {.heartbeat_seconds = 0.05}); }),
            ExitCode::locked);
  // Its heart beat a moment ago.
  EXPECT_EQ(code_of([&] {
              RunLock(world(), folder.path(), {.heartbeat_seconds = 100, .take_over = true});
            }),
            ExitCode::locked);
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  world().barrier();
  const RunLock lock(world(), folder.path(), {.heartbeat_seconds = 0.05, .take_over = true});
  EXPECT_EQ(lock.fence(), 2);
}

TEST(RunLock, AHolderFromBeforeARebootIsTakenOverWhenItsHeartStandsStill) {
  const SharedFolder folder;
  LockHolder before = this_process();
  before.namespace_id =
      "0b0b0b0b-0000 " + before.namespace_id.substr(before.namespace_id.find(' ') + 1);
  before.fence = 1;
  leave_claim(folder.path(), before);
  {
    const RunLock lock(world(), folder.path(), {.heartbeat_seconds = 0.02});
    EXPECT_EQ(lock.fence(), 2);
    world().barrier();
  }
  world().barrier();
  // Another machine of the same name, whose heart beats.
  before.fence = 3;
  leave_claim(folder.path(), before);
  const Heart heart(claim_path(folder.path(), 3));
  EXPECT_EQ(code_of([&] { RunLock(world(), folder.path(), {.heartbeat_seconds = 0.1}); }),
            ExitCode::locked);
}

// Clients of some network file systems number folders each for itself: its number says that the
// claim was copied, its heart that it was not.
TEST(RunLock, AClaimOfAnotherFolderIsACopyUnlessItsHeartBeats) {
  const SharedFolder folder;
  LockHolder far = this_process();
  far.host = "elsewhere";
  far.namespace_id = "another boot";
  far.folder = 1;
  far.fence = 1;
  leave_claim(folder.path(), far);
  {
    const Heart heart(claim_path(folder.path(), 1));
    EXPECT_EQ(code_of([&] { RunLock(world(), folder.path(), {.heartbeat_seconds = 0.1}); }),
              ExitCode::locked);
  }
  {
    const RunLock lock(world(), folder.path(), {.heartbeat_seconds = 0.02});
    EXPECT_EQ(lock.fence(), 2);
    world().barrier();
  }
  world().barrier();
  far = this_process();  // the same on this machine
  far.folder = 1;
  far.fence = 3;
  leave_claim(folder.path(), far);
  const Heart heart(claim_path(folder.path(), 3));
  EXPECT_EQ(code_of([&] { RunLock(world(), folder.path(), {.heartbeat_seconds = 0.1}); }),
            ExitCode::locked);
}

TEST(RunLock, ACopyThatKeptTheTimesIsNotListenedTo) {
  const SharedFolder folder;
  LockHolder far = this_process();
  far.namespace_id = "another boot";
  far.folder = 1;
  far.fence = 1;
  leave_claim(folder.path(), far);
  if (world().rank() == 0) {  // as `cp -a` leaves it, of a run that died years ago
    std::filesystem::last_write_time(
        claim_path(folder.path(), 1),
        std::filesystem::file_time_type::clock::now() - std::chrono::hours(24 * 3650));
  }
  world().barrier();
  const RunLock lock(world(), folder.path(),
                     {.heartbeat_seconds = 1e6});  // listening to it would take a month
  EXPECT_EQ(lock.fence(), 2);
}

// A run locks its folder and that of its checkpoints.
TEST(RunLock, TheLocksOfADeadRunAreListenedToOnce) {
  const SharedFolder folder;
  LockHolder before = this_process();
  before.namespace_id =
      "0b0b0b0b-0000 " + before.namespace_id.substr(before.namespace_id.find(' ') + 1);
  before.fence = 1;
  std::filesystem::create_directories(folder.path() / "ckpt");
  leave_claim(folder.path(), before);
  leave_claim(folder.path() / "ckpt", before);
  const RunLock first(world(), folder.path(), {.heartbeat_seconds = 0.02});
  EXPECT_EQ(first.taken_from().has_value(), world().rank() == 0);
  const RunLock second(world(), folder.path() / "ckpt",
                       {.heartbeat_seconds = 1e6, .gone = first.taken_from()});
  EXPECT_EQ(second.fence(), 2);
  world().barrier();
}

// A live run whose folder was copied: the copy's lock is free, that of the checkpoints is not.
TEST(RunLock, ACopyOfARunSaysNothingOfItsOtherLock) {
  const SharedFolder folder;
  LockHolder live = this_process();
  live.fence = 1;
  std::filesystem::create_directories(folder.path() / "ckpt");
  leave_claim(folder.path() / "ckpt", live);
  live.folder = 1;
  leave_claim(folder.path(), live);
  const RunLock copy(world(), folder.path(), {.heartbeat_seconds = 0.02});
  EXPECT_FALSE(copy.taken_from());
  EXPECT_EQ(code_of([&] {
              RunLock(world(), folder.path() / "ckpt", {.heartbeat_seconds = 0.02, .gone = live});
            }),
            ExitCode::locked);
}

TEST(RunLock, TheHeartBeats) {
  const SharedFolder folder;
  const RunLock lock(world(), folder.path(), {.heartbeat_seconds = 0.02});
  const auto before = std::filesystem::last_write_time(claim_path(folder.path(), 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_GT(std::filesystem::last_write_time(claim_path(folder.path(), 1)), before);
  EXPECT_EQ(current_claim(folder.path())->holder.pid, world().broadcast_value<int>(::getpid(), 0));
  world().barrier();  // rank 0 releases the lock at the end of its scope
}

// The descriptor of the claim stops taking writes, as that of a file server that was away: the run
// lives on, says so, and is heard again.
TEST(RunLock, AHeartThatCannotWriteTriesAgain) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "it changes a descriptor under the thread that writes to it";
#endif
  const SharedFolder folder;
  if (world().rank() == 0) {
    log::open({.console = false,
               .main_file = folder.path() / "log",
               .rank_file = {},
               .level = log::Level::info});
    const RunLock lock(comm::CommView{}, folder.path(), {.heartbeat_seconds = 0.02});
    const auto claim = claim_path(folder.path(), 1);
    const auto modified = [&] { return std::filesystem::last_write_time(claim); };
    const auto beats = [&] {
      for (const auto before = modified(); modified() == before;)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    };
    beats();
    const base::FileDescriptor deaf(::open(claim.c_str(), O_PATH | O_CLOEXEC));
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      const int fd = std::stoi(entry.path().filename());
      std::error_code closed;  // the folder's own descriptor may be gone
      if (fd != deaf.get() &&
          std::filesystem::read_symlink(entry.path(), closed) == std::filesystem::canonical(claim))
        ::dup3(deaf.get(), fd, O_CLOEXEC);
    }
    for (int i = 0; i < 3; ++i)
      beats();  // one under way, the first behind the one that failed, and one that is later than
                // what is said of it
    EXPECT_TRUE(lock.still_mine());
    log::close();
    const std::string said = base::read_file(folder.path() / "log");
    EXPECT_THAT(said, testing::HasSubstr("warning: the heartbeat in " + claim.string() +
                                         " cannot be written (Bad file descriptor)"));
    EXPECT_THAT(said, testing::HasSubstr("the heartbeat is written again"));
  }
  world().barrier();
}

// Many at once: exactly one wins each time.
TEST(RunLock, OneOfManyWins) {
  if (world().size() > 1) GTEST_SKIP() << "one process: it forks";
  for (int round = 0; round < 20; ++round) {
    const comm::CommView alone;
    const SharedFolder folder(alone);
    std::array<int, 2>
        others_ended{};  // a pipe: its writing end closes when all but one child are through
    ASSERT_EQ(::pipe(others_ended.data()), 0);
    for (int i = 0; i < 6; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::close(others_ended[1]);
        try {
          const RunLock lock(alone, folder.path());
          pollfd ended{others_ended[0], POLLIN, 0};
          ::poll(&ended, 1, 20'000);
          ::_exit(lock.still_mine() ? 0 : 2);  // dies holding it
        } catch (const UserError& error) { ::_exit(error.code() == ExitCode::locked ? 10 : 3); }
      }
    }
    ::close(others_ended[0]);
    int winners = 0;
    int refused = 0;
    for (int ended = 0; ended < 6; ++ended) {
      if (ended == 5) ::close(others_ended[1]);
      int status = 0;
      ::wait(&status);
      winners += WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 1 : 0;
      refused += WIFEXITED(status) && WEXITSTATUS(status) == 10 ? 1 : 0;
    }
    EXPECT_EQ(winners, 1);
    EXPECT_EQ(refused, 5);
  }
}

TEST(RunLock, ABrokenClaimIsNotIgnored) {
  const SharedFolder folder;
  if (world().rank() == 0) std::ofstream(folder.path() / ".run.lock.3") << "garbage";
  world().barrier();
  std::string message;
  EXPECT_EQ(code_of([&] { RunLock(world(), folder.path()); }, &message), ExitCode::locked);
  EXPECT_THAT(message, testing::HasSubstr(".run.lock.3"));
}

// A fake squeue first in PATH.
TEST(RunLock, AsksTheScheduler) {
  const SharedFolder folder;
  if (world().rank() == 0) {
    const auto tool = folder.path() / "squeue";
    std::ofstream(tool) << "#!/bin/sh\ncase $3 in 1) echo RUNNING;; 2) ;; 3) echo 'slurm_load_jobs "
                           "error: Invalid job id specified' >&2; exit 1;; *) exit 1;; esac\n";
    ::chmod(tool.c_str(), 0755);
    const std::string path = std::getenv("PATH");
    ::setenv("PATH", (folder.path().string() + ":" + path).c_str(), 1);
    LockHolder holder = this_process();
    auto answer = [&](const char* job) {
      holder.job = job;
      return ask_scheduler(holder);
    };
    EXPECT_EQ(answer("slurm 1"), Liveness::alive);
    EXPECT_EQ(answer("slurm 2"), Liveness::gone);
    EXPECT_EQ(answer("slurm 3"), Liveness::gone);
    EXPECT_EQ(answer("slurm 4"), Liveness::unknown);
    EXPECT_EQ(answer(""), Liveness::unknown);
    EXPECT_EQ(answer("slurm -x"), Liveness::unknown);
    ::setenv("SLURM_CLUSTER_NAME", "blue", 1);
    EXPECT_EQ(answer("slurm 3"), Liveness::gone) << "no name is none other";
    holder.cluster = "blue";
    EXPECT_EQ(answer("slurm 3"), Liveness::gone);
    holder.cluster = "green";
    EXPECT_EQ(answer("slurm 3"), Liveness::unknown) << "of a cluster that this squeue does not ask";
    ::unsetenv("SLURM_CLUSTER_NAME");

    // A cluster that did not say its name, whose job runs.
    holder.job = "slurm 3";
    holder.cluster = "";
    holder.namespace_id = "another boot";
    holder.host = "elsewhere";
    holder.fence = 1;
    const auto run = folder.path() / "run";
    std::filesystem::create_directory(run);
    EXPECT_TRUE(try_claim(run, holder));
    const auto code = [&](double heartbeat) {
      return code_of([&] { RunLock(comm::CommView{}, run, {.heartbeat_seconds = heartbeat}); });
    };
    {
      const Heart heart(claim_path(run, 1));
      EXPECT_EQ(code(0.1), ExitCode::locked);
    }
    EXPECT_EQ(code(0.02), ExitCode::done);

    // The same number of two clusters is two jobs.
    ::setenv("SLURM_CLUSTER_NAME", "blue", 1);
    ::setenv("SLURM_JOB_ID", "3", 1);
    holder.cluster = "green";
    holder.fence = 3;
    EXPECT_TRUE(try_claim(run, holder));
    EXPECT_EQ(code(0.02), ExitCode::locked);
    ::unsetenv("SLURM_JOB_ID");
    ::unsetenv("SLURM_CLUSTER_NAME");
    ::setenv("PATH", path.c_str(), 1);
  }
  world().barrier();
}

}  // namespace
}  // namespace trireme::checkpoint
