#include "trireme/kernels/scan.hpp"

#include "kernels/exec.hpp"
#include "kernels/scan_functors.hpp"

namespace trireme::kernels {
namespace {

struct MomentSums {
  double count = 0, sum = 0, squares = 0;
  MomentSums& operator+=(const MomentSums& o) {
    count += o.count;
    sum += o.sum;
    squares += o.squares;
    return *this;
  }
  void operator+=(const volatile MomentSums& o) volatile {  // asked for by Kokkos 3
    count = count + o.count;
    sum = sum + o.sum;
    squares = squares + o.squares;
  }
};

}  // namespace

void gae(const Ragged& sequences, const ValuedColumns& columns, float gamma, float lambda,
         float* advantages, float* returns) {
  exec::for_each_team("gae", sequences.sequences,
                      GaeScan{sequences.cu_seqlens, columns.values, columns.rewards, columns.mask,
                              gamma, lambda, advantages, returns});
}

void discounted_returns(const Ragged& sequences, const float* rewards, const uint8_t* mask,
                        float gamma, float* returns) {
  exec::for_each_team("returns", sequences.sequences,
                      ReturnScan{sequences.cu_seqlens, rewards, mask, gamma, returns});
}

MaskedMoments masked_moments(const float* x, const uint8_t* mask, int64_t count, double center) {
  const auto sums =
      exec::reduce<MomentSums>("masked_moments", count, [=](int64_t i, MomentSums& total) {
        if (mask[i] == 0) return;
        const double d = static_cast<double>(x[i]) - center;
        total.count += 1;
        total.sum += d;
        total.squares += d * d;
      });
  return {sums.count, sums.sum, sums.squares};
}

}  // namespace trireme::kernels
