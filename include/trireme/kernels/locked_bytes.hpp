// Page-locked memory, from which and to which a device copies while the host goes on.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::kernels {

// Host memory, u8 [bytes], that nobody wrote; LibTorch's, which rounds up to a power of two, and
// gives a piece out again only when the copies from it are over.
at::Tensor locked_bytes(int64_t bytes);
// For tests where there is no GPU, beside set_device_type(): who gives such memory; null: LibTorch.
void set_locked_bytes(at::Tensor (*give)(int64_t bytes));

}  // namespace trireme::kernels
