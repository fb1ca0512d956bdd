// The clock of the CUDA device that is current (trace/device_clock.hpp).
#pragma once

#include <memory>

#include "trireme/trace/device_clock.hpp"

namespace trireme::comm {

// Of the work on `stream` (null: the legacy default stream, where LibTorch computes), which is
// waited for once, here. Null in programs that do not link the CUDA part. Throws UserError where
// the device refuses.
std::unique_ptr<trace::DeviceClock> make_device_clock(void* stream);

}  // namespace trireme::comm
