// Times on a device. The host only gives it work and goes on, so what a region takes there says
// little of the device: phases of the main thread therefore also mark the device's work where they
// begin and end. The marks give a lane "GPU" in trace.json, a column of the end table and the
// seconds below.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace trireme::trace {

class DeviceClock {
 public:
  virtual ~DeviceClock() = default;
  // Marks the end of the work that the device was given so far, and waits for nothing. False: that
  // failed, and this clock is not asked again.
  virtual bool stamp() noexcept = 0;
  // When the device came to its marks, on the clock of base::monotonic_seconds(): of those that it
  // came to since the last call, in their order.
  virtual std::vector<double> passed() noexcept = 0;
};

// Of this process, from now on; null: none. By the main thread, outside of phases.
void set_device_clock(std::unique_ptr<DeviceClock> clock);

// Seconds from where the device came to the begin of a phase to where it came to its end, by the
// phase's name, since the main thread's last reset_phases(). A phase that the device has not ended
// yet counts later. By the main thread.
std::map<std::string, double> device_phase_seconds();

}  // namespace trireme::trace
