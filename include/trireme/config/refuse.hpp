// Settings that have a fixed meaning but cannot be served by this build: refused by name before anything starts.
#pragma once

#include "trireme/config/options.hpp"

namespace trireme::config {

// Throws UserError(configuration) with every such setting at once.
void refuse_unbuilt(const Options& options);

}  // namespace trireme::config
