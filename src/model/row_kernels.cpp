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

void rms_norm_rows(const float* x, const float* weight, float* y, float* inverse_rms, int64_t rows,
                   int64_t columns, float epsilon, NormKind kind) {
  table().f32.rms_norm(x, weight, y, inverse_rms, rows, columns, epsilon, kind);
}
void rms_norm_backward_rows(const float* x, const float* weight, const float* dy,
                            const float* inverse_rms, float* dx, float* dweight, int64_t rows,
                            int64_t columns, NormKind kind) {
  table().f32.rms_norm_backward(x, weight, dy, inverse_rms, dx, dweight, rows, columns, kind);
}
void swiglu(const float* gate, const float* up, float* y, int64_t count, GateKind kind) {
  table().f32.swiglu(gate, up, y, count, kind);
}
void swiglu_backward(const float* gate, const float* up, const float* dy, float* dgate, float* dup,
                     int64_t count, GateKind kind) {
  table().f32.swiglu_backward(gate, up, dy, dgate, dup, count, kind);
}
void xielu(const float* x, float* y, int64_t count, const Xielu& numbers) {
  table().f32.xielu(x, y, count, numbers);
}
void xielu_backward(const float* x, const float* dy, float* dx, float* slopes, int64_t count,
                    const Xielu& numbers) {
  table().f32.xielu_backward(x, dy, dx, slopes, count, numbers);
}
void rope_rows(const float* x, const int64_t* positions, const float* cos, const float* sin,
               float* y, int64_t tokens, int64_t heads, int64_t head_dim, float direction,
               RotaryPairs pairs) {
  table().f32.rope(x, positions, cos, sin, y, tokens, heads, head_dim, direction, pairs);
}

void rms_norm_rows(const uint16_t* x, const uint16_t* weight, uint16_t* y, float* inverse_rms,
                   int64_t rows, int64_t columns, float epsilon, NormKind kind) {
  table().bf16.rms_norm(x, weight, y, inverse_rms, rows, columns, epsilon, kind);
}
void rms_norm_backward_rows(const uint16_t* x, const uint16_t* weight, const uint16_t* dy,
                            const float* inverse_rms, uint16_t* dx, float* dweight, int64_t rows,
                            int64_t columns, NormKind kind) {
  table().bf16.rms_norm_backward(x, weight, dy, inverse_rms, dx, dweight, rows, columns, kind);
}
void swiglu(const uint16_t* gate, const uint16_t* up, uint16_t* y, int64_t count, GateKind kind) {
  table().bf16.swiglu(gate, up, y, count, kind);
}
void swiglu_backward(const uint16_t* gate, const uint16_t* up, const uint16_t* dy, uint16_t* dgate,
                     uint16_t* dup, int64_t count, GateKind kind) {
  table().bf16.swiglu_backward(gate, up, dy, dgate, dup, count, kind);
}
void xielu(const uint16_t* x, uint16_t* y, int64_t count, const Xielu& numbers) {
  table().bf16.xielu(x, y, count, numbers);
}
void xielu_backward(const uint16_t* x, const uint16_t* dy, uint16_t* dx, float* slopes,
                    int64_t count, const Xielu& numbers) {
  table().bf16.xielu_backward(x, dy, dx, slopes, count, numbers);
}
void rope_rows(const uint16_t* x, const int64_t* positions, const float* cos, const float* sin,
               uint16_t* y, int64_t tokens, int64_t heads, int64_t head_dim, float direction,
               RotaryPairs pairs) {
  table().bf16.rope(x, positions, cos, sin, y, tokens, heads, head_dim, direction, pairs);
}

}  // namespace trireme::model
