#include "torch/torch.hpp"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cstring>

#include "model/packed_attention.hpp"
#include "support/instruction_sets.hpp"
#include "trireme/kernels/decode_attention.hpp"

namespace trireme::test {
namespace {

using namespace kernels;

std::string text_of(ElementType type) { return type == ElementType::f32 ? "fp32" : "bf16"; }

// Pages of one KV head filled with k and v [S, hd].
struct Cache {
  std::vector<std::vector<std::byte>> pages;
  std::vector<const std::byte*> starts;
  int64_t tiles = 1;

  Cache(ElementType type, const at::Tensor& k, const at::Tensor& v, int64_t page_size)
      : tiles(page_size / tile_tokens) {
    const int64_t s = k.size(0), hd = k.size(1), bytes = static_cast<int64_t>(size_of(type));
    for (int64_t first = 0; first < s; first += page_size) {
      pages.emplace_back(static_cast<size_t>(tiles * tile_elements(hd) * bytes), std::byte{0});
      starts.push_back(pages.back().data());
    }
    for (int64_t i = 0; i < s; ++i) {
      std::byte* tile = pages[static_cast<size_t>(i / page_size)].data() +
                        i % page_size / tile_tokens * tile_elements(hd) * bytes;
      store_kv(type, tile, i, k.select(0, i).const_data_ptr(), v.select(0, i).const_data_ptr(), hd);
    }
  }
};

// q and out [R, G, hd].
AttentionArguments arguments(ElementType type, const at::Tensor& q, const at::Tensor& out,
                             const Cache& cache, int64_t keys) {
  AttentionArguments a;
  a.type = type;
  a.pages = cache.starts.data();
  a.tiles_per_page = cache.tiles;
  a.keys = keys;
  a.rows = q.size(0);
  a.row_stride = q.stride(0);
  a.q = q.const_data_ptr();
  a.out = out.mutable_data_ptr();
  a.group = q.size(1);
  a.head_dim = q.size(2);
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(q.size(2))));
  return a;
}

// One position: q [G, hd].
at::Tensor attend_paged(ElementType type, const at::Tensor& q, const Cache& cache, int64_t keys) {
  const at::Tensor out = at::empty_like(q);
  attend(arguments(type, q.unsqueeze(0), out.unsqueeze(0), cache, keys));
  return out;
}

void expect_softmax_attention(ElementType type, int64_t hd, int64_t group) {
  const auto dtype = type == ElementType::f32 ? at::kFloat : at::kBFloat16;
  const int64_t s = 1030;
  const at::Tensor k = at::randn({s, hd}).to(dtype), v = at::randn({s, hd}).to(dtype),
                   q = (at::randn({group, hd}) * 2).to(dtype);
  const Cache cache(type, k, v, 16);
  for (const int64_t keys : {1, 15, 16, 17, 255, 256, 257, 511, 512, 513, 1030}) {
    const at::Tensor kd = k.narrow(0, 0, keys).to(at::kDouble),
                     vd = v.narrow(0, 0, keys).to(at::kDouble);
    const at::Tensor weights =
        at::softmax(at::matmul(q.to(at::kDouble), kd.t()) / std::sqrt(static_cast<double>(hd)), -1);
    const double error = at::max(at::abs(attend_paged(type, q, cache, keys).to(at::kDouble) -
                                         at::matmul(weights, vd)))
                             .item<double>();
    EXPECT_LT(error, type == ElementType::f32 ? 5e-6 : 1.6e-2)
        << base::to_string(base::active_isa()) << ", hd " << hd << " group " << group << " keys "
        << keys;
  }
}

TEST(DecodeAttention, IsSoftmaxAttentionForAllShapes) {
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    for (const auto type : {ElementType::f32, ElementType::bf16}) {
      for (const int64_t hd : {16, 64, 80, 25, 128}) {
        for (const int64_t group : {1, 2, 3, 4, 7, 8}) expect_softmax_attention(type, hd, group);
      }
    }
  }
}

