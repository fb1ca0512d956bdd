// Both code paths do the same operations in the same order, without fused multiply-add, so they give the same bits; the
// pass is bound by memory (30 bytes per value), not by arithmetic.
#include "torch/torch.hpp"

#include "trireme/kernels/adamw.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "trireme/base/isa.hpp"

#if defined(__x86_64__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12's intrinsics use undefined vectors on purpose (GCC bug 105593)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#define TRIREME_X86 1
#define TRIREME_CLONES __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define TRIREME_X86 0
#define TRIREME_CLONES
#endif

namespace trireme::kernels {
namespace {

constexpr int64_t kWord = 64;           // values per word of the change bitmap
constexpr int64_t kGrainWords = 256;    // work of one task: 16,384 values
constexpr int64_t kNormBlock = 4096;
constexpr int64_t kGrainValues = 65536;

struct Coefficients {
  explicit Coefficients(const AdamWStep& s)
      : clip(static_cast<float>(s.clip_factor)), decay(static_cast<float>(1 - s.lr * s.weight_decay)),
        rate1(static_cast<float>(1 - s.beta1)), beta2(static_cast<float>(s.beta2)), rate2(static_cast<float>(1 - s.beta2)),
        step_size(static_cast<float>(s.lr / (1 - std::pow(s.beta1, static_cast<double>(s.step))))),
        root_scale(static_cast<float>(1 / std::sqrt(1 - std::pow(s.beta2, static_cast<double>(s.step))))),
        eps(static_cast<float>(s.eps)) {}
  float clip, decay, rate1, beta2, rate2, step_size, root_scale, eps;
};

uint16_t round_to_bf16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float update_value(const AdamWShard& s, const Coefficients& c, int64_t i) {
  const float g = s.gradient[i] * c.clip;
  const float m = s.moment1[i] + (g - s.moment1[i]) * c.rate1;
  const float v = s.moment2[i] * c.beta2 + g * g * c.rate2;
  const float p = s.master[i] * c.decay - c.step_size * (m / (std::sqrt(v) * c.root_scale + c.eps));
  s.moment1[i] = m;
  s.moment2[i] = v;
  s.master[i] = p;
  return p;
}

// Stores the compute value; whether its bits changed.
bool store_compute(const AdamWShard& s, int64_t i, float value) {
  if (s.compute_bf16) {
    const uint16_t rounded = round_to_bf16(value);
    const bool differs = rounded != s.compute_bf16[i];
    s.compute_bf16[i] = rounded;
    return differs;
  }
  if (s.compute_fp32) {
    const bool differs = std::memcmp(&s.compute_fp32[i], &value, sizeof value) != 0;
    s.compute_fp32[i] = value;
    return differs;
  }
  return false;
}

// One word of the bitmap: values [begin, begin + 64), cut at the shard's end.
uint64_t update_word(const AdamWShard& s, const Coefficients& c, int64_t begin) {
  const int64_t end = std::min(begin + kWord, s.elements);
  uint64_t changed = 0;
  for (int64_t i = begin; i < end; ++i) {
    const float value = update_value(s, c, i);
    changed |= static_cast<uint64_t>(store_compute(s, i, value)) << (i - begin);
  }
  return changed;
}

#if TRIREME_X86
__attribute__((target("avx512f,avx512bw,avx512vl"))) uint64_t update_word_avx512(const AdamWShard& s, const Coefficients& c,
                                                                                 int64_t begin) {
  const __m512 clip = _mm512_set1_ps(c.clip), decay = _mm512_set1_ps(c.decay), rate1 = _mm512_set1_ps(c.rate1);
  const __m512 beta2 = _mm512_set1_ps(c.beta2), rate2 = _mm512_set1_ps(c.rate2), eps = _mm512_set1_ps(c.eps);
  const __m512 step_size = _mm512_set1_ps(c.step_size), root_scale = _mm512_set1_ps(c.root_scale);
  uint64_t changed = 0;
  for (int lane = 0; lane < 4; ++lane) {
    const int64_t i = begin + 16 * lane;
    const __m512 g = _mm512_mul_ps(_mm512_loadu_ps(s.gradient + i), clip);
    const __m512 m0 = _mm512_loadu_ps(s.moment1 + i);
    const __m512 m = _mm512_add_ps(m0, _mm512_mul_ps(_mm512_sub_ps(g, m0), rate1));
    const __m512 v = _mm512_add_ps(_mm512_mul_ps(_mm512_loadu_ps(s.moment2 + i), beta2),
                                   _mm512_mul_ps(_mm512_mul_ps(g, g), rate2));
    const __m512 root = _mm512_add_ps(_mm512_mul_ps(_mm512_sqrt_ps(v), root_scale), eps);
    const __m512 p = _mm512_sub_ps(_mm512_mul_ps(_mm512_loadu_ps(s.master + i), decay),
                                   _mm512_mul_ps(step_size, _mm512_div_ps(m, root)));
    _mm512_storeu_ps(s.moment1 + i, m);
    _mm512_storeu_ps(s.moment2 + i, v);
    _mm512_storeu_ps(s.master + i, p);
    const __m512i bits = _mm512_castps_si512(p);
    if (s.compute_bf16) {
      const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
      const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
      const __mmask16 nan = _mm512_cmp_ps_mask(p, p, _CMP_UNORD_Q);
      const __m512i wide = _mm512_mask_mov_epi32(_mm512_srli_epi32(sum, 16), nan, _mm512_set1_epi32(0x7fc0));
      const __m256i rounded = _mm512_cvtepi32_epi16(wide);
      auto* out = reinterpret_cast<__m256i*>(s.compute_bf16 + i);
      changed |= static_cast<uint64_t>(_mm256_cmpneq_epi16_mask(rounded, _mm256_loadu_si256(out))) << (16 * lane);
      _mm256_storeu_si256(out, rounded);
    } else if (s.compute_fp32) {
      const __m512i before = _mm512_loadu_si512(s.compute_fp32 + i);
      changed |= static_cast<uint64_t>(_mm512_cmpneq_epi32_mask(bits, before)) << (16 * lane);
      _mm512_storeu_si512(s.compute_fp32 + i, bits);
    }
  }
  return changed;
}

#pragma GCC diagnostic pop

bool has_avx512() { return base::active_isa() >= base::Isa::avx512; }
#else
uint64_t update_word_avx512(const AdamWShard& s, const Coefficients& c, int64_t begin) { return update_word(s, c, begin); }
bool has_avx512() { return false; }
#endif

int64_t run(const AdamWShard& shard, const AdamWStep& step, bool vectors) {
  const Coefficients coefficients(step);
  const int64_t words = (shard.elements + kWord - 1) / kWord;
  std::atomic<int64_t> changed{0};
  at::parallel_for(0, words, kGrainWords, [&](int64_t first, int64_t last) {
    int64_t count = 0;
    for (int64_t w = first; w < last; ++w) {
      const int64_t begin = w * kWord;
      const bool whole = begin + kWord <= shard.elements;
      const uint64_t bits = vectors && whole ? update_word_avx512(shard, coefficients, begin)
                                             : update_word(shard, coefficients, begin);
      if (shard.changed) shard.changed[w] = bits;
      count += __builtin_popcountll(bits);
    }
    changed += count;
  });
  return changed;
}

// Sixteen running sums keep the additions independent of each other; they are added in a fixed order.
TRIREME_CLONES double block_squares(const float* values, int64_t n) {
  double sums[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int j = 0; j < 16; ++j) {
      const double x = values[i + j];
      sums[j] += x * x;
    }
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  for (; i < n; ++i) total += static_cast<double>(values[i]) * values[i];
  return total;
}

TRIREME_CLONES void cast_range(const float* values, uint16_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, values + i, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    out[i] = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
  }
}

TRIREME_CLONES void average_range(float* average, const float* values, float beta, float rate, int64_t n) {
  for (int64_t i = 0; i < n; ++i) average[i] = average[i] * beta + values[i] * rate;
}

}  // namespace

