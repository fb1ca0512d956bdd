// Clocks of different ranks.
#pragma once

#include "trireme/comm/comm.hpp"

namespace trireme::comm {

// Seconds to add to this rank's monotonic clock to read rank 0's; the best of several round trips.
// Collective.
double measure_clock_offset(const CommView& world);

}  // namespace trireme::comm
