// Marks functions that kernels call: plain C++ for the host, both sides under a GPU compiler. TRIREME_UNROLL: before loops over arrays that are to live
// in a GPU's registers, which have no addresses.
#pragma once

#if defined(__CUDACC__) || defined(__HIPCC__)
#define TRIREME_KERNEL __host__ __device__
#define TRIREME_UNROLL _Pragma("unroll")
#else
#define TRIREME_KERNEL
#define TRIREME_UNROLL
#endif
