// Compiled with AVX-512 flags; called only where has_attention_kernels() says so. A "word" is what one multiply-add lane takes
// from memory: one float, or a pair of bf16 (vdpbf16ps multiplies both and adds them to an fp32 lane).
#include <immintrin.h>

#include <cstdlib>

#include "attention_kernels.hpp"
#include "trireme/kernels/vector16.hpp"

namespace {

namespace lanes = trireme::kernels::lanes;
using trireme::model::AttentionBackward;
using trireme::model::AttentionForward;

constexpr int64_t block_rows = 64;  // queries at a time
constexpr int64_t tile_rows = 4;    // of the register tile: 4 x 64 results in 16 registers

template <class T>
struct Lane;
template <>
struct Lane<float> {
  using Word = float;
  static constexpr int64_t per_word = 1;
  static TRIREME_LANES_INLINE __m512 multiply_add(__m512 sum, const float* a, __m512i b) {
    return _mm512_fmadd_ps(_mm512_set1_ps(*a), _mm512_castsi512_ps(b), sum);
  }
};
template <>
struct Lane<uint16_t> {
  using Word = uint32_t;
  static constexpr int64_t per_word = 2;
  static TRIREME_LANES_INLINE __m512 multiply_add(__m512 sum, const uint32_t* a, __m512i b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(static_cast<int>(*a)), (__m512bh)b);
  }
};

// Zero-initialised scratch memory, 64-byte aligned; plain C so that nothing inline is shared with other files.
template <class T>
class Scratch {
 public:
  explicit Scratch(int64_t count)
      : data_(static_cast<T*>(std::aligned_alloc(64, (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64))) {
    if (!data_) trireme::model::attention_out_of_memory();
    std::memset(data_, 0, static_cast<size_t>(count) * sizeof(T));
  }
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* get() { return data_; }

 private:
  T* data_;
};

// A matrix operand whose elements are broadcast: word (row, k) at data[row * row_stride + k * k_stride].
template <class Word>
struct Broadcast {
  const Word* data;
  int64_t row_stride, k_stride;
};

// c[0..4) [16 * vectors] (+)= a x b over k words, in order.
template <class T, int vectors>
TRIREME_LANES_INLINE void tile(Broadcast<typename Lane<T>::Word> a, const typename Lane<T>::Word* b, int64_t b_stride, float* c,
                         int64_t c_stride, int64_t k, bool add) {
  __m512 sums[tile_rows][vectors];
  for (int r = 0; r < tile_rows; ++r) {
    for (int j = 0; j < vectors; ++j) sums[r][j] = add ? _mm512_loadu_ps(c + r * c_stride + 16 * j) : _mm512_setzero_ps();
  }
  for (int64_t i = 0; i < k; ++i) {
    __m512i right[vectors];
    for (int j = 0; j < vectors; ++j) right[j] = _mm512_loadu_si512(b + i * b_stride + 16 * j);
    for (int r = 0; r < tile_rows; ++r) {
      const auto* left = a.data + r * a.row_stride + i * a.k_stride;
      for (int j = 0; j < vectors; ++j) sums[r][j] = Lane<T>::multiply_add(sums[r][j], left, right[j]);
    }
  }
  for (int r = 0; r < tile_rows; ++r) {
    for (int j = 0; j < vectors; ++j) _mm512_storeu_ps(c + r * c_stride + 16 * j, sums[r][j]);
  }
}

// c [m, n] (+)= a [m, k] x b [k, n]; m a multiple of 4, n of 16, k in words.
template <class T>
void multiply(Broadcast<typename Lane<T>::Word> a, const typename Lane<T>::Word* b, float* c, int64_t c_stride, int64_t m,
              int64_t n, int64_t k, int64_t b_stride, bool add) {
  for (int64_t column = 0; column < n; column += 64) {
    for (int64_t row = 0; row < m; row += tile_rows) {
      const Broadcast<typename Lane<T>::Word> left{a.data + row * a.row_stride, a.row_stride, a.k_stride};
      float* out = c + row * c_stride + column;
      switch (n - column < 64 ? (n - column) / 16 : 4) {
        case 1: tile<T, 1>(left, b + column, b_stride, out, c_stride, k, add); break;
        case 2: tile<T, 2>(left, b + column, b_stride, out, c_stride, k, add); break;
        case 3: tile<T, 3>(left, b + column, b_stride, out, c_stride, k, add); break;
        default: tile<T, 4>(left, b + column, b_stride, out, c_stride, k, add); break;
      }
    }
  }
}

// [tokens, hd] rows at `stride` to words that run along hd: out[w * padded + token] (the transpose).
template <class T>
void pack_transposed(const T* from, int64_t stride, int64_t tokens, int64_t head_dim, int64_t padded,
                     typename Lane<T>::Word* out) {
  using Word = typename Lane<T>::Word;
  const int64_t words = head_dim / Lane<T>::per_word;
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t w = 0; w < words; ++w)
      std::memcpy(out + w * padded + token, from + token * stride + w * Lane<T>::per_word, sizeof(Word));
  }
}

