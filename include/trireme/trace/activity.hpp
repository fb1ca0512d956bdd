// A sign of life for watchdogs.
#pragma once

#include <cstdint>

namespace trireme::trace {

// Regions that the main thread has ended so far; callable from any thread. Stands still while the main thread is stuck.
uint64_t activity();

}  // namespace trireme::trace
