// Marks functions that kernels call: plain C++ for the host, both sides under a GPU compiler.
#pragma once

#if defined(__CUDACC__) || defined(__HIPCC__)
#define TRIREME_KERNEL __host__ __device__
#else
#define TRIREME_KERNEL
#endif
