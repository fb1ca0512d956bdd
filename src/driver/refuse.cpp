#include "driver/refuse.hpp"

#include <cstdlib>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"

namespace trireme::driver {

void refuse_unbuilt(const config::Options& options, config::Command command) {
  std::vector<std::string> reasons;
  const auto refuse = [&reasons](bool when, const char* what) {
    if (when) reasons.emplace_back(what);
  };
  refuse(options.train.reduce_dtype != config::DType::fp32, "train.reduce_dtype = \"bf16\": gradients are reduced in fp32 only");
  refuse(command == config::Command::ppo && options.train.async_depth > 0 && options.algo.dynamic_filtering_enable,
         "train.async_depth = 1 with algo.dynamic_filtering_enable: filtering needs the rewards before the next rollout begins");
  const config::RunOptions untouched;
  refuse(options.run.mismatch_check != untouched.mismatch_check, "run.mismatch_check: this version does not check collectives for mismatches");
  refuse(options.run.production && std::getenv("TRIREME_CRASH_AT") != nullptr,
         "the variable TRIREME_CRASH_AT is set while run.production is true: it is for tests");
  if (reasons.empty()) return;
  throw UserError(ExitCode::configuration, base::join(reasons, "\n"));
}

}  // namespace trireme::driver
