// One set of row kernels (include/trireme/model/row_kernels.hpp) per instruction set.
#pragma once

#include <cstdint>

#include "trireme/model/row_kernels.hpp"

namespace trireme::model {

template <class T>
struct RowKernels {
  void (*rms_norm)(const T*, const T*, T*, float*, int64_t, int64_t, float, NormKind);
  void (*rms_norm_backward)(const T*, const T*, const T*, const float*, T*, float*, int64_t,
                            int64_t, NormKind);
  void (*swiglu)(const T*, const T*, T*, int64_t, GateKind);
  void (*swiglu_backward)(const T*, const T*, const T*, T*, T*, int64_t, GateKind);
  void (*rope)(const T*, const int64_t*, const float*, const float*, T*, int64_t, int64_t, int64_t,
               float, RotaryPairs);
  void (*xielu)(const T*, T*, int64_t, const Xielu&);
  void (*xielu_backward)(const T*, const T*, T*, float*, int64_t, const Xielu&);
};

struct RowKernelTable {
  const char* target;
  RowKernels<float> f32;
  RowKernels<uint16_t> bf16;
};

extern const RowKernelTable row_kernels_portable;
#if defined(__x86_64__)
extern const RowKernelTable row_kernels_avx2;
extern const RowKernelTable row_kernels_avx512;
#endif

}  // namespace trireme::model
