// Loops on LibTorch's threads. at::parallel_for is a header: in a file that is compiled without
// OpenMP it is a plain loop on one thread, without a word. This is the one file of ours that is
// compiled with it; the style test keeps at::parallel_for out of the others.
#pragma once

#include <cstdint>
#include <functional>

namespace trireme::kernels {

// Runs body(first, last) over pieces of [begin, end) of at least `grain` each, one piece a thread
// at most, in parts that depend on the number of threads; returns when all are done.
// at::get_thread_num() tells the threads apart inside. Nested calls run on one thread. The first
// exception is thrown again.
void parallel_for(int64_t begin, int64_t end, int64_t grain,
                  const std::function<void(int64_t first, int64_t last)>& body);

}  // namespace trireme::kernels
