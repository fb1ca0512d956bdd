#include "trireme/config/refuse.hpp"

#include <cstdlib>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"

namespace trireme::config {

void refuse_unbuilt(const Options& options, Command command) {
  std::vector<std::string> reasons;
  const auto refuse = [&reasons](bool when, const char* what) {
    if (when) reasons.emplace_back(what);
  };
  refuse(command == Command::ppo && options.train.async_depth > 0 && options.algo.dynamic_filtering_enable,
         "train.async_depth >= 1 with algo.dynamic_filtering_enable: filtering needs the rewards before the next rollout begins");
  refuse(options.run.production && std::getenv("TRIREME_CRASH_AT") != nullptr,
         "the variable TRIREME_CRASH_AT is set while run.production is true: it is for tests");
  if (reasons.empty()) return;
  throw UserError(ExitCode::configuration, base::join(reasons, "\n"));
}

}  // namespace trireme::config
