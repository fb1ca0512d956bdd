// What each key allows by itself and a run must not start with: refused by name before anything starts.
#pragma once

#include "trireme/config/options.hpp"

namespace trireme::config {

// Throws UserError(configuration): so far a crash asked for by the environment (TRIREME_CRASH_AT) in production.
void refuse_unbuilt(const Options& options);

}  // namespace trireme::config
