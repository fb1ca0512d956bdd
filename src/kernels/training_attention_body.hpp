// The training attention, written once for every instruction set: included by
// training_attention_{avx512_bf16,avx512,avx2,portable}.cpp.
// Legend: an operand's words are what one multiply-add lane takes from memory: fp32 (bf16 widened,
// where two steps make a pair), or pairs of bf16 for VDPBF16PS; hdp is hd rounded up to 16, with
// zeros behind hd. Queries go in blocks of 64, keys in chunks of 512.
#pragma once

#include <cstring>
#include <initializer_list>

#include "kernels/attention_softmax.hpp"
#include "kernels/training_attention_tiles.hpp"
#include "trireme/kernels/decode_attention.hpp"

namespace trireme::kernels {
namespace {

// What both passes know of the shape.
template <class Ops>
struct Shape {
  static constexpr int64_t per_word = Packing<Ops>::per_word;
  int64_t hd, hdp, words, padded, chunk, q_stride, kv_stride, key_block;

  explicit Shape(const AttentionForward<typename Ops::Element>& a)
      : hd(a.head_dim),
        hdp(round_up(hd, 16)),
        words(hdp / per_word),
        padded(round_up(a.tokens, block_rows)),
        chunk(padded < key_chunk ? padded : key_chunk),
        q_stride(a.heads * hd),
        kv_stride(a.kv_heads * hd),
        key_block(words * block_columns) {}
};

// One row of results, `factor` times the sums.
template <class T>
TRIREME_SIMD void store_row(T* to, const float* sums, Float factor, int64_t count) {
  for (int64_t d = 0; d < count; d += width)
    simd::put(to + d, simd::load(sums + d) * factor, count - d);
}

// The first key that a query sees.
constexpr int64_t first_seen(int64_t query, int64_t window) {
  return window > 0 && query >= window ? query + 1 - window : 0;
}

// A part of the keys that a block of queries sees, within one of the chunks whose softmax is taken
// together.
struct KeyChunk {
  int64_t first, count;  // multiples of 64
  int64_t window;
  // From key `its_first` on.
  KeyChunk(int64_t its_first, int64_t reach, int64_t its_window)
      : first(its_first), count(end_of(its_first, reach) - its_first), window(its_window) {}
  static int64_t end_of(int64_t its_first, int64_t reach) {
    const int64_t end = (its_first / key_chunk + 1) * key_chunk;
    return reach < end ? reach : end;
  }
  Seen seen_by(int64_t query) const {
    const int64_t from = first_seen(query, window) - first;
    return {from > 0 ? from : 0, query + 1 - first < count ? query + 1 - first : count};
  }
};

// Where a block of queries from `query` on begins with the keys.
constexpr int64_t first_key(int64_t query, int64_t window) {
  return first_seen(query, window) / block_rows * block_rows;
}

template <class Ops>
void forward(const AttentionForward<typename Ops::Element>& a, AttentionScratch& scratch) {
  using Pack = Packing<Ops>;
  Blocks blocks(a, a.team);
  if (!blocks.left()) return;
  const Shape<Ops> s(a);
  auto* const keys = take<uint32_t>(scratch, s.padded * s.words);
  auto* const values = take<uint32_t>(scratch, s.padded / Pack::per_word * s.hdp);
  auto* const queries = take<uint32_t>(scratch, block_rows * s.words);
  auto* const probabilities = take<uint32_t>(scratch, block_rows * s.chunk / Pack::per_word);
  auto* const scores = take<float>(scratch, block_rows * s.chunk);
  auto* const out = take<float>(scratch, block_rows * s.hdp);
  auto* const of_chunk = take<float>(scratch, block_rows * s.hdp);
  pack_transposed<Ops>(a.k, s.kv_stride, a.tokens, s.hd, s.key_block, keys);
  pack_rows<Ops>(a.v, s.kv_stride, a.tokens, s.hd, s.hdp, values);
  Softmax softmax[block_rows], another[block_rows];
  for (; blocks.left(); blocks.take()) {
    const int64_t head = blocks.head(), first = blocks.first();
    const int64_t rows = a.tokens - first < block_rows ? a.tokens - first : block_rows;
    const int64_t reach = first + block_rows;  // keys that this block can see
    pack_left<Ops>(a.q + first * s.q_stride + head * s.hd, s.q_stride, rows, s.hd, s.words,
                   queries);
    const int64_t first_of_all = first_key(first, a.window);
    for (int64_t key = first_of_all; key < reach; key = KeyChunk::end_of(key, reach)) {
      const KeyChunk chunk(key, reach, a.window);
      const bool begins = key == first_of_all;
      multiply<Ops>({queries, s.words, 1},
                    {keys + key / block_columns * s.key_block, block_columns, s.key_block}, scores,
                    s.chunk, block_rows, chunk.count, s.words, false);
      for (int64_t r = 0; r < rows; ++r) {
        uint32_t* row = probabilities + r * s.chunk / Pack::per_word;
        const auto write = [&](int64_t j, Float p) __attribute__((always_inline)) {
          Pack::put(row, j, p);
        };
        (begins ? softmax : another)[r] = soften(scores + r * s.chunk, chunk.seen_by(first + r), 0,
                                                 chunk.count, Scoring{a.scale, a.cap}, write);
      }
      multiply<Ops>({probabilities, s.chunk / Pack::per_word, 1},
                    {values + key / Pack::per_word * s.hdp, s.hdp}, begins ? out : of_chunk, s.hdp,
                    block_rows, s.hdp, chunk.count / Pack::per_word, false);
      for (int64_t r = 0; !begins && r < rows; ++r)
        merge(softmax[r], out + r * s.hdp, another[r], of_chunk + r * s.hdp, s.hdp);
    }
    for (int64_t r = 0; r < rows; ++r) {
      a.log_sum_exp[(first + r) * a.heads + head] =
          softmax[r].top + __builtin_logf(softmax[r].total);
      store_row(a.out + (first + r) * s.q_stride + head * s.hd, out + r * s.hdp,
                simd::splat(1.0f / softmax[r].total), s.hd);
    }
  }
  simd::leave();
}

// Two neighbouring rows, as the words of a transposed operand: word j pairs row r and row r + 1 at
// column j. Where a word is one element they are rows as any others.
template <class Ops>
TRIREME_SIMD void put_paired(uint32_t* out, int64_t stride, int64_t r, int64_t j, Float even,
                             Float odd) {
  if constexpr (Packing<Ops>::per_word == 2) {
    const Word words = __builtin_convertvector(simd::to_bf16(even), Word) |
                       __builtin_convertvector(simd::to_bf16(odd), Word) << 16;
    std::memcpy(out + r / 2 * stride + j, &words, sizeof words);
  } else {
    Packing<Ops>::put(out, r * stride + j, even);
    Packing<Ops>::put(out, (r + 1) * stride + j, odd);
  }
}

// Inputs of one block of queries of one head in the backward pass.
template <class Ops>
struct BackwardBlock {
  using Pack = Packing<Ops>;
  uint32_t *queries, *slopes, *query_rows, *slope_rows, *paired_p, *paired_ds;
  uint32_t* ds;  // by rows: the same as paired_ds where a word is one element
  float *scores, *dp, *dq;
  float log_sum_exp[block_rows] = {}, delta[block_rows] = {};

