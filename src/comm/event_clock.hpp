// A device's clock by CUDA events. Private to trireme_comm_cuda.
#pragma once

#include <memory>

#include "comm/cuda_support.hpp"
#include "trireme/trace/device_clock.hpp"

namespace trireme::comm {

// What make_device_clock() gives.
std::unique_ptr<trace::DeviceClock> make_event_clock(void* stream);

}  // namespace trireme::comm
