// When a run saves, by hand-made counts and costs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.hpp"
#include "trireme/checkpoint/save_schedule.hpp"

namespace trireme::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const UserError full{ExitCode::io_error, "no space"};

TEST(SaveSchedule, ByIterations) {
  config::CkptOptions options;
  options.interval = 3;
  const SaveSchedule schedule(options, 2);
  for (int64_t iteration = 1; iteration < 10; ++iteration)
    EXPECT_EQ(schedule.due(iteration), iteration % 3 == 0) << iteration;
  EXPECT_EQ(schedule.until_due(4), 2);
  EXPECT_FALSE(schedule.time_is_due({}));
  options.interval = 0;
  EXPECT_FALSE(schedule.due(3)) << "only when the run stops";
  EXPECT_EQ(schedule.until_due(3), SaveSchedule::never);
}

TEST(SaveSchedule, WhatFailedIsTriedAgainLaterAndLater) {
  config::CkptOptions options;
  options.interval = 1000;
  SaveSchedule schedule(options, 1);
  EXPECT_THAT(schedule.failed(full, 100, 101, -1),
              AllOf(HasSubstr("ITERATION 100 FAILED (no space)"),
                    HasSubstr("the last good one is none"), HasSubstr("after iteration 101")));
  EXPECT_FALSE(schedule.due(100));
  EXPECT_EQ(schedule.until_due(100), 1);
  EXPECT_TRUE(schedule.due(101)) << "at once";
  EXPECT_THAT(
      schedule.failed(full, 101, 101, 50),
      AllOf(HasSubstr("of iteration 50"), HasSubstr("after iteration 102"), HasSubstr("2 failed")));
  EXPECT_THAT(schedule.failed(full, 102, 102, 50), HasSubstr("after iteration 105"));
  EXPECT_TRUE(schedule.due(105));
  schedule.began();
  EXPECT_FALSE(schedule.due(106))
      << "one iteration later, while the save that is the retry is at work";
  schedule.committed();
  EXPECT_FALSE(schedule.due(106));
  EXPECT_EQ(schedule.failures(), 3);
  EXPECT_THAT(schedule.failed(full, 106, 108, 105), HasSubstr("after iteration 108"))
      << "counted anew";
}

TEST(SaveSchedule, TheLastOfThoseInARowEndsTheRun) {
  config::CkptOptions options;
  options.max_failures = 2;
  SaveSchedule schedule(options, 1);
  schedule.failed(full, 1, 1, -1);
  try {
    schedule.failed(full, 2, 2, -1);
    FAIL() << "it went on";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::io_error);
    EXPECT_THAT(error.what(), HasSubstr("ckpt.max_failures"));
  }
  EXPECT_FALSE(SaveSchedule::may_pass(ExitCode::locked));
  EXPECT_FALSE(SaveSchedule::may_pass(ExitCode::internal));
}

// Young and Daly: sqrt(2 x cost x mean time between failures), which is 3600 / (rate x ranks)
// seconds.
TEST(SaveSchedule, AutomaticallyByCostAndFailures) {
  config::CkptOptions options;
  options.interval.automatic = true;
  options.interval.iterations = 0;
  options.failure_rate = 0.5;
  SaveSchedule schedule(options, 4);  // a failure in half an hour
  EXPECT_TRUE(schedule.time_is_due({})) << "the first one tells what a save costs";
  EXPECT_FALSE(schedule.time_is_due({.committed = 0, .last_seconds = 0, .at_work = true}));
  schedule.cost(1);
  schedule.cost_more(1);
  EXPECT_THAT(schedule.changed_interval(3),
              AllOf(HasSubstr("every 1 min 25 s"), HasSubstr("2.0 s; 4 ranks that fail 0.5 times")))
      << "sqrt(2 x 2 x 1800)";
  EXPECT_FALSE(schedule.time_is_due({.committed = 1, .last_seconds = 3}));
  EXPECT_THAT(schedule.changed_interval(3), IsEmpty()) << "as before";
  EXPECT_THAT(schedule.changed_interval(900), HasSubstr("every 15 min")) << "as long as one takes";
}

}  // namespace
}  // namespace trireme::checkpoint
