// Where a program of perf/ computes: on the host, or, linked with another source, on a GPU or on
// the fake one (tests/fakegpu/perf_site.cpp).
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::perf {

struct Site {
  at::Device device = at::kCPU;
  bool is_gpu = false;  // or the fake one, whose tensors are the CPU's to LibTorch
};

// Makes the device current for this process. Once, after the command line and before the first
// tensor; `local_rank` counts the ranks of this node. Throws UserError(unfit_environment) where
// there is none.
Site enter_site(int local_rank);
// Returns when all work that was given to the device is done.
void wait_for(const Site& site);

}  // namespace trireme::perf