  BackwardBlock(const Shape<Ops>& s, AttentionScratch& scratch) {
    constexpr int64_t word_rows = block_rows / Pack::per_word;
    for (uint32_t** operand : {&queries, &slopes})
      *operand = take<uint32_t>(scratch, block_rows * s.words);
    for (uint32_t** operand : {&query_rows, &slope_rows})
      *operand = take<uint32_t>(scratch, word_rows * s.hdp);
    for (uint32_t** operand : {&paired_p, &paired_ds})
      *operand = take<uint32_t>(scratch, word_rows * s.chunk);
    ds = Pack::per_word == 1 ? paired_ds : take<uint32_t>(scratch, word_rows * s.chunk);
    for (float** result : {&scores, &dp}) *result = take<float>(scratch, block_rows * s.chunk);
    dq = take<float>(scratch, block_rows * s.hdp);
  }

  void load(const AttentionBackward<typename Ops::Element>& b, const Shape<Ops>& s, int64_t head,
            int64_t first, int64_t rows) {
    const auto& a = b.forward;
    const int64_t at = first * s.q_stride + head * s.hd;
    pack_left<Ops>(a.q + at, s.q_stride, rows, s.hd, s.words, queries);
    pack_left<Ops>(b.dout + at, s.q_stride, rows, s.hd, s.words, slopes);
    std::memset(query_rows, 0,
                static_cast<size_t>(block_rows / Pack::per_word * s.hdp) * sizeof(uint32_t));
    std::memset(slope_rows, 0,
                static_cast<size_t>(block_rows / Pack::per_word * s.hdp) * sizeof(uint32_t));
    pack_rows<Ops>(a.q + at, s.q_stride, rows, s.hd, s.hdp, query_rows);
    pack_rows<Ops>(b.dout + at, s.q_stride, rows, s.hd, s.hdp, slope_rows);
    for (int64_t r = 0; r < block_rows; ++r) {
      log_sum_exp[r] = r < rows ? a.log_sum_exp[(first + r) * a.heads + head] : 0;
      delta[r] =
          r < rows ? lane_dot(a.out + at + r * s.q_stride, b.dout + at + r * s.q_stride, s.hd) : 0;
    }
  }

