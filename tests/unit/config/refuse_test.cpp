#include <gtest/gtest.h>

#include <cstdlib>

#include "trireme/config/refuse.hpp"
#include "trireme/base/error.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::config {
namespace {

struct CrashAt {
  CrashAt() { setenv("TRIREME_CRASH_AT", "checkpoint.commit", 1); }
  CrashAt(const CrashAt&) = delete;
  ~CrashAt() { unsetenv("TRIREME_CRASH_AT"); }
};

TEST(Refuse, NamesEveryKeyAtOnce) {
  const CrashAt variable;
  Options options;
  EXPECT_NO_THROW(refuse_unbuilt(options, Command::ppo));
  options.run.production = true;
  options.train.async_depth = 1;
  options.algo.dynamic_filtering_enable = true;
  try {
    refuse_unbuilt(options, Command::ppo);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::configuration);
    const std::string text = error.what();
    for (const char* key : {"run.production", "train.async_depth"}) {
      EXPECT_NE(text.find(key), std::string::npos) << key;
    }
  }
}

TEST(Refuse, ProductionWithAFaultFromTheEnvironment) {
  Options options;
  options.run.production = true;
  for (const auto command : {Command::ppo, Command::sft, Command::rm, Command::dpo}) {
    EXPECT_NO_THROW(refuse_unbuilt(options, command));
    const CrashAt variable;
    const std::string text = error_of(ExitCode::configuration, [&] { refuse_unbuilt(options, command); });
    EXPECT_NE(text.find("TRIREME_CRASH_AT"), std::string::npos) << text;
  }
}

TEST(Refuse, WhatWorksIsNotRefused) {
  Options options;
  options.train.async_depth = 1;
  options.train.partial_rollout_enable = true;
  options.train.reduce_dtype = DType::bf16;
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
