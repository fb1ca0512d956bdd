#include "trireme/comm/device_messages.hpp"

#include <algorithm>

#include "comm/shard_exchange_parts.hpp"
#include "trireme/base/error.hpp"

namespace trireme::comm {

bool devices_take_messages(const CommView& comm, std::span<const int> ranks) {
  if (device_support().takes_messages == nullptr) return false;
  const Comm part = Comm::subset(comm, ranks, "who exchanges messages between devices");
  const bool among = std::ranges::find(ranks, comm.rank()) != ranks.end();
  return comm.all(!among || device_support().takes_messages(part));
}

std::unique_ptr<DeviceMessages> make_device_messages(const CommView& comm) {
  VALIDATE(
      device_support().make_messages != nullptr, ExitCode::unfit_environment,
      "messages between GPUs were asked for, but this program has no CUDA: use trireme-gpu, or "
      "run.device = \"cpu\"");
  return device_support().make_messages(comm);
}

}  // namespace trireme::comm
