#include "row_kernels_body.hpp"

namespace trireme::model {
extern const RowKernelTable row_kernels_avx512{"avx512", row_kernels<float>, row_kernels<uint16_t>};
}  // namespace trireme::model
