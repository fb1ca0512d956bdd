#include <gtest/gtest.h>

#include "driver/refuse.hpp"
#include "trireme/base/error.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::driver {
namespace {

TEST(Refuse, NamesEveryKeyAtOnce) {
  config::Options options;
  EXPECT_NO_THROW(refuse_unbuilt(options, config::Command::ppo));
  options.train.reduce_dtype = config::DType::bf16;
  options.train.async_depth = 1;
  options.algo.dynamic_filtering_enable = true;
  options.run.mismatch_check = 8;
  try {
    refuse_unbuilt(options, config::Command::ppo);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::configuration);
    const std::string text = error.what();
    for (const char* key : {"train.reduce_dtype", "train.async_depth", "run.mismatch_check"}) {
      EXPECT_NE(text.find(key), std::string::npos) << key;
    }
  }
}

// Each key alone, by its name.
TEST(Refuse, EveryKeyAlone) {
  using config::Options;
  const std::vector<std::pair<std::string, void (*)(Options&)>> keys{
      {"train.reduce_dtype", [](Options& o) { o.train.reduce_dtype = config::DType::bf16; }},
      {"run.mismatch_check", [](Options& o) { o.run.mismatch_check += 1; }},
  };
  for (size_t i = 0; i < keys.size(); ++i) {
    Options options;
    keys[i].second(options);
    for (const auto command : {config::Command::ppo, config::Command::sft, config::Command::rm, config::Command::dpo}) {
      const std::string text = config::error_of(ExitCode::configuration, [&] { refuse_unbuilt(options, command); });
      EXPECT_TRUE(text.starts_with(keys[i].first)) << i << ": " << text;
    }
  }
}

TEST(Refuse, WhatWorksIsNotRefused) {
  config::Options options;
  options.train.async_depth = 1;
  options.fault.crash_at = "checkpoint.commit";
  options.fault.at = {"kill:0:train:1"};
  EXPECT_NO_THROW(refuse_unbuilt(options, config::Command::ppo));
  options.algo.dynamic_filtering_enable = true;
  EXPECT_THROW(refuse_unbuilt(options, config::Command::ppo), UserError);
  EXPECT_NO_THROW(refuse_unbuilt(options, config::Command::sft)) << "these keys mean nothing there";
}

}  // namespace
}  // namespace trireme::driver
