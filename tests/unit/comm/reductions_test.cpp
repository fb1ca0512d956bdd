// Collectives on numbers against a loop over all ranks' data, which every rank knows by formula:
// each type, operation and count, in one MPI call and cut into pieces as counts beyond MPI's int
// are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "comm/mpi_support.hpp"
#include "support/world.hpp"

namespace trireme::comm {
namespace {

using test::world;
using testing::HasSubstr;

constexpr int64_t one_call = int64_t{1} << 30;
constexpr int64_t small_pieces = 7;

// Pieces of at most so many elements while it lives.
class PieceLimit {
 public:
  explicit PieceLimit(int64_t elements) : before_(max_count) { max_count = elements; }
  ~PieceLimit() { max_count = before_; }
  PieceLimit(const PieceLimit&) = delete;

 private:
  int64_t before_;
};

// Element i of a rank. Sums over four ranks are exact in every type, so no order of addition
// matters. (A sum of u8 that overflows wraps around or saturates in Open MPI 4.1, by its length.)
template <class T>
T value(int rank, int64_t i) {
  const uint64_t mixed =
      (static_cast<uint64_t>(i) * 977 + static_cast<uint64_t>(rank) * 7919 + 13) *
          0x9E3779B97F4A7C15u >>
      40;
  if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>(static_cast<int>(mixed % 4001) - 2000) / 4;
  if constexpr (sizeof(T) == 8) return static_cast<T>(mixed << 33);
  if constexpr (sizeof(T) == 1) return static_cast<T>(mixed % 64);
  return static_cast<T>(mixed);
}

template <class T>
T combine(T a, T b, Op op) {
  switch (op) {
    case Op::sum: return static_cast<T>(a + b);
    case Op::min: return b < a ? b : a;
    case Op::max: return a < b ? b : a;
    case Op::bit_or:
      if constexpr (std::is_integral_v<T>) return static_cast<T>(a | b);
  }
  ADD_FAILURE() << "no such operation on this type";
  return a;
}

template <class T>
T over_all_ranks(int64_t i, Op op) {
  T out = value<T>(0, i);
  for (int rank = 1; rank < world().size(); ++rank) out = combine(out, value<T>(rank, i), op);
  return out;
}

template <class T>
std::vector<T> values_of(int rank, int64_t count) {
  std::vector<T> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(value<T>(rank, i));
  return out;
}

template <class T>
class Numbers : public testing::Test {
 protected:
  static std::vector<Op> operations() {
    if constexpr (std::is_integral_v<T>) return {Op::sum, Op::min, Op::max, Op::bit_or};
    return {Op::sum, Op::min, Op::max};
  }
  // Every combination of piece limit and element count.
  template <class Body>
  static void for_counts(Body body) {
    for (const int64_t limit : {one_call, small_pieces}) {
      const PieceLimit pieces(limit);
      for (const int64_t count : {0, 1, 6, 7, 8, 14, 257}) {
        SCOPED_TRACE(testing::Message() << count << " elements in pieces of " << limit);
        body(count);
      }
    }
  }
};
using Types = testing::Types<uint8_t, int32_t, int64_t, uint64_t, float, double>;
TYPED_TEST_SUITE(Numbers, Types);

TYPED_TEST(Numbers, AllReduceIsTheLoopOverRanks) {
  this->for_counts([&](int64_t count) {
    for (const Op op : this->operations()) {
      auto data = values_of<TypeParam>(world().rank(), count);
      world().all_reduce(data.data(), count, dtype_of<TypeParam>(), op);
      for (int64_t i = 0; i < count; ++i)
        ASSERT_EQ(data[static_cast<size_t>(i)], over_all_ranks<TypeParam>(i, op))
            << static_cast<int>(op) << " at " << i;
    }
  });
}

TYPED_TEST(Numbers, AllGatherBringsEverySliceToItsPlace) {
  this->for_counts([&](int64_t count) {
    std::vector<TypeParam> all(static_cast<size_t>(count * world().size()), TypeParam{1});
    std::vector<TypeParam> want;
    for (int rank = 0; rank < world().size(); ++rank) {
      for (int64_t i = 0; i < count; ++i) want.push_back(value<TypeParam>(rank, i));
    }
    const auto first = static_cast<std::ptrdiff_t>(world().rank() * count);
    std::copy_n(want.begin() + first, count, all.begin() + first);
    world().all_gather_in_place(all.data(), count, dtype_of<TypeParam>());
    ASSERT_EQ(all, want);
  });
}

TYPED_TEST(Numbers, BroadcastFromEveryRoot) {
  this->for_counts([&](int64_t count) {
    for (int root = 0; root < world().size(); ++root) {
      auto data = values_of<TypeParam>(world().rank(), count);
      world().broadcast(data.data(), count, dtype_of<TypeParam>(), root);
      ASSERT_EQ(data, values_of<TypeParam>(root, count)) << "root " << root;
    }
  });
}

// ---- bf16: the upper half of a float ----

uint16_t bits_of(float value) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}
float float_of(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// The sum of one value from rank 0, one from the last rank and zeros: exact in fp32, rounded once.
float sum_of_two(float first, float last) {
  float mine = world().rank() == 0 ? first : 0;
  if (world().rank() == world().size() - 1) mine += last;
  uint16_t bits = bits_of(mine);
  world().all_reduce(&bits, 1, DType::bf16, Op::sum);
  return float_of(bits);
}

TEST(Bf16Sums, RoundToNearestEven) {
  if (world().size() == 1) GTEST_SKIP() << "nothing is added";
  constexpr float ulp = 0x1p-7f;  // of values in [1, 2)
  EXPECT_EQ(sum_of_two(1, ulp / 2), 1) << "a tie goes to the even neighbour";
  EXPECT_EQ(sum_of_two(1 + ulp, ulp / 2), 1 + 2 * ulp);
  EXPECT_EQ(sum_of_two(1, ulp * 0.75f), 1 + ulp);
  EXPECT_EQ(sum_of_two(1, ulp * 0.25f), 1);
  EXPECT_EQ(sum_of_two(-1, -ulp / 2), -1);
  EXPECT_EQ(sum_of_two(0x1p-133f, 0x1p-133f), 0x1p-132f) << "subnormal numbers stay";
}

TEST(Bf16Sums, InfinityAndNaN) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float largest = float_of(0x7F7F);
  if (world().size() > 1) {
    EXPECT_EQ(sum_of_two(largest, largest), infinity);
    EXPECT_TRUE(std::isnan(sum_of_two(infinity, -infinity)));
  }
  EXPECT_EQ(sum_of_two(-infinity, 0), -infinity);
  EXPECT_TRUE(std::isnan(sum_of_two(std::numeric_limits<float>::quiet_NaN(), 0)));
  EXPECT_TRUE(std::isnan(sum_of_two(float_of(0x7F81), 0)))
      << "a payload in the low bits must not become infinity";
}

TEST(Bf16Sums, AreTheSameEverywhereAndOneRoundingAPairOff) {
  constexpr int64_t count = 999;
  const auto element = [](int rank, int64_t i) {
    return float_of(bits_of(value<float>(rank, i) * 0.37f));
  };
  for (const int64_t limit : {one_call, small_pieces}) {
    const PieceLimit pieces(limit);
    std::vector<uint16_t> sums;
    for (int64_t i = 0; i < count; ++i) sums.push_back(bits_of(element(world().rank(), i)));
    world().all_reduce(sums.data(), count, DType::bf16, Op::sum);
    for (int64_t i = 0; i < count; ++i) {
      double exact = 0;
      double magnitude = 0;
      for (int rank = 0; rank < world().size(); ++rank)
        exact += element(rank, i), magnitude += std::abs(element(rank, i));
      ASSERT_LE(std::abs(float_of(sums[static_cast<size_t>(i)]) - exact),
                (world().size() - 1) * 0x1p-8 * 1.01 * magnitude)
          << i;
    }
    const auto* bytes = reinterpret_cast<const char*>(sums.data());
    for (const auto& other : world().all_gather({bytes, sums.size() * 2}))
      EXPECT_EQ(other, std::string(bytes, sums.size() * 2));
  }
}

// ---- what cannot be ----

std::string refusal(DType type, Op op) {
  uint64_t word = 0;
  try {
    world().all_reduce(&word, 1, type, op);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::internal);
    return error.what();
  }
  return "";
}

TEST(Reductions, WhatHasNoMeaningIsAnErrorThatNamesTheCall) {
  for (const Op op : {Op::min, Op::max, Op::bit_or})
    EXPECT_THAT(refusal(DType::bf16, op), HasSubstr("bf16 has sums only"));
  for (const DType type : {DType::f32, DType::f64})
    EXPECT_THAT(refusal(type, Op::bit_or), HasSubstr("MPI_Allreduce"));
  EXPECT_EQ(world().sum(1), world().size()) << "the communicator works after an error";
}

TEST(Reductions, WidthsAreThoseOfTheTypes) {
  EXPECT_EQ(size_of(DType::u8), 1u);
  EXPECT_EQ(size_of(DType::bf16), 2u);
  for (const DType type : {DType::i32, DType::f32}) EXPECT_EQ(size_of(type), 4u);
  for (const DType type : {DType::i64, DType::u64, DType::f64}) EXPECT_EQ(size_of(type), 8u);
}

}  // namespace
}  // namespace trireme::comm
