// Where the models of a run start from, as the deck says it.
#pragma once

#include <string>

#include "trireme/config/options.hpp"

namespace trireme::config {

// model.path, else model.shape.
const std::string& trained_folder(const Options& options);

}  // namespace trireme::config
