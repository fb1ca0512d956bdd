// The GPU of a test rank. A program with these tests leaves with 125 (skipped) and a reason where
// no GPU is visible.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "trireme/model/forward.hpp"

namespace trireme::test {

// Ranks take the GPUs of the machine in turn; with fewer GPUs than ranks they share, and the
// exchange goes through the host, unless each has its own NCCL_HOSTID (tests/gpu/run.sh).
at::Device gpu();
bool ranks_share_a_gpu();
int64_t free_gpu_bytes();

// The same batch with its tensors on the device.
model::PackedBatch to_device(const model::PackedBatch& batch, at::Device device);

}  // namespace trireme::test
