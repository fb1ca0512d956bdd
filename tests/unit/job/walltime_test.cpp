#include "trireme/job/walltime.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "trireme/base/text.hpp"
#include "trireme/job/process_stat.hpp"

namespace trireme::job {
namespace {

TEST(Walltime, LeavesRoomForAnIterationASaveAndTheEnd) {
  Walltime walltime(1000.0, 10);
  EXPECT_FALSE(walltime.must_stop());
  walltime.phase_took(100);
  walltime.phase_took(50);
  walltime.save_took(20);
  EXPECT_DOUBLE_EQ(walltime.needed(), 130 + 30 + 10);
  walltime.closing_took(10);
  EXPECT_DOUBLE_EQ(walltime.needed(), 130 + 30 + 13 + 10);
  EXPECT_FALSE(walltime.must_stop());
  walltime.phase_took(760);
  EXPECT_TRUE(walltime.must_stop());
}

TEST(Walltime, NoLimitNeverStops) {
  Walltime forever(std::nullopt);
  forever.phase_took(1e9);
  EXPECT_FALSE(forever.must_stop());
  EXPECT_FALSE(forever.remaining());
  EXPECT_FALSE(forever.wants_measurement(1e9));
}

TEST(Walltime, ALimitThatIsOverStopsAtOnce) {
  EXPECT_TRUE(Walltime(-5).must_stop());
  EXPECT_TRUE(Walltime(1).must_stop()) << "the margin alone is longer";
}

TEST(Walltime, MarginGrowsWithTheLimit) {
  EXPECT_DOUBLE_EQ(Walltime(10).needed(), 5);
  EXPECT_DOUBLE_EQ(Walltime(200).needed(), 20);
  EXPECT_DOUBLE_EQ(Walltime(86400).needed(), 30);
  EXPECT_DOUBLE_EQ(leaving_margin(200, 4), 24) << "a slow start";
  EXPECT_DOUBLE_EQ(leaving_margin(86400, 600), 90);
}

TEST(Walltime, EvaluationsCountWhereTheyComeNext) {
  Walltime walltime(10000.0, 10);
  walltime.phase_took(100);
  walltime.save_took(0);
  EXPECT_DOUBLE_EQ(walltime.needed({.evaluates = true}), 1.3 * 200 + 10)
      << "not known yet: as long as an iteration";
  walltime.phase_took(400, 300);
  EXPECT_DOUBLE_EQ(walltime.needed(), 1.3 * 100 + 10);
  EXPECT_DOUBLE_EQ(walltime.needed({.evaluates = true}), 1.3 * 400 + 10);
}

TEST(Walltime, TheLongestOfTheLastSavesCounts) {
  Walltime walltime(10000.0, 10);
  EXPECT_FALSE(walltime.save_seconds());
  for (const double seconds : {90.0, 10.0, 30.0, 20.0}) walltime.save_took(seconds);
  EXPECT_EQ(walltime.save_seconds(), 90);
  walltime.save_took(25);
  EXPECT_EQ(walltime.save_seconds(), 30) << "a hiccup of long ago is forgotten";
  EXPECT_DOUBLE_EQ(walltime.needed({.save_in_progress = true}), 2 * 1.5 * 30 + 10);
}

TEST(Walltime, TheFirstSaveIsMeasuredEarly) {
  Walltime walltime(1000.0, 10);
  walltime.phase_took(10);
  EXPECT_DOUBLE_EQ(walltime.needed(), 13 + 15 + 10) << "an iteration's time stands in for a save";
  EXPECT_FALSE(walltime.wants_measurement(5)) << "a regular one comes soon";
  EXPECT_TRUE(walltime.wants_measurement(60));
  walltime.save_took(3);
  EXPECT_FALSE(walltime.wants_measurement(60));
}

TEST(WalltimeLimit, TheNearerOneCounts) {
  EXPECT_FALSE(choose_limit(0, 5, std::nullopt).seconds_left);
  EXPECT_EQ(choose_limit(100, 5, std::nullopt).seconds_left, 95);
  EXPECT_EQ(choose_limit(100, 5, 80).source, "the scheduler, which ends it before run.walltime");
  EXPECT_EQ(choose_limit(0, 5, 80).source, "the scheduler");
  EXPECT_EQ(choose_limit(100, 5, 80).seconds_left, 80);
  EXPECT_EQ(choose_limit(100, 5, 800).source, "run.walltime");
  EXPECT_EQ(choose_limit(0, 5, 800).seconds_left, 800);
}

TEST(Process, FieldsBehindANameOfAnySort) {
  const auto file = std::filesystem::temp_directory_path() / base::text("trireme-stat-", getpid());
  std::ofstream(file) << "4711 (a) b (c) S 1 4711 4711 0 -1 4194560 100 200 0 0 31 32 0 0 20 0 3 0 "
                         "987654 100000 500\n";
  EXPECT_EQ(stat_field(file, stat_user_ticks), 31);
  EXPECT_EQ(stat_field(file, stat_system_ticks), 32);
  EXPECT_EQ(stat_field(file, stat_start_ticks), 987654);
  EXPECT_EQ(stat_field(file, 99), std::nullopt);
  std::filesystem::remove(file);
  EXPECT_EQ(stat_field(file, stat_user_ticks), std::nullopt);
}

TEST(Process, IsOlderThanNothing) {
  EXPECT_GE(process_age(), 0);
  EXPECT_LT(process_age(), 86400);
}

}  // namespace
}  // namespace trireme::job