  // P = exp(score - lse) and dS = P * (dP - delta) * scale of a chunk of the keys, times the slope
  // of a cap, with zeros where masked.
  void probabilities(int64_t first, int64_t rows, const KeyChunk& chunk, int64_t stride,
                     const Scoring& score) {
    for (int64_t r = 0; r < block_rows; r += 2) {
      for (int64_t j = 0; j < chunk.count; j += width) {
        Float p[2], slope[2];
        for (int64_t i = 0; i < 2; ++i) {
          const Seen seen = r + i < rows ? chunk.seen_by(first + r + i) : Seen{};
          const int64_t at = (r + i) * stride + j;
          const Float s = score(simd::load(scores + at));
          const auto masked = [&](Float x) __attribute__((always_inline)) {
            return not_before(simd::below(x, j, seen.to), j, seen.from);
          };
          p[i] = masked(lanes::exp_above_zero(s - log_sum_exp[r + i]));
          slope[i] = masked(p[i] * (simd::load(dp + at) - delta[r + i]) * score.scale);
          if (score.cap > 0) slope[i] = slope[i] * (1.f - s / score.cap * (s / score.cap));
          if constexpr (Pack::per_word == 2) Pack::put(ds, at, slope[i]);
        }
        put_paired<Ops>(paired_p, stride, r, j, p[0], p[1]);
        put_paired<Ops>(paired_ds, stride, r, j, slope[0], slope[1]);
      }
    }
  }
};

// Adds what a block of queries gives to the gradients of a chunk of the keys and values.
template <class Ops>
void add_to_keys(const Blocks& blocks, const BackwardBlock<Ops>& block, const Shape<Ops>& s,
                 const KeyChunk& chunk, float* dk, float* dv) {
  constexpr int64_t word_rows = block_rows / Packing<Ops>::per_word;
  for (int64_t key = chunk.first; key < chunk.first + chunk.count;) {
    const int64_t end = end_of_turn(key, chunk.first + chunk.count, blocks.first()),
                  at = key - chunk.first;
    blocks.wait_for_keys(end);
    multiply<Ops>({block.paired_p + at, 1, s.chunk}, {block.slope_rows, s.hdp}, dv + key * s.hdp,
                  s.hdp, end - key, s.hdp, word_rows, true);
    multiply<Ops>({block.paired_ds + at, 1, s.chunk}, {block.query_rows, s.hdp}, dk + key * s.hdp,
                  s.hdp, end - key, s.hdp, word_rows, true);
    blocks.added_to_keys(end);
    key = end;
  }
}

template <class Ops>
void backward(const AttentionBackward<typename Ops::Element>& b, AttentionScratch& scratch) {
  constexpr int64_t per_word = Packing<Ops>::per_word;
  const auto& a = b.forward;
  Blocks blocks(a, a.team);
  if (!blocks.left()) return;
  const Shape<Ops> s(a);
  auto* const keys = take<uint32_t>(scratch, s.padded * s.words);
  auto* const values = take<uint32_t>(scratch, s.padded * s.words);
  auto* const key_rows = take<uint32_t>(scratch, s.padded / per_word * s.hdp);
  float* const dk = a.team ? blocks.dk() : take<float>(scratch, s.padded * s.hdp);
  float* const dv = a.team ? blocks.dv() : take<float>(scratch, s.padded * s.hdp);
  pack_transposed<Ops>(a.k, s.kv_stride, a.tokens, s.hd, s.key_block, keys);
  pack_transposed<Ops>(a.v, s.kv_stride, a.tokens, s.hd, s.key_block, values);
  pack_rows<Ops>(a.k, s.kv_stride, a.tokens, s.hd, s.hdp, key_rows);
  BackwardBlock<Ops> block(s, scratch);
  for (; blocks.left(); blocks.take()) {
    const int64_t head = blocks.head(), first = blocks.first();
    const int64_t rows = a.tokens - first < block_rows ? a.tokens - first : block_rows;
    const int64_t reach = first + block_rows, at = first * s.q_stride + head * s.hd;
    block.load(b, s, head, first, rows);
    const int64_t first_of_all = first_key(first, a.window);
    for (int64_t key = first_of_all; key < reach; key = KeyChunk::end_of(key, reach)) {
      const KeyChunk chunk(key, reach, a.window);
      const int64_t words = key / block_columns * s.key_block;
      multiply<Ops>({block.queries, s.words, 1}, {keys + words, block_columns, s.key_block},
                    block.scores, s.chunk, block_rows, chunk.count, s.words, false);
      multiply<Ops>({block.slopes, s.words, 1}, {values + words, block_columns, s.key_block},
                    block.dp, s.chunk, block_rows, chunk.count, s.words, false);
      block.probabilities(first, rows, chunk, s.chunk, {a.scale, a.cap});
      multiply<Ops>({block.ds, s.chunk / per_word, 1}, {key_rows + key / per_word * s.hdp, s.hdp},
                    block.dq, s.hdp, block_rows, s.hdp, chunk.count / per_word, key > first_of_all);
      add_to_keys(blocks, block, s, chunk, dk, dv);
    }
    for (int64_t r = 0; r < rows; ++r)
      store_row(b.dq + at + r * s.q_stride, block.dq + r * s.hdp, simd::splat(1.0f), s.hd);
    if (!blocks.last()) continue;
    for (int64_t token = 0; token < a.tokens; ++token) {
      store_row(b.dk + token * s.kv_stride, dk + token * s.hdp, simd::splat(1.0f), s.hd);
      store_row(b.dv + token * s.kv_stride, dv + token * s.hdp, simd::splat(1.0f), s.hd);
    }
  }
  simd::leave();
}

}  // namespace
}  // namespace trireme::kernels
