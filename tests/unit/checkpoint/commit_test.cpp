// The order of the commit: old or new after a crash at every point, old after every failed call.
#include <sys/wait.h>

#include <cerrno>
#include <fstream>

#include "checkpoint/file_steps.hpp"
#include "fixture.hpp"
#include "trireme/base/fault_point.hpp"

namespace trireme::checkpoint {
namespace {

using test::world;

std::optional<int64_t> load(const comm::CommView& comm, const std::filesystem::path& folder) {
  return load_newest(comm, folder, [&](Reader& reader) {
    expect_test_content(reader, comm.rank(), comm.size(),
                        static_cast<uint64_t>(reader.manifest().step));
  });
}

// Runs `work` in a child; true when it died at the crash point.
template <class F>
bool dies(F&& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      work();
    } catch (...) { ::_exit(3); }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 137;
}

// One process without MPI, so that the child of a fork can save.
TEST(Commit, OldOrNewAfterACrashAtEveryPoint) {
  if (world().size() > 1)
    GTEST_SKIP() << "one process: children of a fork cannot use MPI (the np 2 case is tests/fault)";
  const comm::CommView alone;
  bool committed = false;
  for (const std::string& point : crash_points()) {
    const SharedFolder folder(alone);
    save_test(alone, folder.path(), 10);
    ASSERT_TRUE(dies([&] {
      base::install_faults({{"exit", point, 1, 137}});
      save_test(alone, folder.path(), 20);
    })) << point;
    const auto step = load(alone, folder.path());
    ASSERT_TRUE(step.has_value()) << point;
    committed = committed || point == "ckpt.after_rename";
    EXPECT_EQ(*step, committed ? 20 : 10) << point;
    // The next run cleans up and saves the same step.
    remove_leftovers(folder.path());
    save_test(alone, folder.path(), 20);
    EXPECT_EQ(load(alone, folder.path()), 20) << point;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      EXPECT_FALSE(entry.path().filename().string().ends_with(".tmp"))
          << point << " left " << entry.path();
    }
  }
  EXPECT_TRUE(committed);
}

// A file system that cannot exchange two names: three renames, and an end between them.
TEST(Commit, AnEndBetweenTheRenamesOfAnExchangeLosesNoCheckpoint) {
  if (world().size() > 1) GTEST_SKIP() << "one process: it forks";
  const comm::CommView alone;
  for (const std::string point : {"", "ckpt.moved_aside", "ckpt.moved_in"}) {
    const SharedFolder folder(alone);
    save_test(alone, folder.path(), 10);
    save_test(alone, folder.path(), 20);
    const auto temporary = folder.path() / ".step-000020.7.tmp";
    std::filesystem::create_directory(temporary);
    std::ofstream(temporary / "new") << "";
    const bool died = dies([&] {
      base::install_faults({{"exit", point, 1, 137}});
      exchange_by_renames(temporary, folder.path() / "step-000020");
    });
    EXPECT_EQ(died, !point.empty());
    remove_leftovers(folder.path());
    const bool is_new = std::filesystem::exists(folder.path() / "step-000020" / "new");
    EXPECT_EQ(is_new, point != "ckpt.moved_aside") << point;
    EXPECT_EQ(std::filesystem::exists(folder.path() / "step-000020" / "manifest.json"), !is_new)
        << point;
    EXPECT_EQ(load(alone, folder.path()), is_new ? 10 : 20) << point;  // the fake one holds nothing
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      EXPECT_FALSE(entry.path().filename().string().starts_with("."))
          << point << " left " << entry.path();
    }
  }
}

TEST(Commit, AnExchangeThatFailsHalfWayPutsTheOldOneBack) {
  if (world().rank() != 0) return;
  const SharedFolder folder{comm::CommView{}};
  std::filesystem::create_directory(folder.path() / "old");
  EXPECT_EQ(code_of([&] { exchange_by_renames(folder.path() / "missing", folder.path() / "old"); }),
            ExitCode::input_missing);
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "old"));
}

TEST(Commit, EveryFailedCallIsAnAgreedErrorAndKeepsTheOldOne) {
  const SharedFolder folder;
  save_test(world(), folder.path(), 10);
  int failures = 0;
  for (const char* operation : {"mkdir", "open", "write", "fsync", "close", "rename"}) {
    for (int64_t call = 1; call <= 40; ++call) {
      // On the last rank only: the others must hear of it.
      if (world().rank() == world().size() - 1)
        base::install_faults({{"io_fail", std::string("ckpt.") + operation, call, ENOSPC}});
      std::string message;
      const ExitCode code = code_of([&] { save_test(world(), folder.path(), 20); }, &message);
      base::install_faults({});
      EXPECT_TRUE(world().all(code == ExitCode::done) || world().all(code == ExitCode::io_error))
          << operation << " " << call;
      if (code == ExitCode::done) break;  // fewer calls than that
      ++failures;
      EXPECT_THAT(message, testing::HasSubstr(std::filesystem::path(folder.path()).string()));
      EXPECT_EQ(load(world(), folder.path()), 10) << operation << " " << call;
      EXPECT_EQ(list_steps(folder.path()), std::vector<int64_t>{10});
      if (world().rank() == 0) {
        for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
          EXPECT_FALSE(entry.path().filename().string().starts_with(".step"))
              << operation << " " << call;
        }
      }
      world().barrier();
    }
    if (world().rank() == 0) std::filesystem::remove_all(folder.path() / "step-000020");
    world().barrier();
  }
  EXPECT_GE(failures, 5);
}