// Rows to words that run along the tokens: out[(token / per_word) * hd + d].
template <class T>
void pack_rows(const T* from, int64_t stride, int64_t tokens, int64_t head_dim, typename Lane<T>::Word* out) {
  T* to = reinterpret_cast<T*>(out);
  constexpr int64_t per_word = Lane<T>::per_word;
  for (int64_t token = 0; token < tokens; ++token) {
    const T* row = from + token * stride;
    T* target = to + token / per_word * per_word * head_dim + token % per_word;
    for (int64_t d = 0; d < head_dim; ++d) target[d * per_word] = row[d];
  }
}

template <class T>
void copy_rows(const T* from, int64_t stride, int64_t rows, int64_t head_dim, T* out) {
  for (int64_t row = 0; row < rows; ++row)
    std::memcpy(out + row * head_dim, from + row * stride, static_cast<size_t>(head_dim) * sizeof(T));
  std::memset(out + rows * head_dim, 0, static_cast<size_t>((block_rows - rows) * head_dim) * sizeof(T));
}

// fp32 to bf16 by the CPU's own instruction (nearest even).
TRIREME_LANES_INLINE void put(float* to, __m512 value) { _mm512_storeu_ps(to, value); }
TRIREME_LANES_INLINE void put(uint16_t* to, __m512 value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(value));
}

// Lanes j of a vector that starts at `first` with first + j < end.
TRIREME_LANES_INLINE __mmask16 lanes_below(int64_t first, int64_t end) {
  const int64_t n = end - first;
  return n >= 16 ? __mmask16(0xFFFF) : n <= 0 ? __mmask16(0) : __mmask16((1u << n) - 1u);
}

// One row of scores to exp(scale * s - max) for the `valid` first keys and zeros up to `padded`; returns scale * max + log of
// the sum, and the sum itself in `total`.
template <class T>
float softmax_row(const float* scores, int64_t valid, int64_t padded, float scale, T* probabilities, float* total) {
  __m512 largest = _mm512_set1_ps(-__builtin_inff());
  for (int64_t j = 0; j < valid; j += 16)
    largest = _mm512_mask_max_ps(largest, lanes_below(j, valid), largest, _mm512_loadu_ps(scores + j));
  const float top = _mm512_reduce_max_ps(largest) * scale;
  lanes::Float sums{};
  for (int64_t j = 0; j < padded; j += 16) {
    const __m512 shifted = _mm512_sub_ps(_mm512_mul_ps(_mm512_loadu_ps(scores + j), _mm512_set1_ps(scale)), _mm512_set1_ps(top));
    const __m512 p = _mm512_maskz_mov_ps(lanes_below(j, valid), (__m512)lanes::exp_above_zero((lanes::Float)shifted));
    sums += (lanes::Float)p;
    put(probabilities + j, p);
  }
  *total = lanes::tree_sum(sums);
  return top + __builtin_logf(*total);
}

