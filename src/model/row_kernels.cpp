#include "trireme/model/row_kernels.hpp"

#include "row_kernels_table.hpp"
#include "trireme/base/isa.hpp"

namespace trireme::model {
namespace {

const RowKernelTable& table() {
#if defined(__x86_64__)
  if (base::active_isa() >= base::Isa::avx512) return row_kernels_avx512;
  if (base::active_isa() >= base::Isa::avx2) return row_kernels_avx2;
#endif
  return row_kernels_portable;
}

}  // namespace

const char* row_kernels_target() { return table().target; }

void rms_norm_rows(const NormRows<float>& in, float epsilon, float* y, float* inverse_rms) {
  table().f32.rms_norm(in, epsilon, y, inverse_rms);
}
void rms_norm_backward_rows(const NormRows<float>& in, const float* inverse_rms, const float* dy,
                            float* dx, float* dweight) {
  table().f32.rms_norm_backward(in, inverse_rms, dy, dx, dweight);
}
void swiglu(const GatedElements<float>& in, float* y) { table().f32.swiglu(in, y); }
void swiglu_backward(const GatedElements<float>& in, const float* dy, float* dgate, float* dup) {
  table().f32.swiglu_backward(in, dy, dgate, dup);
}
void xielu(const float* x, float* y, int64_t count, const Xielu& numbers) {
  table().f32.xielu(x, y, count, numbers);
}
void xielu_backward(const float* x, const float* dy, float* dx, float* slopes, int64_t count,
                    const Xielu& numbers) {
  table().f32.xielu_backward(x, dy, dx, slopes, count, numbers);
}
void rope_rows(const float* x, float* y, const HeadRows& shape, const RotaryAngles& angles,
               float direction) {
  table().f32.rope(x, y, shape, angles, direction);
}

void rms_norm_rows(const NormRows<uint16_t>& in, float epsilon, uint16_t* y, float* inverse_rms) {
  table().bf16.rms_norm(in, epsilon, y, inverse_rms);
}
void rms_norm_backward_rows(const NormRows<uint16_t>& in, const float* inverse_rms,
                            const uint16_t* dy, uint16_t* dx, float* dweight) {
  table().bf16.rms_norm_backward(in, inverse_rms, dy, dx, dweight);
}
void swiglu(const GatedElements<uint16_t>& in, uint16_t* y) { table().bf16.swiglu(in, y); }
void swiglu_backward(const GatedElements<uint16_t>& in, const uint16_t* dy, uint16_t* dgate,
                     uint16_t* dup) {
  table().bf16.swiglu_backward(in, dy, dgate, dup);
}
void xielu(const uint16_t* x, uint16_t* y, int64_t count, const Xielu& numbers) {
  table().bf16.xielu(x, y, count, numbers);
}
void xielu_backward(const uint16_t* x, const uint16_t* dy, uint16_t* dx, float* slopes,
                    int64_t count, const Xielu& numbers) {
  table().bf16.xielu_backward(x, dy, dx, slopes, count, numbers);
}
void rope_rows(const uint16_t* x, uint16_t* y, const HeadRows& shape, const RotaryAngles& angles,
               float direction) {
  table().bf16.rope(x, y, shape, angles, direction);
}

}  // namespace trireme::model
