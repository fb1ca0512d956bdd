// Signs of life of loops that last: a watchdog takes a process whose count stands still for one that hangs.
#pragma once

#include <cstdint>

namespace trireme::base {

// One more piece of work is done: a row read, a tensor loaded, a transfer ended, a look at something that has a deadline of its own. Costs one
// atomic addition; any thread.
void tick() noexcept;
uint64_t ticks_so_far() noexcept;

}  // namespace trireme::base
