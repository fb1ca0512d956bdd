// Code of bf16 products that the libraries keep for each shape (base::bound_product_caches).
#pragma once

#include <cstdint>

#include "trireme/plan/job.hpp"

namespace trireme::plan {

// Bytes on a rank at the end of the run, by its number of iterations: until the caches are full,
// each pass has another number of tokens and adds its products. 0 where no product of a pass goes
// through them.
int64_t product_code_bytes(const Job& job);

}  // namespace trireme::plan
