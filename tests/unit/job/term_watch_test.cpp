#include "trireme/job/term_watch.hpp"

#include <gtest/gtest.h>

namespace trireme::job {
namespace {

TermAction of(double since, double grace, std::optional<double> to_commit, bool saving = false,
              bool leads = true) {
  return on_term({since, grace, to_commit, saving, leads});
}

TEST(TermWatch, LongGraceGoesOn) {
  EXPECT_EQ(of(0, 30, 10), TermAction::go_on);
  EXPECT_EQ(of(15, 30, 10), TermAction::go_on);
  EXPECT_EQ(of(1e6, 0, 1e9), TermAction::go_on) << "no grace is known";
}

TEST(TermWatch, ShortGraceLeavesAtOnce) {
  EXPECT_EQ(of(0, 30, 29), TermAction::leave) << "two seconds are for the end of the job";
  EXPECT_EQ(of(0, 2, 1.6), TermAction::leave);
  EXPECT_EQ(of(0, 2, 1.4), TermAction::go_on);
}

TEST(TermWatch, WhatIsNotKnownIsTriedToTheEnd) {
  EXPECT_EQ(of(0, 10, std::nullopt), TermAction::go_on);
  EXPECT_EQ(of(7.9, 10, std::nullopt), TermAction::go_on);
  EXPECT_EQ(of(8, 10, std::nullopt), TermAction::leave);
}

TEST(TermWatch, ASaveInProgressGetsAllTheTime) {
  EXPECT_EQ(of(0, 10, 60, true), TermAction::go_on);
  EXPECT_EQ(of(8, 10, 60, true), TermAction::leave);
}

TEST(TermWatch, OthersActAfterRankZero) {
  EXPECT_EQ(of(0, 10, 60, false, false), TermAction::go_on);
  EXPECT_EQ(of(8.5, 10, 60, false, false), TermAction::go_on);
  EXPECT_EQ(of(9, 10, 60, false, false), TermAction::leave);
}

TEST(TermWatch, EndsWithoutASignal) {
  const TermWatch watch([] { return TermFacts{}; }, [] { return 76; });
}

}  // namespace
}  // namespace trireme::job
