// Kernels of our own on a GPU: the counterparts of the row kernels (model/row_kernels.hpp) and
// adamw() do on hosts. Pointers to the device's memory; work goes to its default stream, unless
// use_stream() said otherwise, and is not waited for.
#pragma once

#include <cstdint>

#include "trireme/kernels/adamw.hpp"
#include "trireme/kernels/cache_rows.hpp"
#include "trireme/kernels/draw.hpp"
#include "trireme/kernels/head_rows.hpp"
#include "trireme/kernels/paged_attention.hpp"

namespace trireme::kernels {

// T: float, or uint16_t for bf16 as its bits. Shapes and formulas as of the row kernels of the same
// names.
template <class T>
struct DeviceRows {
  void (*rms_norm)(const T* x, const T* weight, T* y, float* inverse_rms, int64_t rows,
                   int64_t columns, float epsilon);
  // dweight [ceil(rows / chunk_rows), columns], zeroed: one partial sum per chunk of rows.
  void (*rms_norm_backward)(const T* x, const T* weight, const T* dy, const float* inverse_rms,
                            T* dx, float* dweight, int64_t rows, int64_t columns,
                            int64_t chunk_rows);
  // sum = x + added, rounded; y = rms_norm(sum).
  void (*add_rms_norm)(const T* x, const T* added, const T* weight, T* sum, T* y, int64_t rows,
                       int64_t columns, float epsilon);
  // Rows of gate and up lie `stride` elements apart, each of them dense; those of y one behind the
  // other.
  void (*swiglu)(const T* gate, const T* up, T* y, int64_t rows, int64_t columns, int64_t stride);
  void (*swiglu_backward)(const T* gate, const T* up, const T* dy, T* dgate, T* dup, int64_t count);
  void (*rope)(const T* x, const int64_t* positions, const float* cos, const float* sin, T* y,
               int64_t tokens, int64_t heads, int64_t head_dim, float direction);
  void (*keep_rows)(const CacheRows<T>& rows);
};

struct DeviceKernels {
  const char* name;  // how they are launched, for the log
  DeviceRows<float> f32;
  DeviceRows<uint16_t> bf16;
  // As adamw() on the host, the compute pointer included; `changed` [adamw_teams(elements)] gets
  // counts of compute values that changed.
  void (*adamw)(const AdamWShard& shard, const AdamWStep& step, int32_t* changed);
  int64_t (*adamw_teams)(int64_t elements);
  HeadKernels head;
  DrawKernels draws;
  void (*attend_pages)(const PagedAttention& attention);
  // Kernels that the calling thread starts from now on go to this cudaStream_t; null: the default
  // stream. A null function where Kokkos starts them.
  void (*use_stream)(void* stream);
};

// Those of this program, null in its CPU variant, or where they were put aside: then LibTorch's
// operators do the work.
const DeviceKernels* device_kernels();
void set_device_kernels(const DeviceKernels* kernels);

// Sets those of the GPU variant; in a library of its own.
void enable_device_kernels();

}  // namespace trireme::kernels
