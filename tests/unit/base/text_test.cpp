#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"

namespace trireme::base {
namespace {

TEST(Text, JoinsAndFormats) {
  EXPECT_EQ(text("row ", 3, " of '", std::string("a"), "'"), "row 3 of 'a'");
  EXPECT_EQ(text(std::string_view("a\0b", 3), '/', true, int8_t{'x'}), std::string("a\0b/1x", 6));
  EXPECT_EQ(text(INT64_MIN, " ", UINT64_MAX), "-9223372036854775808 18446744073709551615");
  EXPECT_EQ(
      text(1e6, " ", 1.0 / 3, " ", -0.0f, " ", 1e-7, " ", std::numeric_limits<double>::infinity()),
      "1e+06 0.333333 -0 1e-07 inf");
  EXPECT_EQ(join(std::vector<std::string>{"a", "b"}), "a, b");
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_seconds(75.2), "1 min 15 s");
  EXPECT_EQ(human_seconds(0.0031), "3.1 ms");
  EXPECT_EQ(fixed(1.23456, 2), "1.23");
}

TEST(Text, NearestFindsTypingErrorsOnly) {
  const std::vector<std::string> keys{"rollout.temperature", "rollout.top_p", "train.batch_size"};
  EXPECT_EQ(nearest("rollout.temprature", keys), "rollout.temperature");
  EXPECT_EQ(nearest("train.batchsize", keys), "train.batch_size");
  EXPECT_EQ(nearest("something.else", keys), "");
}

TEST(Error, ValidateCarriesItsCode) {
  try {
    VALIDATE(1 == 2, ExitCode::bad_data, "value ", 7);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    EXPECT_STREQ(error.what(), "value 7");
  }
}

TEST(Checked, OverflowIsRefused) {
  EXPECT_EQ(checked_mul<int64_t>(1 << 30, 1 << 30), int64_t{1} << 60);
  EXPECT_THROW(checked_mul<int64_t>(int64_t{1} << 40, int64_t{1} << 40), UserError);
  EXPECT_THROW(checked_add<int64_t>(INT64_MAX, 1), UserError);
  EXPECT_THROW((checked_cast<int32_t>(int64_t{1} << 33)), UserError);
  EXPECT_EQ(round_up(65, 64), 128);
}

TEST(Text, BytesHaveTheUnitThatKeepsThemBelow1024) {
  const std::vector<std::pair<double, const char*>> table{{1, "1 B"},
                                                          {1023, "1023 B"},
                                                          {1024, "1.0 KiB"},
                                                          {-1536, "-1.5 KiB"},
                                                          {1023.9 * 1024, "1023.9 KiB"},
                                                          {1048575, "1.0 MiB"},
                                                          {1048576, "1.0 MiB"},
                                                          {140e9, "130.4 GiB"},
                                                          {0x1p40, "1.0 TiB"},
                                                          {0x1p60, "1024.0 PiB"}};
  for (const auto& [bytes, want] : table) EXPECT_EQ(human_bytes(bytes), want);
}

TEST(Text, SecondsAreRoundedIntoTheNextUnit) {
  const std::vector<std::pair<double, const char*>> table{
      {0, "0.0 us"},           {9.994e-4, "999.4 us"}, {9.9996e-4, "1.0 ms"},
      {0.9994, "999.4 ms"},    {0.99996, "1.0 s"},     {1, "1.0 s"},
      {59.94, "59.9 s"},       {59.97, "1 min 0 s"},   {60, "1 min 0 s"},
      {3599.4, "59 min 59 s"}, {3599.6, "1 h 0 min"},  {7199, "1 h 59 min"},
      {86400, "24 h 0 min"},   {1e6, "277 h 46 min"}};
  for (const auto& [seconds, want] : table) EXPECT_EQ(human_seconds(seconds), want);
}

TEST(Text, FixedHasAllDigits) {
  EXPECT_EQ(fixed(-0.05, 1), "-0.1");
  EXPECT_EQ(fixed(2.5, 0), "2");  // printf rounds halves to even
  EXPECT_EQ(fixed(std::ldexp(1.0, 100), 0), "1267650600228229401496703205376");
  const std::string large = fixed(std::ldexp(1.0, 400), 3);  // log10 is 120.4
  EXPECT_EQ(large.size(), 121u + 4);
  EXPECT_TRUE(large.ends_with(".000"));
  EXPECT_EQ(fixed(std::numeric_limits<double>::quiet_NaN(), 3), "nan");
  EXPECT_EQ(fixed(-std::numeric_limits<double>::infinity(), 3), "-inf");
}

TEST(Text, JoinPutsSeparatorsBetween) {
  EXPECT_EQ(join({}), "");
  EXPECT_EQ(join(std::vector<std::string>{"a"}, "--"), "a");
  EXPECT_EQ(join(std::vector<std::string>{"", "", "c"}, "--"), "----c");
}

// Distances by Levenshtein's definition: kitten-sitting 3, flaw-lawn 2, sunday-saturday 3.
TEST(Text, NearestTakesTheFirstOfTheClosest) {
  const auto among = [](const char* word, std::vector<std::string> candidates) {
    return nearest(word, candidates);
  };
  EXPECT_EQ(among("flaw", {"lawn"}), "lawn");
  EXPECT_EQ(among("kitten", {"sitting"}), "") << "three of six letters";
  EXPECT_EQ(among("the kitten", {"the sitting"}), "the sitting") << "three of ten";
  EXPECT_EQ(among("sunday", {"saturday"}), "");
  EXPECT_EQ(among("abcd", {"abce", "abcf"}), "abce");
  EXPECT_EQ(among("abcd", {"abxy", "abcd"}), "abcd");
  EXPECT_EQ(among("abcd", {}), "");
  EXPECT_EQ(among("", {"abc", "ab"}), "ab");
}

template <class T, class Action>
void expect_result(std::optional<T> want, const Action& action, const std::string& what) {
  try {
    const T got = action();
    EXPECT_TRUE(want.has_value() && *want == got) << what << " gave " << +got;
  } catch (const UserError& error) {
    EXPECT_FALSE(want.has_value()) << what << " was refused";
    EXPECT_EQ(error.code(), ExitCode::bad_data);
  }
}

// All pairs of bytes against wide arithmetic.
TEST(Checked, AgreesWithWideArithmetic) {
  for (int a = -128; a < 128; ++a) {
    for (int b = -128; b < 128; b += (b > -120 && b < 110 ? 13 : 1)) {
      const auto narrow = [](int wide) {
        return wide >= -128 && wide < 128 ? std::optional(static_cast<int8_t>(wide)) : std::nullopt;
      };
      const auto x = static_cast<int8_t>(a), y = static_cast<int8_t>(b);
      expect_result<int8_t>(
          narrow(a + b), [&] { return checked_add(x, y); }, text(a, " + ", b));
      expect_result<int8_t>(
          narrow(a * b), [&] { return checked_mul(x, y); }, text(a, " * ", b));
    }
    expect_result<uint8_t>(
        a < 0 ? std::nullopt : std::optional(static_cast<uint8_t>(a)),
        [&] { return checked_cast<uint8_t>(a); }, text(a));
  }
}

TEST(Checked, LimitsOfWideTypes) {
  constexpr auto most = std::numeric_limits<int64_t>::max();
  constexpr auto least = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(checked_add(most, int64_t{0}), most);
  EXPECT_EQ(checked_add(most, least), -1);
  EXPECT_THROW(checked_mul(least, int64_t{-1}), UserError);
  EXPECT_THROW(checked_add(std::numeric_limits<uint64_t>::max(), uint64_t{1}), UserError);
  EXPECT_EQ(checked_cast<int64_t>(uint64_t{most}), most);
  EXPECT_THROW(checked_cast<int64_t>(uint64_t{1} << 63), UserError);
  EXPECT_THROW(checked_cast<uint64_t>(int64_t{-1}), UserError);
  EXPECT_THROW(checked_cast<int>(int64_t{std::numeric_limits<int>::min()} - 1), UserError);
  try {
    checked_mul(int64_t{1} << 62, int64_t{6});
    ADD_FAILURE();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "integer overflow: 4611686018427387904 * 6");
  }
}

