#include "trireme/kernels/decode_gemm.hpp"

#include "kernels/decode_gemm_kernels.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/isa.hpp"

namespace trireme::kernels {

void gemm_columns(const GemmArguments& arguments, int64_t first, int64_t last) {
  EXPECT(arguments.ldx >= gemm_padded(arguments.k) && arguments.order.block > 0);
  EXPECT(arguments.order.block >= arguments.k || arguments.order.block % (64 / static_cast<int64_t>(size_of(arguments.type))) == 0);
  if (first >= last) return;
#if defined(__x86_64__)
  if (base::active_isa() >= base::Isa::avx512) {
    gemm_columns_avx512(arguments, first, last, base::active_isa() == base::Isa::avx512_bf16);
    return;
  }
#endif
  gemm_columns_portable(arguments, first, last);
}

}  // namespace trireme::kernels
