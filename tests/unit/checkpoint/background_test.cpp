#include "trireme/checkpoint/background.hpp"

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <thread>

#include "fixture.hpp"
#include "trireme/base/fault_point.hpp"

namespace trireme::checkpoint {
namespace {

using test::world;

bool thread_multiple() {
  int level = 0;
  MPI_Query_thread(&level);
  return level == MPI_THREAD_MULTIPLE;
}

constexpr int64_t anything = std::numeric_limits<int64_t>::max();  // bytes of copies

class Background : public testing::TestWithParam<bool> {};

TEST_P(Background, SavesWhatTheShardsHeldAtTheStart) {
  const SharedFolder folder;
  BackgroundWriter writer(world(), GetParam() && thread_multiple());
  for (const uint64_t step : {1u, 2u, 3u}) {
    TestShards shards(world().rank(), world().size(), step);
    // Slow at first, so that the "optimizer" below overtakes it.
    std::atomic<bool> slow{true};
    SaveOptions options;
    options.beat = [&](const char*) {
      if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    };
    writer.start(folder.path(), static_cast<int64_t>(step), shards.content, options, anything);
    for (size_t t = 0; t < shards.storage.size(); ++t) {
      writer.before_change(t);
      EXPECT_TRUE(writer.written(t));
      std::fill(shards.storage[t].begin(), shards.storage[t].end(), std::byte{0xAA});
    }
    slow = false;
    const SaveReport report = writer.wait();
    EXPECT_EQ(report.folder, folder.path() / folder_name(static_cast<int64_t>(step)));
    EXPECT_FALSE(writer.busy());
    Reader reader(world(), report.folder);
    expect_test_content(reader, world().rank(), world().size(), step);
  }
}

// The "optimizer" overtakes a writer that is slow for the whole of the save: it has to wait for
// what was copied before.
TEST_P(Background, CopiesNoMoreAtATimeThanIsAllowed) {
  const SharedFolder folder;
  BackgroundWriter writer(world(), GetParam() && thread_multiple());
  SaveOptions options;
  options.beat = [](const char*) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  TestShards first(world().rank(), world().size(), 1);
  int64_t largest = 0, all = 0;
  for (const auto& storage : first.storage) {
    largest = std::max(largest, static_cast<int64_t>(storage.size()));
    all += static_cast<int64_t>(storage.size());
  }
  for (const auto& [step, most, bound] :
       {std::tuple{1, largest, largest}, {2, int64_t{0}, largest}, {3, anything, all}}) {
    TestShards shards(world().rank(), world().size(), static_cast<uint64_t>(step));
    writer.start(folder.path(), step, shards.content, options, most);
    for (size_t t = 0; t < shards.storage.size(); ++t) {
      writer.before_change(t);
      EXPECT_TRUE(writer.written(t));
      std::fill(shards.storage[t].begin(), shards.storage[t].end(), std::byte{0xAA});
    }
    EXPECT_LE(writer.peak_aside(), bound) << most;
    const SaveReport report = writer.wait();
    Reader reader(world(), report.folder);
    expect_test_content(reader, world().rank(), world().size(), static_cast<uint64_t>(step));
  }
}

TEST_P(Background, AnErrorArrivesAtTheNextWait) {
  const SharedFolder folder;
  BackgroundWriter writer(world(), GetParam() && thread_multiple());
  const TestShards shards(world().rank(), world().size(), 1);
  base::install_faults({{"io_fail", "ckpt.write", 2, ENOSPC}});
  const ExitCode code = code_of([&] {
    writer.start(folder.path(), 1, shards.content, {}, anything);
    writer.wait();
  });
  base::install_faults({});
  EXPECT_EQ(code, ExitCode::io_error);
  writer.before_change(0);  // nothing runs: returns at once
  writer.start(folder.path(), 2, shards.content, {}, anything);
  EXPECT_EQ(writer.wait().folder, folder.path() / "step-000002");
}

// MPI traffic of the main thread goes on meanwhile, on its own communicator.
TEST_P(Background, TheMainThreadKeepsCommunicating) {
  const SharedFolder folder;
  BackgroundWriter writer(world(), GetParam() && thread_multiple());
  const TestShards shards(world().rank(), world().size(), 1);
  writer.start(folder.path(), 1, shards.content, {}, anything);
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(world().sum<int64_t>(i), i * world().size());
  writer.wait();
  EXPECT_EQ(writer.copied_aside(), 0);
}

INSTANTIATE_TEST_SUITE_P(ThreadedOrNot, Background, testing::Bool());

}  // namespace
}  // namespace trireme::checkpoint
