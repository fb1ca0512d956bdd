#include "attention_kernels.hpp"

#include <new>

#include "trireme/base/error.hpp"

namespace trireme::model {

void attention_out_of_memory() { throw std::bad_alloc(); }

#if defined(__x86_64__)

bool has_attention_kernels(bool bf16, int64_t head_dim) {
  const bool cpu = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma");
  return cpu && (!bf16 || __builtin_cpu_supports("avx512bf16")) && head_dim % 16 == 0;
}

#else

bool has_attention_kernels(bool, int64_t) { return false; }
void attention_forward(const AttentionForward<float>&) { throw InternalError("no attention kernels for this CPU"); }
void attention_forward(const AttentionForward<uint16_t>&) { throw InternalError("no attention kernels for this CPU"); }
void attention_backward(const AttentionBackward<float>&) { throw InternalError("no attention kernels for this CPU"); }
void attention_backward(const AttentionBackward<uint16_t>&) { throw InternalError("no attention kernels for this CPU"); }

#endif

}  // namespace trireme::model
