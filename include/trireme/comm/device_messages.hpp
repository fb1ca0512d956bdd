// Messages from the memory of one rank's device to that of another, in rounds: all sends and
// receives of a round go on at a time, so that none waits for another one. By NCCL, on a
// communicator of their own; the host's memory sees none of them. A round begins behind all work of
// the device's default stream so far (its copies, device_copies.hpp), and what is enqueued there
// later need not wait for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "trireme/comm/comm.hpp"

namespace trireme::comm {

struct DeviceMessage {
  int peer = 0;  // rank of the communicator, another one
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

class DeviceMessages {
 public:
  virtual ~DeviceMessages() = default;  // collective

  // Memory of the device for what is packed; it is this object's, and the same while no more is
  // asked for. What it holds is lost where it grows.
  virtual std::byte* reserve(int64_t bytes) = 0;
  // Two ranks list what goes from one to the other in the same order and with the same lengths.
  // The memory is used until the round's end. The host waits for nothing on the device.
  virtual void begin(std::span<const DeviceMessage> sends,
                     std::span<const DeviceMessage> receives) = 0;
  // The default stream's work from here on waits for the end of the first round that was begun and
  // not ended yet; two of them at most.
  virtual void end() = 0;
};

// Whether each of these ranks of `comm` has a device that NCCL takes: not where several share one,
// nor in a program without CUDA. Collective over `comm`, whose ranks all have a device.
bool devices_take_messages(const CommView& comm, std::span<const int> ranks);
// Uses the current device. Collective over `comm`, which must outlive it.
std::unique_ptr<DeviceMessages> make_device_messages(const CommView& comm);

}  // namespace trireme::comm
