// Marks the call operator of a kernel functor: plain C++ for the host, both sides under nvcc.
#pragma once

#if defined(__CUDACC__)
#define TRIREME_KERNEL __host__ __device__
#else
#define TRIREME_KERNEL
#endif
