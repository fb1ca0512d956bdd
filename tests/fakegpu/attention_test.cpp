// The CUDA kernel of attention over pages, thread by thread on fibers (blocks.hpp), against double:
// any length, page table and head size, values that are not finite, in several orders of threads
// and blocks.
#include <gmock/gmock.h>

#include "fakegpu/blocks.hpp"
#include "fakegpu/fake_gpu.hpp"
#include "trireme/kernels/device_kernels.hpp"
#include "unit/kernels/attention_cases.hpp"

namespace trireme::kernels {
namespace {

constexpr float infinite = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

class PagedAttentionInBlocks : public testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override {
    enable_device_kernels();
    fakegpu::set_delays({.legacy_us = 0, .others_us = 0});
    fakegpu::set_block_order({.seed = GetParam()});
  }
  void TearDown() override { set_device_kernels(nullptr); }

  template <class T>
  static AttentionStep<T> attended(AttentionStep<T> step) {
    device_kernels()->attend_pages(step.arguments());
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    EXPECT_THAT(fakegpu::take_findings(), testing::IsEmpty());
    return step;
  }

  template <class T>
  static void any_length() {
    for (const AttentionShape& shape : attention_shapes()) {
      AttentionStep<T> step = attended(AttentionStep<T>(shape, attention_lengths(), GetParam()));
      EXPECT_EQ(step.wrong(), 0) << shape.heads << " heads of " << shape.head_dim << ", "
                                 << shape.kv_heads << " of keys, pages of " << shape.page_size;
    }
    EXPECT_EQ(attended(AttentionStep<T>({2, 1, 8, 16}, {})).wrong(), 0);
  }

  template <class T>
  static void alone_and_beside_others() {
    const AttentionShape shape{7, 1, 64, 16};
    const AttentionStep<T> all =
        attended(AttentionStep<T>(shape, {300, 1, 129, 16, 300}, GetParam()));
    for (const auto& [place, length] : {std::pair{0, 300}, {1, 1}, {2, 129}, {3, 16}, {4, 300}}) {
      EXPECT_TRUE(all.same_bits(place, attended(AttentionStep<T>(shape, {length}, 9)), 0))
          << length << " keys";
    }
  }

  template <class T>
  static void not_finite() {
    const AttentionShape shape{4, 2, 16, 16};
    for (const float odd : {nan, infinite, -infinite}) {
      for (const int64_t position : {0, 40, 130, 299}) {
        AttentionStep<T> of_key(shape, {300, 20}), of_value = of_key, of_query = of_key;
        of_key.key(0, position, 1)[3] = narrow<T>(odd);
        of_value.value(0, position, 1)[3] = narrow<T>(odd);
        of_query.q[static_cast<size_t>((of_query.query[0].row * 4 + 1) * 16 + 5)] = narrow<T>(odd);
        for (AttentionStep<T>* step : {&of_key, &of_value, &of_query})
          EXPECT_EQ(attended(*step).wrong(), 0) << odd << " at " << position;
      }
    }
    // A whole chunk that nobody looks at: all of its scores are -inf.
    AttentionStep<T> step({1, 1, 2, 16}, {300});
    step.q[static_cast<size_t>(step.query[0].row * 2)] = narrow<T>(1.f);
    for (int64_t position = 128; position < 256; ++position)
      step.key(0, position, 0)[0] = narrow<T>(-infinite);
    EXPECT_EQ(attended(std::move(step)).wrong(), 0);
  }
};

TEST_P(PagedAttentionInBlocks, AnyLengthAndPageTable) {
  any_length<float>();
  any_length<uint16_t>();
}

TEST_P(PagedAttentionInBlocks, BitsDependOnWhatAQuerySeesAlone) {
  alone_and_beside_others<float>();
  alone_and_beside_others<uint16_t>();
}

TEST_P(PagedAttentionInBlocks, ValuesThatAreNotFinite) {
  not_finite<float>();
  not_finite<uint16_t>();
}

// Two passes over the heads. One sequence has scores beside which those of the other vanish, so
// that a maximum of the wrong ones is seen.
TEST_P(PagedAttentionInBlocks, NoBarrierCanBeLeftOut) {
  AttentionStep<float> step({9, 1, 64, 16}, {300, 40});
  for (int64_t e = 0; e < 9 * 64; ++e)
    step.q[static_cast<size_t>(step.query[0].row * 9 * 64 + e)] *= 100;
  constexpr double rounding = 100;
  EXPECT_EQ(attended(step).wrong(rounding), 0);
  const int barriers = fakegpu::most_barriers();
  EXPECT_EQ(barriers, 10);
  for (int left_out = 0; left_out < barriers; ++left_out) {
    int64_t wrong = 0;
    for (unsigned seed = 1; seed <= 20 && wrong == 0; ++seed) {
      fakegpu::set_block_order({.seed = seed, .left_out = left_out});
      wrong += attended(step).wrong(rounding);
    }
    EXPECT_GT(wrong, 0) << "barrier " << left_out;
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, PagedAttentionInBlocks, testing::Values(1u, 2u));

}  // namespace
}  // namespace trireme::kernels
