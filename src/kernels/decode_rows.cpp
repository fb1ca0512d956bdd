#include "trireme/kernels/decode_rows.hpp"

#include "trireme/kernels/vector16.hpp"

namespace trireme::kernels {
namespace {

template <class T>
TRIREME_LANES_INLINE void add(T* x, const T* y, int64_t elements) {
  lanes::for_each_vector(
      elements, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
        lanes::store(x + i, lanes::load(x + i, n) + lanes::load(y + i, n), n);
      });
}

template <class T>
TRIREME_LANES_INLINE void reduce(const float* partials, int64_t parts, int64_t stride, T* y, int64_t elements) {
  lanes::for_each_vector(
      elements, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
        lanes::Float sum = lanes::load(partials + i, n);
        for (int64_t r = 1; r < parts; ++r) sum += lanes::load(partials + r * stride + i, n);
        lanes::store(y + i, sum, n);
      });
}

}  // namespace

TRIREME_CLONES void add_row(ElementType type, void* x, const void* y, int64_t n) {
  if (type == ElementType::f32) {
    add(static_cast<float*>(x), static_cast<const float*>(y), n);
  } else {
    add(static_cast<uint16_t*>(x), static_cast<const uint16_t*>(y), n);
  }
}

TRIREME_CLONES void reduce_row(ElementType type, const float* partials, int64_t parts, int64_t stride, void* y, int64_t n) {
  if (type == ElementType::f32) {
    reduce(partials, parts, stride, static_cast<float*>(y), n);
  } else {
    reduce(partials, parts, stride, static_cast<uint16_t*>(y), n);
  }
}

}  // namespace trireme::kernels