// One KV head with `group` query heads: every query of a text of S tokens against the training
// kernel's.
void expect_training_bits(ElementType type, int64_t hd, int64_t group) {
  const auto dtype = type == ElementType::f32 ? at::kFloat : at::kBFloat16;
  const int64_t s = 150;
  const at::Tensor q = (at::randn({s, group, hd}) * 2).to(dtype),
                   k = at::randn({s, 1, hd}).to(dtype), v = at::randn({s, 1, hd}).to(dtype);
  const at::Tensor want =
      model::attend_packed(q, k, v, 1 / std::sqrt(static_cast<double>(hd)), {0, s});
  const Cache cache(type, k.squeeze(1), v.squeeze(1), 32);
  for (const int64_t position :
       {0, 1, 2, 14, 15, 16, 17, 31, 32, 62, 63, 64, 65, 100, 127, 128, 149}) {
    const at::Tensor got =
        attend_paged(type, q.select(0, position).contiguous(), cache, position + 1);
    EXPECT_TRUE(at::equal(got, want.select(0, position)))
        << text_of(type) << ", head size " << hd << ", " << group << " heads, position " << position
        << ", " << base::to_string(base::active_isa());
  }
}

TEST(DecodeAttention, GivesTheBitsOfTheTrainingKernelOnEveryInstructionSet) {
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    for (const auto type : {ElementType::f32, ElementType::bf16}) {
      for (const int64_t hd : {16, 64, 80, 128, 20, 25}) {
        for (const int64_t group : {1, 2, 3, 4, 7}) expect_training_bits(type, hd, group);
      }
    }
  }
}

// Neighbouring positions together, and chunks of keys in any order, give the bits of one position
// at a time; around the ends of chunks the training kernel's.
void expect_shared_bits(ElementType type, int64_t hd, int64_t group, int64_t window = 0,
                        double cap = 0) {
  const auto dtype = type == ElementType::f32 ? at::kFloat : at::kBFloat16;
  const int64_t s = 1060;
  const at::Tensor q = (at::randn({s, group, hd}) * 2).to(dtype),
                   k = at::randn({s, 1, hd}).to(dtype), v = at::randn({s, 1, hd}).to(dtype);
  const at::Tensor want =
      model::attend_packed(q, k, v, {1 / std::sqrt(static_cast<double>(hd)), window, cap}, {0, s});
  const Cache cache(type, k.squeeze(1), v.squeeze(1), 32);
  for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 5},
                                    {500, 16},
                                    {511, 1},
                                    {512, 2},
                                    {505, 7},
                                    {506, 31},
                                    {1020, 16},
                                    {1024, 1},
                                    {1050, 10}}) {
    const at::Tensor queries = q.narrow(0, first, rows), expected = want.narrow(0, first, rows),
                     out = at::empty_like(queries);
    AttentionArguments a = arguments(type, queries, out, cache, first + 1);
    a.window = window;
    a.cap = static_cast<float>(cap);
    // Pages that the window has passed are not there.
    std::vector<const std::byte*> starts = cache.starts;
    for (int64_t page = 0; (page + 1) * 32 <= a.first_seen(0); ++page)
      starts[static_cast<size_t>(page)] = nullptr;
    a.pages = starts.data();
    const std::string about = text_of(type) + ", head size " + std::to_string(hd) + ", " +
                              std::to_string(group) + " heads, window " + std::to_string(window) +
                              ", from " + std::to_string(first) + ", " +
                              base::to_string(base::active_isa());
    attend(a);
    EXPECT_TRUE(at::equal(out, expected)) << about;
    out.zero_();
    std::vector<float> parts(static_cast<size_t>(a.chunks() * part_floats(rows, group, hd)),
                             std::nanf(""));
    for (int64_t chunk = a.chunks() - 1; chunk >= 0; --chunk) attend_chunk(a, chunk, parts.data());
    merge_chunks(a, parts.data());
    EXPECT_TRUE(at::equal(out, expected)) << about << ", in parts";
  }
}