template <class T>
void forward(const AttentionForward<T>& a) {
  using Word = typename Lane<T>::Word;
  constexpr int64_t per_word = Lane<T>::per_word;
  const int64_t hd = a.head_dim, padded = (a.tokens + block_rows - 1) / block_rows * block_rows;
  const int64_t q_stride = a.heads * hd, kv_stride = a.kv_heads * hd;
  Scratch<Word> keys(padded * hd / per_word), values(padded * hd / per_word);
  pack_transposed(a.k, kv_stride, a.tokens, hd, padded, keys.get());
  pack_rows(a.v, kv_stride, a.tokens, hd, values.get());
  Scratch<T> queries(block_rows * hd), probabilities(block_rows * padded);
  Scratch<float> scores(block_rows * padded), out(block_rows * hd);
  float totals[block_rows];
  for (int64_t head = 0; head < a.heads / a.kv_heads; ++head) {
    for (int64_t first = 0; first < a.tokens; first += block_rows) {
      const int64_t rows = a.tokens - first < block_rows ? a.tokens - first : block_rows;
      const int64_t reach = first + block_rows;  // keys that this block can see
      copy_rows(a.q + first * q_stride + head * hd, q_stride, rows, hd, queries.get());
      const Broadcast<Word> q{reinterpret_cast<const Word*>(queries.get()), hd / per_word, 1};
      multiply<T>(q, keys.get(), scores.get(), padded, block_rows, reach, hd / per_word, padded, false);
      for (int64_t r = 0; r < rows; ++r) {
        a.log_sum_exp[(first + r) * a.heads + head] =
            softmax_row(scores.get() + r * padded, first + r + 1, reach, a.scale, probabilities.get() + r * padded, totals + r);
      }
      const Broadcast<Word> p{reinterpret_cast<const Word*>(probabilities.get()), padded / per_word, 1};
      multiply<T>(p, values.get(), out.get(), hd, block_rows, hd, reach / per_word, hd, false);
      for (int64_t r = 0; r < rows; ++r) {
        T* target = a.out + (first + r) * q_stride + head * hd;
        const __m512 inverse = _mm512_set1_ps(1.0f / totals[r]);
        for (int64_t d = 0; d < hd; d += 16) put(target + d, _mm512_mul_ps(_mm512_loadu_ps(out.get() + r * hd + d), inverse));
      }
    }
  }
}

// Rows in pairs, as the words of a transposed operand: out[(r / 2) * stride + j] = (row r, row r + 1) at column j. fp32 rows are
// that already.
TRIREME_LANES_INLINE void put_paired(float* out, int64_t stride, int64_t r, int64_t j, __m512 even, __m512 odd) {
  put(out + r * stride + j, even);
  put(out + (r + 1) * stride + j, odd);
}
TRIREME_LANES_INLINE void put_paired(uint16_t* out, int64_t stride, int64_t r, int64_t j, __m512 even, __m512 odd) {
  const __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(even));
  const __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(odd)), 16);
  _mm512_storeu_si512(out + r * stride + 2 * j, _mm512_or_si512(low, high));
}

template <class T>
float dot_rows(const T* a, const T* b, int64_t count) {
  lanes::Float sums{};
  for (int64_t i = 0; i < count; i += 16) sums += lanes::load(a + i) * lanes::load(b + i);
  return lanes::tree_sum(sums);
}

// What one block of queries of one head needs in the backward pass.
template <class T>
struct BackwardBlock {
  Scratch<T> queries, slopes, paired_p, paired_ds, ds;
  Scratch<typename Lane<T>::Word> query_rows, slope_rows;
  Scratch<float> scores, dp, dq;
  float log_sum_exp[block_rows], delta[block_rows];

  BackwardBlock(int64_t padded, int64_t hd)
      : queries(block_rows * hd),
        slopes(block_rows * hd),
        paired_p(block_rows * padded),
        paired_ds(block_rows * padded),
        ds(block_rows * padded),
        query_rows(block_rows * hd / Lane<T>::per_word),
        slope_rows(block_rows * hd / Lane<T>::per_word),
        scores(block_rows * padded),
        dp(block_rows * padded),
        dq(block_rows * hd) {}

  // P = exp(scale * s - lse) and dS = P * (dP - delta) * scale, with zeros where masked.
  void probabilities(int64_t first, int64_t rows, int64_t reach, int64_t padded, float scale) {
    for (int64_t r = 0; r < block_rows; r += 2) {
      for (int64_t j = 0; j < reach; j += 16) {
        __m512 p[2], slope[2];
        for (int64_t i = 0; i < 2; ++i) {
          const __mmask16 visible = r + i < rows ? lanes_below(j, first + r + i + 1) : __mmask16(0);
          const __m512 s = _mm512_mul_ps(_mm512_loadu_ps(scores.get() + (r + i) * padded + j), _mm512_set1_ps(scale));
          p[i] = _mm512_maskz_mov_ps(visible, (__m512)lanes::exp_above_zero((lanes::Float)_mm512_sub_ps(s, _mm512_set1_ps(log_sum_exp[r + i]))));
          const __m512 d = _mm512_sub_ps(_mm512_loadu_ps(dp.get() + (r + i) * padded + j), _mm512_set1_ps(delta[r + i]));
          slope[i] = _mm512_maskz_mul_ps(visible, _mm512_mul_ps(p[i], d), _mm512_set1_ps(scale));
          put(ds.get() + (r + i) * padded + j, slope[i]);
        }
        put_paired(paired_p.get(), padded, r, j, p[0], p[1]);
        put_paired(paired_ds.get(), padded, r, j, slope[0], slope[1]);
      }
    }
  }
};

