// Tiles of the training attention: operands become words, blocks of them are multiplied in
// registers. Included by training_attention_body.hpp; its legend holds here.
#pragma once

#include <cstring>

#include "kernels/attention_blocks.hpp"
#include "kernels/attention_softmax.hpp"
#include "kernels/simd_transpose.hpp"
#include "trireme/kernels/decode_attention.hpp"

namespace trireme::kernels {
namespace {

using simd::Float;
using simd::width;
using simd::Word;

constexpr int64_t block_rows = attention_block;
constexpr int64_t block_columns = 64;  // of a right-hand operand that lie together
constexpr int64_t block_steps = 128;   // of the right-hand operand that stay in the L1 cache
constexpr int64_t tile_rows = 4;       // of the register tile
constexpr int64_t tile_vectors = width == 16 ? 4 : 2;

constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// How elements of memory become words.
template <class Ops>
struct Packing {
  using Element = typename Ops::Element;
  static constexpr bool widened = Ops::steps == 2;                 // bf16 as fp32, one a word
  static constexpr int64_t per_word = Ops::per_unit / Ops::steps;  // elements
  static constexpr int64_t together = Ops::steps;                  // words whose order Ops give
  static TRIREME_SIMD uint32_t word(Element value) {               // of one element
    if constexpr (widened) return static_cast<uint32_t>(value) << 16;
    uint32_t out = 0;
    std::memcpy(&out, &value, sizeof value);
    return out;
  }
  // `width` values rounded to the element type, as words (or, for pairs, as elements).
  static TRIREME_SIMD void put(uint32_t* to, int64_t at, Float value) {
    if constexpr (widened) {
      simd::put(reinterpret_cast<float*>(to) + at,
                simd::rounded(value, static_cast<const Element*>(nullptr)));
    } else {
      simd::put(reinterpret_cast<Element*>(to) + at, value);
    }
  }
};

template <class T>
T* take(AttentionScratch& scratch, int64_t count) {
  return static_cast<T*>(scratch.zeroed(count * static_cast<int64_t>(sizeof(T))));
}

// A left operand, whose words are broadcast: word (row, k) at data[row * row_stride + k *
// k_stride].
struct Left {
  const uint32_t* data;
  int64_t row_stride, k_stride;
};
// A right operand: word (k, column) at data[column / 64 * block + k * stride + column % 64].
struct Right {
  const uint32_t* data;
  int64_t stride, block = block_columns;
};

// c[0..4) [width * vectors] (+)= a x b over words [0, k), in order.
template <class Ops, int vectors>
TRIREME_SIMD void tile(Left a, const uint32_t* b, int64_t b_stride, float* c, int64_t c_stride,
                       int64_t k, bool add) {
  constexpr int64_t together = Packing<Ops>::together;
  Float sums[tile_rows][vectors];
  for (int r = 0; r < tile_rows; ++r) {
    for (int j = 0; j < vectors; ++j)
      sums[r][j] = add ? simd::load(c + r * c_stride + width * j) : Float{};
  }
  for (int64_t i = 0; i < k; i += together) {
    for (int64_t s = 0; s < together; ++s) {
      const int64_t at = i + Ops::element(s);
      Word right[vectors];
      for (int j = 0; j < vectors; ++j) right[j] = simd::load<Word>(b + at * b_stride + width * j);
      for (int r = 0; r < tile_rows; ++r) {
        const Word left = simd::broadcast(a.data + r * a.row_stride + at * a.k_stride);
        for (int j = 0; j < vectors; ++j) sums[r][j] = Ops::add(sums[r][j], right[j], left);
      }
    }
  }
  for (int r = 0; r < tile_rows; ++r) {
    for (int j = 0; j < vectors; ++j) simd::put(c + r * c_stride + width * j, sums[r][j]);
  }
}

template <class Ops>
void tile_columns(Left a, const uint32_t* b, int64_t b_stride, float* c, int64_t c_stride,
                  int64_t rows, int64_t columns, int64_t k, bool add) {
  const int64_t vectors = columns / width < tile_vectors ? columns / width : tile_vectors;
  for (int64_t row = 0; row < rows; row += tile_rows) {
    const Left left{a.data + row * a.row_stride, a.row_stride, a.k_stride};
    float* out = c + row * c_stride;
    if constexpr (tile_vectors == 4) {
      switch (vectors) {
        case 1: tile<Ops, 1>(left, b, b_stride, out, c_stride, k, add); break;
        case 2: tile<Ops, 2>(left, b, b_stride, out, c_stride, k, add); break;
        case 3: tile<Ops, 3>(left, b, b_stride, out, c_stride, k, add); break;
        default: tile<Ops, 4>(left, b, b_stride, out, c_stride, k, add); break;
      }
    } else {  // two vectors divide 16 columns
      tile<Ops, tile_vectors>(left, b, b_stride, out, c_stride, k, add);
    }
  }
}

// c [m, n] (+)= a [m, k] x b [k, n]; m a multiple of 4, n of 16, k in words, an even number where
// they go in pairs.
template <class Ops>
void multiply(Left a, Right b, float* c, int64_t c_stride, int64_t m, int64_t n, int64_t k,
              bool add) {
  constexpr int64_t columns = tile_vectors * width;
  for (int64_t step = 0; step < k; step += block_steps) {
    const int64_t steps = k - step < block_steps ? k - step : block_steps;
    const Left left{a.data + step * a.k_stride, a.row_stride, a.k_stride};
    for (int64_t column = 0; column < n; column += columns) {
      const uint32_t* right =
          b.data + column / block_columns * b.block + step * b.stride + column % block_columns;
      tile_columns<Ops>(left, right, b.stride, c + column, c_stride, m, n - column, steps,
                        add || step > 0);
    }
  }
}

// [tokens, hd] rows at `stride` to a right operand [words of hd][tokens] (the transpose), in blocks
// of 64 tokens.
template <class Ops>
void pack_transposed(const typename Ops::Element* from, int64_t stride, int64_t tokens,
                     int64_t head_dim, int64_t block, uint32_t* out) {
  using Element = typename Ops::Element;
  const int64_t units = head_dim / Ops::per_unit / simd::column_units *
                        simd::column_units;  // that whole vectors take
  const auto set = [&](int64_t token, int64_t d) __attribute__((always_inline)) {
    uint32_t* to = out + token / block_columns * block +
                   d / Packing<Ops>::per_word * block_columns + token % block_columns;
    const uint32_t word = Packing<Ops>::word(from[token * stride + d]);
    *to = Packing<Ops>::per_word == 2 && d % 2 == 1 ? *to | word << 16 : word;
  };
  for (int64_t first = 0; first < tokens; first += width) {
    const int64_t count = tokens - first < width ? tokens - first : width;
    const int64_t done = count == width ? units : 0;
    uint32_t* to = out + first / block_columns * block + first % block_columns;
    for (int64_t unit = 0; unit < done; unit += simd::column_units) {
      Word w[simd::column_units];
      simd::load_columns(reinterpret_cast<const char*>(from + first * stride) + unit * 4,
                         stride * static_cast<int64_t>(sizeof(Element)), w);
      for (int64_t j = 0; j < simd::column_units; ++j) {
        for (int64_t s = 0; s < Ops::steps; ++s) {
          const Word words = Ops::left(w[j], s);
          std::memcpy(to + ((unit + j) * Ops::steps + Ops::element(s)) * block_columns, &words,
                      sizeof words);
        }
      }
    }
    for (int64_t token = first; token < first + count; ++token) {
      for (int64_t d = done * Ops::per_unit; d < head_dim; ++d) set(token, d);
    }
  }
}

// Rows to a right operand [words of the tokens][hd].
template <class Ops>
void pack_rows(const typename Ops::Element* from, int64_t stride, int64_t tokens, int64_t head_dim,
               int64_t row_words, uint32_t* out) {
  constexpr int64_t per_word = Packing<Ops>::per_word;
  for (int64_t token = 0; token < tokens; token += per_word) {
    const auto* row = from + token * stride;
    uint32_t* to = out + token / per_word * row_words;
    for (int64_t d = 0; d < head_dim; d += width) {
      Word words = (Word)simd::widen(row + d, head_dim - d);
      if constexpr (per_word == 2) {  // bf16 widened are the upper halves
        words >>= 16;
        if (token + 1 < tokens) words |= (Word)simd::widen(row + stride + d, head_dim - d);
      }
      std::memcpy(to + d, &words, sizeof words);
    }
  }
}

// Rows to a left operand [rows][words of hd]; rows up to the block's end become zeros.
template <class Ops>
void pack_left(const typename Ops::Element* from, int64_t stride, int64_t rows, int64_t head_dim,
               int64_t row_words, uint32_t* out) {
  for (int64_t row = 0; row < rows; ++row) {
    if constexpr (Packing<Ops>::widened) {
      for (int64_t d = 0; d < head_dim; d += width) {
        simd::put(reinterpret_cast<float*>(out + row * row_words) + d,
                  simd::widen(from + row * stride + d, head_dim - d));
      }
    } else {
      std::memcpy(out + row * row_words, from + row * stride,
                  static_cast<size_t>(head_dim) * sizeof(typename Ops::Element));
    }
  }
  std::memset(out + rows * row_words, 0,
              static_cast<size_t>((block_rows - rows) * row_words) * sizeof(uint32_t));
}

}  // namespace
}  // namespace trireme::kernels
