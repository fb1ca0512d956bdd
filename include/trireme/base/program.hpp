// Which program this process runs.
#pragma once

#include <string>

namespace trireme::base {

// The linker's digest of the executable (GNU build ID), in hexadecimal; empty where it was linked
// without one.
std::string build_id();

}  // namespace trireme::base
