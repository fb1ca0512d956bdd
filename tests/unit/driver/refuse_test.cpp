#include <gtest/gtest.h>

#include "driver/refuse.hpp"
#include "trireme/base/error.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::driver {
namespace {

TEST(Refuse, NamesEveryKeyAtOnce) {
  config::Options options;
  EXPECT_NO_THROW(refuse_unbuilt(options, config::Command::ppo));
  options.train.optimizer_offload = true;
  options.train.async_depth = 1;
  options.algo.dynamic_filtering_enable = true;
  options.fault.kill_at = "0:1";
  options.run.mismatch_check = 8;
  try {
    refuse_unbuilt(options, config::Command::ppo);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::configuration);
    const std::string text = error.what();
    for (const char* key : {"train.optimizer_offload", "train.async_depth", "[fault]", "run.mismatch_check"}) {
      EXPECT_NE(text.find(key), std::string::npos) << key;
    }
  }
}

// Each key alone, by its name.
TEST(Refuse, EveryKeyAlone) {
  using config::Options;
  const std::vector<std::pair<std::string, void (*)(Options&)>> keys{
      {"train.optimizer_offload", [](Options& o) { o.train.optimizer_offload = true; }},
      {"train.reduce_dtype", [](Options& o) { o.train.reduce_dtype = config::DType::bf16; }},
      {"run.mismatch_check", [](Options& o) { o.run.mismatch_check += 1; }},
      {"[fault]", [](Options& o) { o.fault.kill_at = "0:1"; }},
      {"[fault]", [](Options& o) { o.fault.hang_at = "0:1"; }},
      {"[fault]", [](Options& o) { o.fault.segv_at = "0:1"; }},
      {"[fault]", [](Options& o) { o.fault.exit_at = "0:1"; }},
      {"[fault]", [](Options& o) { o.fault.nan_at = "0:1"; }},
      {"[fault]", [](Options& o) { o.fault.flip_at = "0:1"; }},
      {"[fault]", [](Options& o) { o.fault.skip_collective_at = "0:1"; }},
      {"[fault]", [](Options& o) { o.fault.delay = "0:1"; }},
      {"[fault]", [](Options& o) { o.fault.alloc_fail_at = "0:1"; }},
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
  EXPECT_NO_THROW(refuse_unbuilt(options, config::Command::ppo));
  options.algo.dynamic_filtering_enable = true;
  EXPECT_THROW(refuse_unbuilt(options, config::Command::ppo), UserError);
  EXPECT_NO_THROW(refuse_unbuilt(options, config::Command::sft)) << "these keys mean nothing there";
}

}  // namespace
}  // namespace trireme::driver
