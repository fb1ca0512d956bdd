#include "trireme/comm/device_bytes.hpp"

#include <algorithm>
#include <mutex>

namespace trireme::comm {
namespace {

struct Counted {
  std::mutex mutex;
  DeviceBytes bytes;
};
Counted& counted() {
  static auto* counted = new Counted;  // buffers may be freed after main
  return *counted;
}

}  // namespace

DeviceBytes device_bytes() {
  const std::lock_guard lock(counted().mutex);
  return counted().bytes;
}

void count_device_bytes(int64_t more) {
  const std::lock_guard lock(counted().mutex);
  DeviceBytes& bytes = counted().bytes;
  bytes.held += more;
  bytes.peak = std::max(bytes.peak, bytes.held);
}

}  // namespace trireme::comm
