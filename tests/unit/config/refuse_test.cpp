#include <gtest/gtest.h>

#include "trireme/config/refuse.hpp"
#include "trireme/base/error.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::config {
namespace {

TEST(Refuse, NamesEveryKeyAtOnce) {
  Options options;
  EXPECT_NO_THROW(refuse_unbuilt(options, Command::ppo));
  options.train.reduce_dtype = DType::bf16;
  options.train.async_depth = 1;
  options.algo.dynamic_filtering_enable = true;
  try {
    refuse_unbuilt(options, Command::ppo);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::configuration);
    const std::string text = error.what();
    for (const char* key : {"train.reduce_dtype", "train.async_depth"}) {
      EXPECT_NE(text.find(key), std::string::npos) << key;
    }
  }
}

// Each key alone, by its name.
TEST(Refuse, EveryKeyAlone) {
  const std::vector<std::pair<std::string, void (*)(Options&)>> keys{
      {"train.reduce_dtype", [](Options& o) { o.train.reduce_dtype = DType::bf16; }},
  };
  for (size_t i = 0; i < keys.size(); ++i) {
    Options options;
    keys[i].second(options);
    for (const auto command : {Command::ppo, Command::sft, Command::rm, Command::dpo}) {
      const std::string text = error_of(ExitCode::configuration, [&] { refuse_unbuilt(options, command); });
      EXPECT_TRUE(text.starts_with(keys[i].first)) << i << ": " << text;
    }
  }
}

TEST(Refuse, WhatWorksIsNotRefused) {
  Options options;
  options.train.async_depth = 1;
  options.train.partial_rollout_enable = true;
  options.generate.tensor_parallel = 2;
  options.fault.crash_at = "checkpoint.commit";
  options.fault.at = {"kill:0:train:1"};
  EXPECT_NO_THROW(refuse_unbuilt(options, Command::ppo));
  options.algo.dynamic_filtering_enable = true;
  EXPECT_THROW(refuse_unbuilt(options, Command::ppo), UserError);
  EXPECT_NO_THROW(refuse_unbuilt(options, Command::sft)) << "these keys mean nothing there";
}

}  // namespace
}  // namespace trireme::config
