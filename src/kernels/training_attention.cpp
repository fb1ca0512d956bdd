#include "trireme/kernels/training_attention.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/training_attention_kernels.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/isa.hpp"

namespace trireme::kernels {
namespace {

const TrainingAttention<float>& training_f32() {
#if defined(__x86_64__)
  if (base::active_isa() >= base::Isa::avx512) return attention_f32_avx512;
  if (base::active_isa() == base::Isa::avx2) return attention_f32_avx2;
#endif
  return attention_f32_portable;
}

const TrainingAttention<uint16_t>& training_bf16() {
#if defined(__x86_64__)
  if (base::active_isa() == base::Isa::avx512_bf16) return attention_bf16_avx512_bf16;
  if (base::active_isa() == base::Isa::avx512) return attention_bf16_avx512;
  if (base::active_isa() == base::Isa::avx2) return attention_bf16_avx2;
#endif
  return attention_bf16_portable;
}

}  // namespace

AttentionTeam::AttentionTeam(int64_t tokens, int64_t heads_of_group)
    : added_(static_cast<size_t>(heads_of_group * base::ceil_div(tokens, attention_block)), 0) {}
AttentionTeam::AttentionTeam(int64_t tokens, int64_t heads_of_group, int64_t head_dim)
    : AttentionTeam(tokens, heads_of_group) {
  dk_.resize(static_cast<size_t>(base::round_up(tokens, attention_block) *
                                 base::round_up<int64_t>(head_dim, 16)),
             0.f);
  dv_ = dk_;
}
AttentionTeam::Shared AttentionTeam::shared() {
  return {&next_, added_.data(), dk_.data(), dv_.data()};
}

AttentionScratch::~AttentionScratch() {
  for (int i = 0; i < count_; ++i) std::free(parts_[i]);
}

void* AttentionScratch::zeroed(int64_t bytes) {
  EXPECT(count_ < most);
  const size_t whole = (static_cast<size_t>(bytes) + 63) / 64 * 64;
  void* const part = std::aligned_alloc(64, std::max<size_t>(whole, 64));
  if (part == nullptr) throw std::bad_alloc();
  parts_[count_++] = part;
  return std::memset(part, 0, whole);
}

void attention_forward(const AttentionForward<float>& a) {
  AttentionScratch scratch;
  training_f32().forward(a, scratch);
}
void attention_forward(const AttentionForward<uint16_t>& a) {
  AttentionScratch scratch;
  training_bf16().forward(a, scratch);
}
void attention_backward(const AttentionBackward<float>& a) {
  AttentionScratch scratch;
  training_f32().backward(a, scratch);
}
void attention_backward(const AttentionBackward<uint16_t>& a) {
  AttentionScratch scratch;
  training_bf16().backward(a, scratch);
}

}  // namespace trireme::kernels
