// Where LibTorch's tensors on the host lie.
#pragma once

namespace trireme::kernels {

// Large ones in base::tensor_blocks(), small ones in the heap as before. Once, before the first
// tensor.
void use_block_cache();

}  // namespace trireme::kernels
