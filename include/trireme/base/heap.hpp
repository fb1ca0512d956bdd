// The memory of this process. Freed memory stays with it: tensors of the same sizes come back in
// every step, and returning and re-faulting their pages costs several per cent of it. Large tensors
// have blocks of their own (kernels::use_block_cache), all else is the heap's. But sizes vary with
// the lengths of texts, and gaps that fit nothing add up over a run; so what is free is given back
// where the process comes near what was planned for it.
#pragma once

#include <cstdint>

#include "trireme/base/block_cache.hpp"

namespace trireme::base {

// The blocks of large tensors.
BlockCache& tensor_blocks();

// Once, before threads start. Of other large blocks, from 4 MiB on, nothing is kept.
void keep_freed_memory();

// Products of bf16 that are kept compiled.
inline constexpr int cached_products = 64;

// Once, before the libraries multiply: LibTorch and oneDNN keep what they compile for a product of
// bf16 in caches by its shape, of 1024 entries each, and lengths make new shapes in every pass: 100
// MiB and more over a run. Here they keep what a few passes need. Variables that the user has set
// stay.
void bound_product_caches();

// The resident set that this process should not exceed; 0: none.
void set_resident_goal(int64_t bytes);

// Gives back what is free where the resident set is within a fiftieth of the goal.
// Microseconds where it is not. To be called between passes, when little is live; any thread. Says
// whether it gave back.
bool return_freed_memory_near_goal();

}  // namespace trireme::base
