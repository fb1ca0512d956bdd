// A sign of life for watchdogs.
#pragma once

#include <cstdint>

namespace trireme::trace {

// Regions that the main thread has ended so far, and its notes; callable from any thread. Stands still while the main thread is stuck.
uint64_t activity();
// A wait that has a deadline of its own, counted as one more when the main thread calls it.
void note_activity();

}  // namespace trireme::trace
