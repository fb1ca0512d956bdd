#include "trireme/kernels/decode_rows.hpp"

#include "kernels/vector16.hpp"

namespace trireme::kernels {
namespace {

using lanes::Float;

template <class T>
TRIREME_LANES_INLINE Float take(const T* from, int64_t left) {
  return left >= lanes::count ? lanes::load(from) : lanes::load_part(from, left, 0.f);
}
template <class T>
TRIREME_LANES_INLINE void put(T* to, int64_t left, Float value) {
  if (left >= lanes::count) {
    lanes::store(to, value);
  } else {
    lanes::store_part(to, left, value);
  }
}

template <class T>
TRIREME_LANES_INLINE void add(T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; i += lanes::count) put(x + i, n - i, take(x + i, n - i) + take(y + i, n - i));
}

template <class T>
TRIREME_LANES_INLINE void reduce(const float* partials, int64_t parts, int64_t stride, T* y, int64_t n) {
  for (int64_t i = 0; i < n; i += lanes::count) {
    Float sum = take(partials + i, n - i);
    for (int64_t r = 1; r < parts; ++r) sum += take(partials + r * stride + i, n - i);
    put(y + i, n - i, sum);
  }
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
