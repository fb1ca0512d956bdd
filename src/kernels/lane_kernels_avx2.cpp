#include "kernels/lane_kernels_body.hpp"

namespace trireme::kernels {
extern const LaneKernels lane_kernels_avx2{lane_kernels_here};
}  // namespace trireme::kernels
