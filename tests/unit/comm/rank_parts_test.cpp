// Parts of sums over the ranks: in shared memory and gathered by MPI, the same numbers in every
// part, sum after sum.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "support/world.hpp"
#include "trireme/comm/rank_parts.hpp"
#include "trireme/trace/activity.hpp"

namespace trireme::comm {
namespace {

using test::world;
using testing::HasSubstr;

float value(int rank, int64_t sum, int64_t i) {
  return static_cast<float>(rank * 1000003 + sum * 101 + i) * 0.37f;
}

// Numbers of all parts that are not what their ranks wrote for this sum.
int64_t wrong_numbers(RankParts& parts, int64_t sum, int64_t count) {
  const RankParts::Sources sources = parts.sources();
  int64_t wrong = 0;
  for (int rank = 0; rank < world().size(); ++rank) {
    for (int64_t i = 0; i < count; ++i)
      wrong += sources.first[rank * sources.stride + i] != value(rank, sum, i);
  }
  return wrong;
}

void write_part(RankParts& parts, int64_t sum, int64_t count) {
  float* own = parts.own(count);
  for (int64_t i = 0; i < count; ++i) own[i] = value(world().rank(), sum, i);
}

class Parts : public testing::TestWithParam<bool> {};  // shared

TEST_P(Parts, OfEveryRankAreThoseOfTheSum) {
  const auto parts = make_rank_parts(world(), GetParam());
  int64_t sum = 0, wrong = 0;
  for (const int64_t room : {64, 5000, 300}) {  // grows once
    parts->reserve(room);
    for (int i = 0; i < 40; ++i, ++sum) {
      const int64_t count = 1 + (sum * 131) % room;
      write_part(*parts, sum, count);
      // Every rank is late in its turn, in front of the meeting or while the others go on to the
      // next sum.
      if (sum % (2 * world().size()) == world().rank())
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      parts->meet(count);
      if (sum % (2 * world().size()) == world().size() + world().rank())
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      wrong += wrong_numbers(*parts, sum, count);
    }
  }
  EXPECT_EQ(wrong, 0);
}

// A thread that is behind the meeting may read while another one writes the next part.
TEST_P(Parts, AreThereWhileTheNextOnesAreWritten) {
  if (!GetParam())
    return;  // gathered parts are all in one place: FusedBackend's threads meet in between
  const auto parts = make_rank_parts(world(), true);
  parts->reserve(100);
  write_part(*parts, 0, 100);
  parts->meet(100);
  write_part(*parts, 1, 100);
  world().barrier();
  EXPECT_EQ(wrong_numbers(*parts, 0, 100), 0);
  world().barrier();
  parts->meet(100);
  EXPECT_EQ(wrong_numbers(*parts, 1, 100), 0);
}

TEST_P(Parts, WaitingIsSeenByTheWatchdog) {
  if (world().size() == 1) return;
  const auto parts = make_rank_parts(world(), GetParam());
  parts->reserve(10);
  write_part(*parts, 0, 10);
  trace::Standing seen;
  if (world().rank() == 0) {
    std::thread watchdog([&seen] {
      for (int i = 0; i < 2000 && !seen.waiting; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        seen = trace::standing();
      }
    });
    parts->meet(10);
    watchdog.join();
    EXPECT_TRUE(seen.waiting);
    EXPECT_THAT(seen.call,
                HasSubstr(GetParam() ? "sum of parts of 40 B on " + world().name() : "all_gather"));
  } else {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    parts->meet(10);
  }
  EXPECT_EQ(wrong_numbers(*parts, 0, 10), 0);
}

INSTANTIATE_TEST_SUITE_P(Ways, Parts, testing::Bool(),
                         [](const auto& way) { return way.param ? "Shared" : "Gathered"; });

TEST(RankParts, SayWhichWayTheyGo) {
  EXPECT_EQ(make_rank_parts(world(), true)->kind(), "memory that they share");
  EXPECT_EQ(make_rank_parts(world(), false)->kind(), "MPI: generate.shared_sums = false");
}

}  // namespace
}  // namespace trireme::comm
