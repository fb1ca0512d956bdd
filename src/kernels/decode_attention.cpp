#include "trireme/kernels/decode_attention.hpp"

#include <vector>

#include "kernels/decode_attention_kernels.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/isa.hpp"

namespace trireme::kernels {
namespace {

// Keys: words of neighbouring d, [hd / per_word][16 positions]; values: words of neighbouring positions,
// [16 / per_word][hd padded].
template <class T>
void store(T* tile, int64_t slot, const T* k, const T* v, int64_t head_dim) {
  constexpr int64_t per_word = 4 / static_cast<int64_t>(sizeof(T));
  for (int64_t d = 0; d < head_dim; ++d) tile[(d / per_word * tile_tokens + slot) * per_word + d % per_word] = k[d];
  T* values = tile + padded_keys(head_dim) * tile_tokens + slot / per_word * padded_head(head_dim) * per_word + slot % per_word;
  for (int64_t d = 0; d < head_dim; ++d) values[d * per_word] = v[d];
}

// Kept by each thread, as long as the longest text so far. In this file, so that no code for a newer CPU gets into
// std::vector's functions.
AttentionRows rows_of_thread(int64_t keys) {
  thread_local std::vector<float> scores;
  thread_local std::vector<uint32_t> probabilities;
  const int64_t stride = (keys + 2 * tile_tokens - 1) / (2 * tile_tokens) * (2 * tile_tokens);
  const auto size = static_cast<size_t>(max_group * stride);
  if (scores.size() < size) {
    scores.resize(size);
    probabilities.resize(size);
  }
  return {scores.data(), probabilities.data(), stride};
}

using AttendFunction = void (*)(const AttentionArguments&, const AttentionRows&);

AttendFunction attend_function(ElementType type, base::Isa isa) {
  const bool f32 = type == ElementType::f32;
#if defined(__x86_64__)
  if (isa == base::Isa::avx512_bf16 && !f32) return attend_bf16_avx512_bf16;
  if (isa >= base::Isa::avx512) return f32 ? attend_f32_avx512 : attend_bf16_avx512;
  if (isa == base::Isa::avx2) return f32 ? attend_f32_avx2 : attend_bf16_avx2;
#endif
  return f32 ? attend_f32_portable : attend_bf16_portable;
}

}  // namespace

int64_t largest_head_dim() { return max_head_dim; }

void store_kv(ElementType type, void* tile, int64_t position, const void* k, const void* v, int64_t head_dim) {
  const int64_t slot = position % tile_tokens;
  if (type == ElementType::f32) {
    store(static_cast<float*>(tile), slot, static_cast<const float*>(k), static_cast<const float*>(v), head_dim);
  } else {
    store(static_cast<uint16_t*>(tile), slot, static_cast<const uint16_t*>(k), static_cast<const uint16_t*>(v), head_dim);
  }
}

void attend(const AttentionArguments& arguments) {
  EXPECT(arguments.head_dim <= max_head_dim && arguments.keys > 0);
  attend_function(arguments.type, base::active_isa())(arguments, rows_of_thread(arguments.keys));
}

}  // namespace trireme::kernels
