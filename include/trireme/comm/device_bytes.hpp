// Device memory that the exchanges of this process take beside LibTorch's allocator: weight slices,
// rings, gradient slots, received gradients.
#pragma once

#include <cstdint>

namespace trireme::comm {

struct DeviceBytes {
  int64_t held = 0;
  int64_t peak = 0;  // the most that was held at a time
};
DeviceBytes device_bytes();
// By whoever allocates, and with a minus by whoever frees. From any thread.
void count_device_bytes(int64_t more);

}  // namespace trireme::comm
