#include <gtest/gtest.h>

#include <cstdlib>

#include "trireme/base/error.hpp"
#include "trireme/config/refuse.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::config {
namespace {

struct CrashAt {
  CrashAt() { setenv("TRIREME_CRASH_AT", "checkpoint.commit", 1); }
  CrashAt(const CrashAt&) = delete;
  ~CrashAt() { unsetenv("TRIREME_CRASH_AT"); }
};

TEST(Refuse, ACrashFromTheEnvironmentInProduction) {
  const CrashAt variable;
  Options options;
  EXPECT_NO_THROW(refuse_crash_in_production(options));
  options.run.production = true;
  const std::string text =
      error_of(ExitCode::configuration, [&] { refuse_crash_in_production(options); });
  EXPECT_NE(text.find("TRIREME_CRASH_AT"), std::string::npos) << text;
}

TEST(Refuse, ProductionGoesOnWithoutAFaultFromTheEnvironment) {
  Options options;
  options.run.production = true;
  EXPECT_NO_THROW(refuse_crash_in_production(options));
}

TEST(Refuse, WhatWorksIsNotRefused) {
  Options options;
  options.train.async_depth = 1;
  options.train.partial_rollout_enable = true;
  options.train.reduce_dtype = DType::bf16;
  options.algo.dynamic_filtering_enable = true;
  options.generate.tensor_parallel = 2;
  options.fault.crash_at = "checkpoint.commit";
  options.fault.at = {"kill:0:train:1"};
  EXPECT_NO_THROW(refuse_crash_in_production(options));
}

}  // namespace
}  // namespace trireme::config