TEST(Checked, QuotientsAreRoundedUp) {
  for (int64_t a = 0; a <= 40; ++a) {
    for (int64_t b = 1; b <= 12; ++b) {
      int64_t groups = 0;
      while (groups * b < a) ++groups;
      EXPECT_EQ(ceil_div(a, b), groups);
      EXPECT_EQ(round_up(a, b), groups * b);
    }
  }
}

TEST(Error, ExitCodesAreThoseOfSysexits) {  // <sysexits.h> and docs/user/exit_codes.md
  const std::vector<std::pair<ExitCode, int>> table{{ExitCode::done, 0},
                                                    {ExitCode::usage, 64},
                                                    {ExitCode::bad_data, 65},
                                                    {ExitCode::input_missing, 66},
                                                    {ExitCode::unfit_environment, 69},
                                                    {ExitCode::internal, 70},
                                                    {ExitCode::out_of_memory, 71},
                                                    {ExitCode::locked, 73},
                                                    {ExitCode::io_error, 74},
                                                    {ExitCode::stopped_with_checkpoint, 75},
                                                    {ExitCode::stopped_without_checkpoint, 76},
                                                    {ExitCode::permission, 77},
                                                    {ExitCode::configuration, 78}};
  for (const auto& [code, number] : table) EXPECT_EQ(static_cast<int>(code), number);
  EXPECT_EQ(InternalError("x").code(), ExitCode::internal);
}

TEST(Error, AFailedConditionNamesItselfAndItsPlace) {
  try {
    detail::condition_failed("EXPECT", "a > b", "file.cpp", 12);
    ADD_FAILURE();
  } catch (const InternalError& error) {
    EXPECT_STREQ(error.what(), "EXPECT failed: a > b (file.cpp:12): this is a bug in Trireme");
  }
}

}  // namespace
}  // namespace trireme::base
