// Waits work on what others need, answer whether to leave, and let ranks step together, at np 1, 2
// and 4.
#include "trireme/comm/progress.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <mutex>
#include <thread>

#include "support/world.hpp"
#include "trireme/comm/mailbox.hpp"

namespace trireme::comm {
namespace {

using job::StopReason;
using test::world;

struct Watch : LeaveWatch {
  bool leaves_inside() const override { return inside; }
  StopReason wish() override { return ++asked, reason; }
  void waited() override { ++waits; }
  bool inside = true;
  StopReason reason = StopReason::none;
  int asked = 0, waits = 0;
};

// ---- one rank ----

TEST(Progress, AWaitWorksOnAllSourcesUntilItsConditionHolds) {
  Progress progress;
  int64_t a = 0, b = 0;
  progress.add([&] { return ++a; });
  progress.add([&] { return ++b, 0; });
  EXPECT_EQ(progress.until("ten", [&] { return b == 10; }), Then::go_on);
  EXPECT_EQ(a, 10);
  EXPECT_EQ(progress.some(), Then::go_on);
  EXPECT_EQ(a, 11);
  EXPECT_EQ(progress.until("nothing", [] { return true; }), Then::go_on);
  EXPECT_EQ(a, 12) << "mail is taken before the first look";
}

TEST(Progress, WhatCameIsCounted) {
  Progress progress;
  progress.add([] { return 3; });
  progress.add([] { return 4; });
  const int64_t before = trace::counts()["things_received"];
  progress.some("things_received");
  progress.some();
  EXPECT_EQ(trace::counts()["things_received"] - before, 7);
}

TEST(Progress, OnlyAWaitThatMayLeaveLeaves) {
  Watch watch;
  Progress progress(&watch);
  int64_t rounds = 0;
  progress.add([&] {
    if (++rounds == 3) watch.reason = StopReason::walltime;
    return 0;
  });
  EXPECT_EQ(progress.until("ten", [&] { return rounds == 10; }), Then::go_on);
  EXPECT_EQ(progress.some(), Then::go_on);
  EXPECT_EQ(progress.some(May::leave), Then::leave);
  EXPECT_EQ(progress.until(
                "twenty", [&] { return rounds == 20; }, May::leave),
            Then::leave);
  EXPECT_LT(rounds, 20);
  EXPECT_EQ(progress.until(
                "now", [] { return true; }, May::leave),
            Then::go_on)
      << "there is nothing to leave";
}

TEST(Progress, AWishToSaveIsNoWishToLeave) {
  Watch watch;
  watch.reason = StopReason::save_and_go_on;
  Progress progress(&watch);
  EXPECT_EQ(progress.some(May::leave), Then::go_on);
  EXPECT_EQ(progress.agree(world()), Then::go_on);
  EXPECT_EQ(progress.reason(), StopReason::none);
}

TEST(Progress, AWaitIsAPlaceToLeaveAndNoWorkOfItsOwn) {
  Watch watch;
  Progress progress(&watch);
  progress.until("nothing", [] { return true; });
  EXPECT_EQ(watch.waits, 1);
  EXPECT_GE(watch.asked, 1);
  progress.meet({});
  EXPECT_EQ(watch.waits, 2);
  const int before = watch.asked;
  progress.some();
  EXPECT_EQ(watch.asked, before) << "it may not leave there";
}

// A source may take what another thread makes.
TEST(Progress, ASourceTakesWhatAnotherThreadMakes) {
  std::mutex mutex;
  std::deque<int> made;
  std::thread other([&] {
    for (int i = 1; i <= 1000; ++i) {
      const std::lock_guard lock(mutex);
      made.push_back(i);
    }
  });
  Progress progress;
  int64_t sum = 0;
  progress.add([&] {
    const std::lock_guard lock(mutex);
    const int64_t here = std::ssize(made);
    for (const int i : made) sum += i;
    made.clear();
    return here;
  });
  EXPECT_EQ(progress.until("the sum", [&] { return sum == 500500; }), Then::go_on);
  other.join();
}

TEST(Progress, ANullPassDoesNothingBetweenMicroBatches) {
  const Pass pass = CommView{};
  EXPECT_EQ(pass.next("things_received"), Then::go_on);
}

// ---- all ranks ----

TEST(Progress, OneRanksWishMakesAllRanksLeave) {
  for (int which = 0; which < world().size(); ++which) {
    Watch watch;
    if (world().rank() == which) watch.reason = StopReason::stop_file;
    Progress progress(&watch);
    EXPECT_EQ(progress.agree(world()), Then::leave);
    EXPECT_EQ(progress.reason(), StopReason::stop_file);
    const Pass stays(world(), &progress, May::stay), leaves(world(), &progress, May::leave);
    EXPECT_EQ(stays.next("things_received"), Then::go_on);
    EXPECT_EQ(leaves.next("things_received"), Then::leave);
  }
}

TEST(Progress, NoMessageWhereNothingMayMakeARunLeave) {
  Watch watch;
  watch.inside = false;
  watch.reason = StopReason::stop_file;
  Progress progress(&watch);
  if (world().rank() == 0) {
    EXPECT_EQ(progress.agree(world()), Then::go_on);
    EXPECT_EQ(Progress().agree(world()), Then::go_on);
  }
  world().barrier();
}

// Trainers alone have agreed; then all know it, and why.
TEST(Progress, WhyOthersLeftIsKnownToAll) {
  Watch watch;
  watch.reason = StopReason::interrupt;
  Progress progress(&watch);
  EXPECT_EQ(progress.any(world(), Then::go_on), Then::go_on);
  const bool trains = world().rank() == world().size() - 1;
  const Then mine = trains ? progress.agree(CommView{}) : Then::go_on;
  EXPECT_EQ(mine, trains ? Then::leave : Then::go_on);
  EXPECT_EQ(progress.any(world(), mine), Then::leave);
  EXPECT_EQ(progress.reason(), StopReason::interrupt);
}

// Each rank sends through a queue of one, and waits in a way of its own.
TEST(Progress, MailMovesWhileRanksWait) {
  constexpr int64_t letters = 200;
  Mailbox<int64_t> mail(world(), "letters", {.messages = 1, .bytes = 1 << 20});
  Progress progress;
  int64_t taken = 0;
  progress.add([&] {
    int64_t came = 0;
    while (mail.take()) ++came;
    taken += came;
    return came;
  });
  const int next = (world().rank() + 1) % world().size();
  for (int64_t i = 0; i < letters; ++i) {
    progress.until("room", [&] { return !mail.congested(); });
    mail.post(next, i);
  }
  if (world().rank() % 2 == 0) progress.until("all letters", [&] { return taken == letters; });
  progress.until("the last one is taken", [&] { return mail.quiet(); });
  progress.meet(world());
  EXPECT_EQ(taken, letters);
}

// ---- ranks that step together ----

TEST(Joint, ARankOfItsOwnDecidesAlone) {
  Progress progress;
  int64_t wanted = 0, taken = 0;
  progress.add_joint(
      {}, "steps", [&] { return taken < wanted; }, [&] { ++taken; });
  progress.until(
      "nothing", [] { return true; }, May::stay, Help::joint);
  EXPECT_EQ(taken, 0);
  wanted = 5;
  progress.until("a source of its own", [&] { return taken == 0; });
  EXPECT_EQ(taken, 0) << "this wait does not work on joint sources";
  progress.until(
      "steps", [&] { return taken == wanted; }, May::stay, Help::joint);
  EXPECT_EQ(taken, wanted);
}

// The first rank begins as many steps as it likes; each is taken by every rank, as a collective of
// theirs needs it, in each of several waits.
TEST(Joint, StepsAreTakenByAllRanksOrNone) {
  Progress progress;
  int64_t wanted = 0, taken = 0;
  progress.add_joint(
      world(), "steps", [&] { return taken < wanted; },
      [&] {
        ++taken;
        EXPECT_EQ(world().max(taken), taken) << "the others are in the same step";
      });
  for (const int64_t more : {3, 0, 1, 5}) {
    wanted += more;
    if (world().rank() == 0) {
      progress.until(
          "the steps", [&] { return taken == wanted; }, May::stay, Help::joint);
    } else {
      // This wait may end before the last step was begun.
      const int64_t enough = more % 2 == 1 ? wanted - 1 : taken;
      progress.until(
          "some steps", [&] { return taken >= enough; }, May::stay, Help::joint);
    }
    EXPECT_EQ(taken, wanted);
    EXPECT_EQ(world().max(taken), taken);
  }
  progress.meet(world(), Help::joint);
  EXPECT_EQ(taken, wanted) << "none was wanted";
}

// Ranks that are at something else, in a wait that does not work on joint sources.
TEST(Joint, NoRankIsWaitedForInAStep) {
  if (world().size() == 1) GTEST_SKIP() << "a rank of its own waits for no other";
  Progress progress;
  int64_t taken = 0;
  bool elsewhere = true;
  progress.add_joint(
      world(), "steps", [] { return true; },
      [&] {
        ++taken;
        EXPECT_FALSE(elsewhere);
      });
  Mailbox<int32_t> mail(world(), "go", {});
  int32_t come = 0;
  progress.add([&] {
    while (mail.take()) ++come;
    return int64_t{0};
  });
  if (world().rank() == 0) {
    int looks = 0;
    progress.until(
        "steps",
        [&] {
          if (++looks == 100) {
            EXPECT_EQ(taken, 0) << "the others are at something else";
            elsewhere = false;
            for (int rank = 1; rank < world().size(); ++rank) mail.post(rank, 1);
          }
          return taken == 2;
        },
        May::stay, Help::joint);
  } else {
    progress.until("the word", [&] { return come == 1; });
    elsewhere = false;
    progress.until(
        "a step", [&] { return taken >= 1; }, May::stay, Help::joint);
  }
  EXPECT_EQ(taken, 2);
}

// Replicas beside each other do not mix their steps.
TEST(Joint, ReplicasHaveTheirOwn) {
  if (world().size() != 4) GTEST_SKIP() << "needs two replicas of two";
  const int replica = world().rank() / 2;
  const Comm ranks = Comm::split(world(), replica, world().rank(), "replica");
  Progress progress;
  const int64_t wanted = replica == 0 ? 4 : 0;
  int64_t taken = 0;
  progress.add_joint(
      ranks, "steps", [&] { return taken < wanted; }, [&] { ++taken; });
  progress.until(
      "the steps", [&] { return ranks->rank() > 0 || taken == wanted; }, May::stay, Help::joint);
  EXPECT_EQ(taken, wanted);
}

}  // namespace
}  // namespace trireme::comm
