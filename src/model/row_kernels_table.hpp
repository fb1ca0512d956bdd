// One set of row kernels (include/trireme/model/row_kernels.hpp) per instruction set.
#pragma once

#include <cstdint>

#include "trireme/model/row_kernels.hpp"

namespace trireme::model {

template <class T>
struct RowKernels {
  void (*rms_norm)(const NormRows<T>&, float, T*, float*);
  void (*rms_norm_backward)(const NormRows<T>&, const float*, const T*, T*, float*);
  void (*swiglu)(const GatedElements<T>&, T*);
  void (*swiglu_backward)(const GatedElements<T>&, const T*, T*, T*);
  void (*rope)(const T*, T*, const HeadRows&, const RotaryAngles&, float);
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
