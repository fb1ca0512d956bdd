#include <gtest/gtest.h>

#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"

namespace trireme::base {
namespace {

TEST(Text, JoinsAndFormats) {
  EXPECT_EQ(text("row ", 3, " of '", std::string("a"), "'"), "row 3 of 'a'");
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

}  // namespace
}  // namespace trireme::base
