// Combinations that each key allows by itself and no run can start with: refused by name before
// anything starts.
#pragma once

#include "trireme/config/options.hpp"

namespace trireme::config {

// A crash asked for by the environment (TRIREME_CRASH_AT): throws UserError(configuration) where
// run.production is true.
void refuse_crash_in_production(const Options& options);

}  // namespace trireme::config
