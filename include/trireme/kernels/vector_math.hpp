// Functions of vectors of any number of lanes that few kernels need (vector16.hpp).
#pragma once

#include "trireme/kernels/vector16.hpp"

namespace trireme::kernels::lanes {
namespace {

// tanh(x) within 2 ulp (Cephes tanhf). A NaN stays one.
template <class V>
TRIREME_LANES_INLINE V tanh(V x) {
  const V square = x * x;
  V p = V{} - 5.70498872745e-3f;
  p = p * square + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  const V small = x + x * square * p;
  const V size = x < 0.f ? -x : x;
  const V large = 1.f - 2.f / (exp_in_range(clamp(size * 2.f, 0.f, 88.f)) + 1.f);
  return size < 0.625f ? small : (x < 0.f ? -large : large);
}
// exp(x) - 1 for x <= 0, without cancellation near it.
template <class V>
TRIREME_LANES_INLINE V expm1_below_zero(V x) {
  V p = V{} + 1.f / 5040.f;
  p = p * x + 1.f / 720.f;
  p = p * x + 1.f / 120.f;
  p = p * x + 1.f / 24.f;
  p = p * x + 1.f / 6.f;
  p = p * x + 0.5f;
  const V small = x + x * x * p;
  const V large = exp_in_range(clamp(x, -87.3f, 0.f)) - 1.f;
  return x > -0.25f ? small : large;
}

TRIREME_LANES_INLINE Float tanh(const Float& x) {
  return each(
      TRIREME_LANES_LAMBDA(FloatRegister y) { return tanh(y); }, x);
}

}  // namespace
}  // namespace trireme::kernels::lanes