template <class T>
void backward(const AttentionBackward<T>& b) {
  using Word = typename Lane<T>::Word;
  constexpr int64_t per_word = Lane<T>::per_word;
  const auto& a = b.forward;
  const int64_t hd = a.head_dim, words = hd / per_word, padded = (a.tokens + block_rows - 1) / block_rows * block_rows;
  const int64_t q_stride = a.heads * hd, kv_stride = a.kv_heads * hd;
  Scratch<Word> keys(padded * words), values(padded * words), key_rows(padded * words);
  pack_transposed(a.k, kv_stride, a.tokens, hd, padded, keys.get());
  pack_transposed(a.v, kv_stride, a.tokens, hd, padded, values.get());
  pack_rows(a.k, kv_stride, a.tokens, hd, key_rows.get());
  Scratch<float> dk(padded * hd), dv(padded * hd);
  BackwardBlock<T> block(padded, hd);
  for (int64_t head = 0; head < a.heads / a.kv_heads; ++head) {
    for (int64_t first = 0; first < a.tokens; first += block_rows) {
      const int64_t rows = a.tokens - first < block_rows ? a.tokens - first : block_rows;
      const int64_t reach = first + block_rows;
      const int64_t at = first * q_stride + head * hd;
      copy_rows(a.q + at, q_stride, rows, hd, block.queries.get());
      copy_rows(b.dout + at, q_stride, rows, hd, block.slopes.get());
      pack_rows(block.queries.get(), hd, block_rows, hd, block.query_rows.get());
      pack_rows(block.slopes.get(), hd, block_rows, hd, block.slope_rows.get());
      for (int64_t r = 0; r < block_rows; ++r) {
        block.log_sum_exp[r] = r < rows ? a.log_sum_exp[(first + r) * a.heads + head] : 0;
        block.delta[r] = r < rows ? dot_rows(a.out + at + r * q_stride, b.dout + at + r * q_stride, hd) : 0;
      }
      const auto whole = [&](Scratch<T>& rows_of, int64_t stride) {
        return Broadcast<Word>{reinterpret_cast<const Word*>(rows_of.get()), stride, 1};
      };
      const auto transposed = [&](Scratch<T>& paired) {
        return Broadcast<Word>{reinterpret_cast<const Word*>(paired.get()), 1, padded};
      };
      multiply<T>(whole(block.queries, words), keys.get(), block.scores.get(), padded, block_rows, reach, words, padded, false);
      multiply<T>(whole(block.slopes, words), values.get(), block.dp.get(), padded, block_rows, reach, words, padded, false);
      block.probabilities(first, rows, reach, padded, a.scale);
      multiply<T>(whole(block.ds, padded / per_word), key_rows.get(), block.dq.get(), hd, block_rows, hd, reach / per_word, hd,
                  false);
      multiply<T>(transposed(block.paired_p), block.slope_rows.get(), dv.get(), hd, reach, hd, block_rows / per_word, hd, true);
      multiply<T>(transposed(block.paired_ds), block.query_rows.get(), dk.get(), hd, reach, hd, block_rows / per_word, hd, true);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t d = 0; d < hd; d += 16) put(b.dq + at + r * q_stride + d, _mm512_loadu_ps(block.dq.get() + r * hd + d));
      }
    }
  }
  for (int64_t token = 0; token < a.tokens; ++token) {
    for (int64_t d = 0; d < hd; d += 16) {
      put(b.dk + token * kv_stride + d, _mm512_loadu_ps(dk.get() + token * hd + d));
      put(b.dv + token * kv_stride + d, _mm512_loadu_ps(dv.get() + token * hd + d));
    }
  }
}

}  // namespace

namespace trireme::model {

void attention_forward(const AttentionForward<float>& a) { forward(a); }
void attention_forward(const AttentionForward<uint16_t>& a) { forward(a); }
void attention_backward(const AttentionBackward<float>& a) { backward(a); }
void attention_backward(const AttentionBackward<uint16_t>& a) { backward(a); }

}  // namespace trireme::model
