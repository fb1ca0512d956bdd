// The vector kernels of this module that do not fuse products and sums, once per instruction set:
// same bits in all. The bodies are *_body.hpp; lane_kernels_{portable,avx2,avx512}.cpp compile
// them. Raw pointers only; contracts stand in the public headers.
#pragma once

#include <cstdint>

#include "trireme/kernels/adamw.hpp"
#include "trireme/kernels/log_sum_exp.hpp"

namespace trireme::kernels {

// Logits that LogitKernels::at_least looks at in one call.
inline constexpr int64_t candidate_block = 1024;

// T: float, or uint16_t for the bits of bf16.
template <class T>
struct LogitKernels {
  void (*update)(LogSumExp&, const T* logits, int64_t count, float scale);
  void (*update_with_entropy)(LogSumExp&, const T* logits, int64_t count, float scale);
  void (*softmax_gradient)(const SoftmaxGradient&, T* logits, int64_t count);
  int64_t (*argmax)(const T* logits, int64_t count);
  // The first index of [begin, end) at which the running sum of exp(logit * scale - max) passes
  // target; the last with a probability above zero when rounding lets none pass.
  int64_t (*pass)(const T* logits, int64_t begin, int64_t end, float scale, float max,
                  double target);
  // Indices and z = logit * scale of those with z >= threshold among the first `count` <=
  // candidate_block; how many.
  int64_t (*at_least)(const T* logits, int64_t count, float scale, float threshold, int32_t* index,
                      float* z);
  void (*add_row)(T* x, const T* y, int64_t count);
  void (*reduce_row)(const float* partials, int64_t parts, int64_t stride, T* y, int64_t count);
};

// AdamWStep as the factors of one fp32 update.
struct AdamWFactors {
  explicit AdamWFactors(const AdamWStep& step);
  float clip, decay, rate1, beta2, rate2, step_size, root_scale, eps;
};
inline constexpr int64_t adamw_word = 64;  // values per word of the change bitmap

struct ShardKernels {
  // Words [first, last) of the bitmap, 64 values each, cut at the shard's end; how many compute
  // values changed.
  int64_t (*adamw)(const AdamWShard&, const AdamWFactors&, int64_t first, int64_t last);
  double (*sum_of_squares)(const float* values, int64_t count);
  void (*cast_to_bf16)(const float* values, uint16_t* out, int64_t count);
  void (*add_bf16)(float* sums, const uint16_t* values, int64_t count);
  void (*moving_average)(float* average, const float* values, float keep, float rate,
                         int64_t count);
};

struct LaneKernels {
  LogitKernels<float> f32;
  LogitKernels<uint16_t> bf16;
  ShardKernels shard;
};

// Those of base::active_isa().
const LaneKernels& lane_kernels();

extern const LaneKernels lane_kernels_portable;
#if defined(__x86_64__)
extern const LaneKernels lane_kernels_avx2;
extern const LaneKernels lane_kernels_avx512;
#endif

}  // namespace trireme::kernels
