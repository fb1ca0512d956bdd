#include "trireme/comm/agree.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <new>
#include <thread>

#include "support/world.hpp"

namespace trireme::comm {
namespace {

using test::world;

// The code and text that every rank sees when `work` runs on all.
std::pair<ExitCode, std::string> outcome(const std::function<void()>& work) {
  try {
    fail_together(world(), work);
  } catch (const UserError& error) { return {error.code(), error.what()}; }
  return {ExitCode::done, ""};
}

std::string from_rank(int rank, const std::string& text) {
  return world().size() > 1 ? base::text("rank ", rank, ": ", text) : text;
}

TEST(FailTogether, NothingIsThrownWhereNobodyFailed) {
  EXPECT_EQ(outcome([] {}).first, ExitCode::done);
}

TEST(FailTogether, OneRanksFailureIsThatOfAll) {
  const int last = world().size() - 1;
  const auto [code, text] =
      outcome([&] { VALIDATE(world().rank() != last, ExitCode::locked, "it is taken"); });
  EXPECT_EQ(code, ExitCode::locked);
  EXPECT_EQ(text, from_rank(last, "it is taken"));
}

// A save in the background may wait for the slowest rank's disk for minutes, beside training, which
// needs the core.
TEST(FailTogether, RanksThatWaitLeaveTheCoreToOthers) {
  const auto processor_time = [] {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  };
  constexpr auto work = std::chrono::milliseconds(400);
  world().barrier();
  const double before = processor_time();
  fail_together_on_root(world(), [&] { std::this_thread::sleep_for(work); });
  EXPECT_LT(processor_time() - before, std::chrono::duration<double>(work).count() / 4);
}

TEST(FailTogether, TheLowestRankSpeaksWhenSeveralFail) {
  const auto [code, text] =
      outcome([] { throw UserError(ExitCode::io_error, base::text("mine ", world().rank())); });
  EXPECT_EQ(code, ExitCode::io_error);
  EXPECT_EQ(text, from_rank(0, "mine 0"));
}

TEST(FailTogether, ErrorsOfLibrariesHaveTheirCodes) {
  EXPECT_EQ(outcome([] { throw std::bad_alloc(); }).first, ExitCode::out_of_memory);
  EXPECT_EQ(outcome([] { throw std::runtime_error("?"); }).first, ExitCode::internal);
  const auto denied = std::make_error_code(std::errc::permission_denied),
             full = std::make_error_code(std::errc::no_space_on_device);
  EXPECT_EQ(outcome([&] { throw std::filesystem::filesystem_error("a", denied); }).first,
            ExitCode::permission);
  EXPECT_EQ(outcome([&] { throw std::filesystem::filesystem_error("a", full); }).first,
            ExitCode::io_error);
}

TEST(FailTogether, OnRootOnlyRankZeroWorks) {
  int calls = 0;
  fail_together_on_root(world(), [&] { ++calls; });
  EXPECT_EQ(calls, world().rank() == 0 ? 1 : 0);
  EXPECT_THROW(fail_together_on_root(world(), [] { throw InternalError("no"); }), UserError);
}

TEST(FailTogether, ACallersOwnKindOfErrorIsTold) {
  const auto failure = failure_of_any(
      world(), [] { throw InternalError("no"); },
      [](const std::exception& error) {
        return dynamic_cast<const InternalError*>(&error) ? 5 : 0;
      });
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->kind, 5);
  EXPECT_EQ(failure->rank, 0);
}

struct Letter {
  std::string text;
  std::vector<int> numbers;
  static constexpr auto fields = std::tuple{&Letter::text, &Letter::numbers};
  bool operator==(const Letter&) const = default;
};
Letter of_rank(int rank) {
  return {std::string(static_cast<size_t>(rank), 'x'),
          std::vector<int>(static_cast<size_t>(3 - rank % 3), rank)};
}

TEST(TypedCollectives, CarryListsOfAnyLengthAndDescribedStructs) {
  std::vector<double> mine(static_cast<size_t>(world().rank() % 3), world().rank() + 0.5);
  std::vector<double> all;
  std::vector<Letter> letters;
  for (int rank = 0; rank < world().size(); ++rank) {
    all.insert(all.end(), static_cast<size_t>(rank % 3), rank + 0.5);
    letters.push_back(of_rank(rank));
  }
  EXPECT_EQ(world().all_gather<double>(mine), all);
  const auto by_rank = world().gather_ragged<double>(mine);
  ASSERT_EQ(by_rank.size(), static_cast<size_t>(world().size()));
  EXPECT_EQ(by_rank[static_cast<size_t>(world().rank())], mine);
  EXPECT_EQ(world().gather_values(of_rank(world().rank())), letters);
  EXPECT_EQ(world().broadcast_value(of_rank(world().rank()), world().size() - 1), letters.back());
}

}  // namespace
}  // namespace trireme::comm
