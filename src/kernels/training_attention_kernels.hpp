// The training attention by instruction set.
#pragma once

#include "trireme/kernels/training_attention.hpp"

namespace trireme::kernels {

inline constexpr int64_t attention_block = 64;  // queries that are computed together

// Memory of one call, 64-byte aligned. A class whose functions live in training_attention.cpp, so
// that no code for a newer CPU gets into functions that an older one runs.
class AttentionScratch {
 public:
  AttentionScratch() = default;
  AttentionScratch(const AttentionScratch&) = delete;
  ~AttentionScratch();
  // Zeros; throws std::bad_alloc.
  void* zeroed(int64_t bytes);

 private:
  static constexpr int most = 24;
  void* parts_[most] = {};
  int count_ = 0;
};

// bf16 with VDPBF16PS, or widened to fp32 in its order: the same bits.
template <class T>
struct TrainingAttention {
  void (*forward)(const AttentionForward<T>&, AttentionScratch&);
  void (*backward)(const AttentionBackward<T>&, AttentionScratch&);
};

extern const TrainingAttention<float> attention_f32_portable;
extern const TrainingAttention<uint16_t> attention_bf16_portable;
#if defined(__x86_64__)
extern const TrainingAttention<float> attention_f32_avx2, attention_f32_avx512;
extern const TrainingAttention<uint16_t> attention_bf16_avx2, attention_bf16_avx512,
    attention_bf16_avx512_bf16;
#endif

}  // namespace trireme::kernels
