#include "trireme/kernels/decode_attention.hpp"

#include <vector>

#include "kernels/decode_attention_kernels.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/isa.hpp"

namespace trireme::kernels {
namespace {

// Keys: words of neighbouring d, [hd / per_word][16 positions]; values: words of neighbouring
// positions, [16 / per_word][hd padded].
template <class T>
void store(T* tile, int64_t slot, const T* k, const T* v, int64_t head_dim) {
  constexpr int64_t per_word = 4 / static_cast<int64_t>(sizeof(T));
  for (int64_t d = 0; d < head_dim; ++d)
    tile[(d / per_word * tile_tokens + slot) * per_word + d % per_word] = k[d];
  T* values = tile + padded_keys(head_dim) * tile_tokens +
              slot / per_word * padded_head(head_dim) * per_word + slot % per_word;
  for (int64_t d = 0; d < head_dim; ++d) values[d * per_word] = v[d];
}

// Kept by each thread, the sums as large as the largest call so far. In this file, so that no code
// for a newer CPU gets into std::vector's functions.
DecodeScratch scratch_of_thread(const AttentionArguments& a) {
  alignas(64) thread_local float scores[max_group * key_chunk];
  alignas(64) thread_local uint32_t probabilities[max_group * key_chunk];
  thread_local std::vector<float> sums;
  const auto part = static_cast<size_t>(part_floats(a.rows, a.group, a.head_dim));
  if (sums.size() < 2 * part) sums.resize(2 * part);
  return {scores, probabilities, sums.data(), sums.data() + part};
}

const DecodeAttention& kernels_of(const AttentionArguments& a) {
  EXPECT(a.head_dim <= max_head_dim && a.keys > 0);
  const bool f32 = a.type == ElementType::f32;
#if defined(__x86_64__)
  const base::Isa isa = base::active_isa();
  if (isa == base::Isa::avx512_bf16 && !f32) return decode_bf16_avx512_bf16;
  if (isa >= base::Isa::avx512) return f32 ? decode_f32_avx512 : decode_bf16_avx512;
  if (isa == base::Isa::avx2) return f32 ? decode_f32_avx2 : decode_bf16_avx2;
#endif
  return f32 ? decode_f32_portable : decode_bf16_portable;
}

}  // namespace

int64_t largest_head_dim() { return max_head_dim; }

void store_kv(ElementType type, void* tile, int64_t position, const void* k, const void* v,
              int64_t head_dim) {
  const int64_t slot = position % tile_tokens;
  if (type == ElementType::f32) {
    store(static_cast<float*>(tile), slot, static_cast<const float*>(k),
          static_cast<const float*>(v), head_dim);
  } else {
    store(static_cast<uint16_t*>(tile), slot, static_cast<const uint16_t*>(k),
          static_cast<const uint16_t*>(v), head_dim);
  }
}

void attend(const AttentionArguments& a) { kernels_of(a).attend(a, scratch_of_thread(a)); }
void attend_chunk(const AttentionArguments& a, int64_t chunk, float* parts) {
  kernels_of(a).chunk(a, chunk, parts, scratch_of_thread(a));
}
void merge_chunks(const AttentionArguments& a, float* parts) { kernels_of(a).merge(a, parts); }

}  // namespace trireme::kernels
