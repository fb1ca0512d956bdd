// What products in bf16 keep on CPUs: code that the libraries make for each shape
// (base::bound_product_caches), or operands in fp32 where the CPU has no such products.
#pragma once

#include <cstdint>

#include "trireme/plan/job.hpp"

namespace trireme::plan {

// Bytes on a rank at the end of the run, by its number of iterations: until the caches are full,
// each pass has another number of tokens and adds its products; so has each step of a generator or
// a judge with generate.backend = "torch". 0 where no product goes through them.
int64_t product_code_bytes(const Job& job);

// Operands that the library keeps packed in fp32: by the largest matrix. 0 in bf16.
int64_t packed_operand_bytes(const Job& job);

// The threads' buffers for blocks of operands and results in fp32 (kernels/products.cpp). 0 where
// the CPU multiplies bf16 natively.
int64_t widened_block_bytes(const Job& job);

}  // namespace trireme::plan
