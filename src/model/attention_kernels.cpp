#include "attention_kernels.hpp"

#include <new>

#include "trireme/base/error.hpp"
#include "trireme/base/isa.hpp"

namespace trireme::model {

void attention_out_of_memory() { throw std::bad_alloc(); }

#if defined(__x86_64__)

bool has_attention_kernels(bool bf16, int64_t head_dim) {
  return base::active_isa() >= (bf16 ? base::Isa::avx512_bf16 : base::Isa::avx512) && head_dim % 16 == 0;
}

#else

bool has_attention_kernels(bool, int64_t) { return false; }
void attention_forward(const AttentionForward<float>&) { throw InternalError("no attention kernels for this CPU"); }
void attention_forward(const AttentionForward<uint16_t>&) { throw InternalError("no attention kernels for this CPU"); }
void attention_backward(const AttentionBackward<float>&) { throw InternalError("no attention kernels for this CPU"); }
void attention_backward(const AttentionBackward<uint16_t>&) { throw InternalError("no attention kernels for this CPU"); }

#endif

}  // namespace trireme::model
