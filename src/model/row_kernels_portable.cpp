#include "row_kernels_body.hpp"

namespace trireme::model {
extern const RowKernelTable row_kernels_portable{"portable", row_kernels<float>,
                                                 row_kernels<uint16_t>};
}  // namespace trireme::model
