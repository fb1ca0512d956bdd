#include "trireme/kernels/parallel.hpp"

#include <ATen/Parallel.h>

#ifndef INTRA_OP_PARALLEL
#error "at::parallel_for would run on one thread: compile with OpenMP (-fopenmp), as LibTorch was"
#endif

namespace trireme::kernels {

void parallel_for(int64_t begin, int64_t end, int64_t grain,
                  const std::function<void(int64_t first, int64_t last)>& body) {
  at::parallel_for(begin, end, grain, body);
}

}  // namespace trireme::kernels
