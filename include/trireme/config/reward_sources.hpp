// Names of a deck's reward sources: they are parts of file names and of metrics.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "trireme/config/options.hpp"

namespace trireme::config {

// Of source `index`: its own, else kind and index.
std::string source_name(const RewardSource& source, size_t index);
// The name of what [environment] gives, which is one more source.
inline constexpr std::string_view environment_source = "environment";
// Why this cannot be a source's name; empty where it can.
std::string source_name_problem(std::string_view name);

}  // namespace trireme::config