TEST(DecodeAttention, PositionsTogetherAndChunksApartGiveTheSameBits) {
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    for (const auto type : {ElementType::f32, ElementType::bf16}) {
      for (const auto& [hd, group] : {std::pair(64, 3), std::pair(64, 1), std::pair(16, 6),
                                      std::pair(25, 2), std::pair(128, 4)}) {
        expect_shared_bits(type, hd, group);
      }
    }
  }
}

TEST(DecodeAttention, WindowsAndCapsGiveTheBitsOfTheTrainingKernel) {
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    for (const auto type : {ElementType::f32, ElementType::bf16}) {
      for (const int64_t window : {1, 7, 64, 500, 513, 1100})
        expect_shared_bits(type, 25, 3, window);
      expect_shared_bits(type, 64, 2, 0, 2.0);
      expect_shared_bits(type, 16, 4, 40, 1.5);
    }
  }
}

// fp32 has two sets of bits: products added with one rounding, and with two. bf16 has one.
TEST(DecodeAttention, EveryInstructionSetGivesTheSameBits) {
  for (const auto type : {ElementType::f32, ElementType::bf16}) {
    const auto dtype = type == ElementType::f32 ? at::kFloat : at::kBFloat16;
    const at::Tensor k = at::randn({1201, 80}).to(dtype), v = at::randn({1201, 80}).to(dtype),
                     q = (at::randn({5, 80}) * 2).to(dtype);
    const Cache cache(type, k, v, 32);
    for (const int64_t keys : {1, 2, 16, 33, 200, 201, 513, 1201}) {
      at::Tensor want[2];
      for (const auto isa : usable_instruction_sets()) {
        const UnderInstructionSet use(isa);
        at::Tensor& first = want[type == ElementType::f32 && !products_are_fused()];
        const at::Tensor got = attend_paged(type, q, cache, keys);
        if (!first.defined()) first = got;
        EXPECT_TRUE(at::equal(got, first)) << base::to_string(isa) << ", " << keys << " keys";
      }
    }
  }
}

TEST(DecodeAttention, PageSizesAndHeadsBesideDoNotChangeABit) {
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    const at::Tensor k = at::randn({600, 64}), v = at::randn({600, 64}), q = at::randn({7, 64});
    const Cache small(ElementType::f32, k, v, 16), large(ElementType::f32, k, v, 256);
    const at::Tensor all = attend_paged(ElementType::f32, q, small, 600);
    EXPECT_TRUE(at::equal(all, attend_paged(ElementType::f32, q, large, 600)));
    for (int64_t g = 0; g < 7; ++g) {
      EXPECT_TRUE(
          at::equal(all.narrow(0, g, 1),
                    attend_paged(ElementType::f32, q.narrow(0, g, 1).contiguous(), small, 600)));
    }
  }
}

TEST(DecodeAttention, WhatLiesBehindTheLastKeyIsNotRead) {
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    for (const auto type : {ElementType::f32, ElementType::bf16}) {
      const auto dtype = type == ElementType::f32 ? at::kFloat : at::kBFloat16;
      const at::Tensor k = at::randn({40, 16}).to(dtype), v = at::randn({40, 16}).to(dtype),
                       q = at::randn({2, 16}).to(dtype);
      at::Tensor k2 = k.clone(), v2 = v.clone();
      k2.narrow(0, 21, 19).fill_(std::nanf(""));
      v2.narrow(0, 21, 19).fill_(std::nanf(""));
      const Cache a(type, k, v, 16), b(type, k2, v2, 16);
      EXPECT_TRUE(at::equal(attend_paged(type, q, a, 21), attend_paged(type, q, b, 21)))
          << base::to_string(isa);
    }
  }
}

}  // namespace
}  // namespace trireme::test
