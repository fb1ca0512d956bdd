// Kernels of the fake GPU: what the compiler for GPUs adds to C++ (cuda_language.hpp), on
// fibers. A block's threads are fibers of one thread of the host. Which of them goes on is drawn, a
// warp may run far ahead of the others, and blocks come in any order; a thread goes on until it
// comes to a barrier or a shuffle. One kernel runs at a time, whatever its stream, so that a
// block's shared memory is a static variable; what an earlier block left there is still in it.
//
// Findings (take_findings(), with the kernel's parameter types): barriers that not all threads come
// to, or in two places of the source at once; shuffles for which lanes are missing or that ask a
// lane that is not there.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <source_location>
#include <tuple>
#include <typeinfo>

namespace trireme::fakegpu {

// How blocks run from now on.
struct BlockOrder {
  unsigned seed = 1;
  std::optional<int> left_out =
      std::nullopt;  // each thread passes its barrier of this number, from 0, without waiting
};
void set_block_order(const BlockOrder& order);
int most_barriers();  // that one thread came to, since set_block_order()

// Of the thread that runs.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

void wait_for_block(const std::source_location& at);
// What the lane `by` further up in the warp gives; the own value where there is none.
uint64_t from_lane_above(unsigned lanes, uint64_t value, unsigned by,
                         const std::source_location& at);

// Puts `thread`, run by each of the threads, into the stream. Refuses what CUDA refuses, and what
// no kernel of ours asks for.
cudaError_t launch_blocks(const cudaLaunchConfig_t& config, const std::type_info& kernel,
                          std::function<void()> thread);

template <class... Parameters, class... Arguments>
cudaError_t launch_kernel(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                          Arguments&&... arguments) {
  return launch_blocks(
      *config, typeid(kernel),
      [kernel, copies = std::tuple<Parameters...>(std::forward<Arguments>(arguments)...)] {
        std::apply(kernel, copies);
      });
}

}  // namespace trireme::fakegpu
