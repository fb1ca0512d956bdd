#include "trireme/config/refuse.hpp"

#include <cstdlib>

#include "trireme/base/error.hpp"

namespace trireme::config {

void refuse_crash_in_production(const Options& options) {
  VALIDATE(!options.run.production || std::getenv("TRIREME_CRASH_AT") == nullptr,
           ExitCode::configuration,
           "the variable TRIREME_CRASH_AT is set while run.production is true: it is for tests");
}

}  // namespace trireme::config
