#include "kernels/lane_kernels.hpp"

#include <cmath>

#include "trireme/base/isa.hpp"

namespace trireme::kernels {

const LaneKernels& lane_kernels() {
#if defined(__x86_64__)
  if (base::active_isa() >= base::Isa::avx512) return lane_kernels_avx512;
  if (base::active_isa() >= base::Isa::avx2) return lane_kernels_avx2;
#endif
  return lane_kernels_portable;
}

AdamWFactors::AdamWFactors(const AdamWStep& s)
    : clip(static_cast<float>(s.clip_factor)),
      decay(static_cast<float>(1 - s.lr * s.weight_decay)),
      rate1(static_cast<float>(1 - s.beta1)),
      beta2(static_cast<float>(s.beta2)),
      rate2(static_cast<float>(1 - s.beta2)),
      step_size(static_cast<float>(s.lr / (1 - std::pow(s.beta1, static_cast<double>(s.step))))),
      root_scale(
          static_cast<float>(1 / std::sqrt(1 - std::pow(s.beta2, static_cast<double>(s.step))))),
      eps(static_cast<float>(s.eps)) {}

}  // namespace trireme::kernels
