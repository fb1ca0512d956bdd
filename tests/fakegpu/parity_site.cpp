// The golden cases by the paths of a GPU, each rank with a fake one of its own.
#include "parity/site.hpp"

#include "fakegpu/device_lane.hpp"
#include "fakegpu/host_as_device.hpp"
#include "support/world.hpp"

namespace trireme::test {

const Site& site() {
  static const Site device{
      .device = true, .enter = []() -> std::shared_ptr<void> {
        own_device();
        fakegpu::set_delays(
            {.seed = static_cast<unsigned>(5 + world().rank()), .legacy_us = 5, .others_us = 5});
        return std::make_shared<HostAsDevice>();
      }};
  return device;
}

}  // namespace trireme::test
