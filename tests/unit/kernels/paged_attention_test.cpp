// Attention over pages as GPUs do it (paged_attention_functors.hpp), by one thread, by four that
// make a team, and by Kokkos' host space, against double.
#include "kernels/paged_attention_functors.hpp"

#include <gtest/gtest.h>

#include "unit/kernels/attention_cases.hpp"
#include "unit/kernels/teams.hpp"

namespace trireme::kernels {
namespace {

template <int most_heads, class T, class Run>
AttentionStep<T> attended(AttentionStep<T> step, const Run& run) {
  const PagedAttention a = step.arguments();
  run(a.chunks * a.kv_heads, AttendChunk<T, most_heads>{a});
  run(a.queries * a.heads, JoinChunks<T>{a});
  return step;
}

template <int most_heads, class T, class Run>
void check_shape(const AttentionShape& shape, const Run& run) {
  AttentionStep<T> step = attended<most_heads>(AttentionStep<T>(shape, {1, 17, 128, 300}), run);
  EXPECT_EQ(step.wrong(), 0) << shape.heads << " heads of " << shape.head_dim << ", " << most_heads
                             << " in a pass";
}

// Heads that fill a pass, more and fewer; sizes of a head that no 16 bytes hold, that fill a slab
// of 128, half of it, less, and more than one.
template <class T, class Run>
void check_attention(const Run& run) {
  check_shape<2, T>({6, 3, 16, 16}, run);
  check_shape<8, T>({9, 1, 20, 32}, run);
  check_shape<4, T>({3, 1, 64, 16}, run);
  check_shape<4, T>({8, 2, 128, 16}, run);
  check_shape<1, T>({2, 2, 160, 16}, run);
  check_shape<1, T>({2, 2, 6, 16}, run);
}

// The same whoever computes it, and alone or beside others in other pages.
template <class T>
void check_bits() {
  const AttentionShape shape{9, 1, 20, 32};
  const auto one = [](int64_t teams, const auto& functor) { by_one(teams, functor); };
  const auto four = [](int64_t teams, const auto& functor) { by_four(teams, functor); };
  const auto want = attended<8>(AttentionStep<T>(shape, {300, 5, 129}), one),
             got = attended<8>(AttentionStep<T>(shape, {300, 5, 129}), four);
  for (int64_t i = 0; i < 3; ++i) EXPECT_TRUE(want.same_bits(i, got, i)) << i;
  EXPECT_TRUE(want.same_bits(2, attended<8>(AttentionStep<T>(shape, {129}, 5), one), 0));
}

TEST(PagedAttention, ByOneThread) {
  check_attention<float>([](int64_t teams, const auto& functor) { by_one(teams, functor); });
  check_attention<uint16_t>([](int64_t teams, const auto& functor) { by_one(teams, functor); });
}

TEST(PagedAttention, ByThreadsThatShareATeam) {
  check_attention<float>([](int64_t teams, const auto& functor) { by_four(teams, functor); });
  check_attention<uint16_t>([](int64_t teams, const auto& functor) { by_four(teams, functor); });
}

TEST(PagedAttention, BitsDependOnWhatAQuerySeesAlone) {
  check_bits<float>();
  check_bits<uint16_t>();
}

}  // namespace

// In scan_test.cpp, where Kokkos is started.
void check_paged_attention_by_exec() {
  check_attention<float>(
      [](int64_t teams, const auto& functor) { exec::for_each_team("test", teams, functor); });
  check_attention<uint16_t>(
      [](int64_t teams, const auto& functor) { exec::for_each_team("test", teams, functor); });
}

}  // namespace trireme::kernels
