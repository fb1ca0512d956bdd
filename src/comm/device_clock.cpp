#include "trireme/comm/device_clock.hpp"

#include "comm/shard_exchange_parts.hpp"

namespace trireme::comm {

std::unique_ptr<trace::DeviceClock> make_device_clock(void* stream) {
  const auto make = device_support().make_clock;
  return make == nullptr ? nullptr : make(stream);
}

}  // namespace trireme::comm
