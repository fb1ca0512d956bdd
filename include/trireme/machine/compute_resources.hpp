// The device and the threads of a role on this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/machine/threads.hpp"

namespace trireme::machine {

struct ComputeResources {
  at::Device device;
  Threads threads = {};
};

}  // namespace trireme::machine
