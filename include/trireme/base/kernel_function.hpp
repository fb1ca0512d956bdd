// Marks functions that kernels call: plain C++ for the host, both sides under a GPU compiler.
// TRIREME_UNROLL: before loops over arrays that are to live in a GPU's registers, which have no
// addresses. prefetch(): code that a GPU runs soon.
#pragma once

#if defined(__CUDACC__) || defined(__HIPCC__)
#define TRIREME_KERNEL __host__ __device__
#define TRIREME_UNROLL _Pragma("unroll")
#else
#define TRIREME_KERNEL
#define TRIREME_UNROLL
#endif

namespace trireme::base {

inline constexpr int cache_line = 128;  // bytes, of NVIDIA's GPUs

// Says that what lies there will be read soon. Changes nothing but time.
template <class T>
TRIREME_KERNEL inline void prefetch([[maybe_unused]] const T* address) {
#if defined(__CUDA_ARCH__) && \
    defined(__NVCC__)  // nvcc alone: tests compile kernels for the host, too
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
#endif
}

}  // namespace trireme::base