int64_t adamw(const AdamWShard& shard, const AdamWStep& step) { return run(shard, step, has_avx512()); }

int64_t adamw_portable(const AdamWShard& shard, const AdamWStep& step) { return run(shard, step, false); }

double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

double squared_norm(const float* values, int64_t elements) {
  const int64_t blocks = (elements + kNormBlock - 1) / kNormBlock;
  std::vector<double> sums(static_cast<size_t>(blocks));
  at::parallel_for(0, blocks, kGrainValues / kNormBlock, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      const int64_t begin = b * kNormBlock;
      sums[static_cast<size_t>(b)] = block_squares(values + begin, std::min(kNormBlock, elements - begin));
    }
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

void cast_to_bf16(const float* values, uint16_t* out, int64_t elements) {
  at::parallel_for(0, elements, kGrainValues,
                   [&](int64_t first, int64_t last) { cast_range(values + first, out + first, last - first); });
}

void moving_average(float* average, const float* values, double beta, int64_t elements) {
  const auto keep = static_cast<float>(beta);
  const auto rate = static_cast<float>(1 - beta);
  at::parallel_for(0, elements, kGrainValues, [&](int64_t first, int64_t last) {
    average_range(average + first, values + first, keep, rate, last - first);
  });
}

}  // namespace trireme::kernels
