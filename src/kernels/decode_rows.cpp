#include "trireme/kernels/decode_rows.hpp"

#include "kernels/lane_kernels.hpp"

namespace trireme::kernels {

void add_row(ElementType type, void* x, const void* y, int64_t n) {
  if (type == ElementType::f32) {
    lane_kernels().f32.add_row(static_cast<float*>(x), static_cast<const float*>(y), n);
  } else {
    lane_kernels().bf16.add_row(static_cast<uint16_t*>(x), static_cast<const uint16_t*>(y), n);
  }
}

void reduce_row(ElementType type, const float* partials, int64_t parts, int64_t stride, void* y,
                int64_t n) {
  if (type == ElementType::f32) {
    lane_kernels().f32.reduce_row(partials, parts, stride, static_cast<float*>(y), n);
  } else {
    lane_kernels().bf16.reduce_row(partials, parts, stride, static_cast<uint16_t*>(y), n);
  }
}

}  // namespace trireme::kernels
