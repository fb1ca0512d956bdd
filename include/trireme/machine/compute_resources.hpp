// What a role of this rank computes with.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/machine/threads.hpp"

namespace trireme::machine {

struct ComputeResources {
  at::Device device;
  Threads threads = {};
};

}  // namespace trireme::machine