TEST(Commit, KeepsTheLastOnesAndPointsAtTheNewest) {
  const SharedFolder folder;
  for (const int64_t step : {1, 2, 3, 4}) save_test(world(), folder.path(), step, {.keep = 2});
  world().barrier();
  EXPECT_EQ(list_steps(folder.path()), (std::vector<int64_t>{4, 3}));
  std::ifstream latest(folder.path() / "latest");
  std::string name;
  latest >> name;
  EXPECT_EQ(name, "step-000004");
  EXPECT_EQ(load(world(), folder.path()), 4);
  EXPECT_EQ(code_of([&] { save_test(world(), folder.path(), 5, {.keep = 1}); }),
            ExitCode::configuration);
}

TEST(Commit, SaysWhichOneGoesWhileItIsThere) {
  const SharedFolder folder;
  std::vector<int64_t> gone;
  const auto before_removal = [&](int64_t step) {
    EXPECT_TRUE(std::filesystem::exists(folder.path() / folder_name(step) / "data.h5")) << step;
    gone.push_back(step);
  };
  for (const int64_t step : {1, 2, 3, 4, 5})
    save_test(world(), folder.path(), step,
              {.keep = 2, .pinned = 2, .before_removal = before_removal});
  EXPECT_EQ(gone, world().rank() == 0 ? (std::vector<int64_t>{1, 3}) : std::vector<int64_t>{});
}

TEST(Commit, KeepsThePinnedOneInAddition) {
  const SharedFolder folder;
  for (const int64_t step : {1, 2, 3, 4, 5})
    save_test(world(), folder.path(), step, {.keep = 2, .pinned = 2});
  world().barrier();
  EXPECT_EQ(list_steps(folder.path()), (std::vector<int64_t>{5, 4, 2}));
}

TEST(Commit, ReplacesACheckpointOfTheSameStep) {
  const SharedFolder folder;
  save_test(world(), folder.path(), 1);
  save_test(world(), folder.path(), 2);
  if (world().rank() == 0)
    std::filesystem::resize_file(folder.path() / "step-000002/data.h5", 1000);
  world().barrier();
  EXPECT_EQ(load(world(), folder.path()), 1);
  save_test(world(), folder.path(), 2);
  EXPECT_EQ(load(world(), folder.path()), 2);
}

// Its number would be the newest, and its content is not.
TEST(Commit, ARenamedFolderIsNotLoadedForAnotherStep) {
  const SharedFolder folder;
  for (const int64_t step : {1, 2}) save_test(world(), folder.path(), step);
  if (world().rank() == 0)
    std::filesystem::rename(folder.path() / "step-000001", folder.path() / "step-000009");
  world().barrier();
  EXPECT_EQ(load(world(), folder.path()), 2);
  save_test(world(), folder.path(), 9);  // in its place
  EXPECT_EQ(load(world(), folder.path()), 9);
}

// A run that went back to an earlier step saves later, though its numbers are smaller.
TEST(Commit, TheLaterFenceIsTheNewerOne) {
  const SharedFolder folder;
  {
    RunLock lock(world(), folder.path());
    for (const int64_t step : {10, 20, 30})
      save_test(world(), folder.path() / "ckpt", step, {.keep = 3, .lock = &lock});
  }
  world().barrier();
  RunLock lock(world(), folder.path());
  EXPECT_EQ(lock.fence(), 2);
  save_test(world(), folder.path() / "ckpt", 15,
            {.keep = 2, .resumed_from = Position{1, 30}, .lock = &lock});
  EXPECT_EQ(load(world(), folder.path() / "ckpt"), 15);
  world().barrier();
  EXPECT_EQ(list_steps(folder.path() / "ckpt"), (std::vector<int64_t>{30, 15}));
  EXPECT_EQ(list_committed(folder.path() / "ckpt"), (std::vector<Position>{{2, 15}, {1, 30}}));
}

// What lies after the point that a run went back to is not this run's to remove, and does not
// count.
TEST(Commit, NothingNewerThanTheResumePointGoes) {
  const SharedFolder folder;
  const auto ckpt = folder.path() / "ckpt";
  {
    RunLock lock(world(), folder.path());
    for (const int64_t step : {10, 20, 30, 40})
      save_test(world(), ckpt, step, {.keep = 9, .lock = &lock});
  }
  world().barrier();
  RunLock lock(world(), folder.path());
  const SaveOptions options{.keep = 2, .resumed_from = Position{1, 20}, .lock = &lock};
  save_test(world(), ckpt, 21, options);
  world().barrier();
  EXPECT_EQ(list_steps(ckpt), (std::vector<int64_t>{40, 30, 21, 20})) << "20 is the second one";
  for (const int64_t step : {22, 23}) save_test(world(), ckpt, step, options);
  world().barrier();
  EXPECT_EQ(list_steps(ckpt), (std::vector<int64_t>{40, 30, 23, 22}));
  world().barrier();
  save_test(world(), ckpt, 24,
            {.keep = 2, .lock = &lock});  // a run that began from nothing: only its own
  world().barrier();
  EXPECT_EQ(list_steps(ckpt), (std::vector<int64_t>{40, 30, 24, 23}));
}

TEST(Commit, NothingThereIsNoError) {
  const SharedFolder folder;
  EXPECT_EQ(load(world(), folder.path()), std::nullopt);
  EXPECT_EQ(load(world(), folder.path() / "absent"), std::nullopt);
}

}  // namespace
}  // namespace trireme::checkpoint
