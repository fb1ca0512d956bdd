#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "support/world.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/comm.hpp"

namespace trireme::comm {
namespace {

uint16_t bf16_of(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>(bits >> 16);
}

TEST(Collectives, ReduceEveryTypeAndOperation) {
  const auto& world = test::world();
  const int n = world.size();
  const int me = world.rank();
  EXPECT_EQ(world.sum(int64_t{me} + (int64_t{1} << 40)), n * (int64_t{1} << 40) + n * (n - 1) / 2);
  EXPECT_EQ(world.max(static_cast<double>(me)), n - 1.0);
  EXPECT_EQ(world.min(static_cast<int32_t>(me)), 0);
  uint64_t bits = uint64_t{1} << me;
  world.all_reduce(&bits, 1, DType::u64, Op::bit_or);
  EXPECT_EQ(bits, (uint64_t{1} << n) - 1);
  EXPECT_TRUE(world.all(true));
  EXPECT_FALSE(world.all(me != n - 1));
}

TEST(Collectives, SumsOfBf16AddInFloat) {
  const auto& world = test::world();
  std::vector<uint16_t> values{bf16_of(1.0f), bf16_of(0.5f), bf16_of(-2.0f)};
  world.all_reduce(values.data(), 3, DType::bf16, Op::sum);
  const auto n = static_cast<float>(world.size());
  EXPECT_EQ(values[0], bf16_of(n));
  EXPECT_EQ(values[1], bf16_of(0.5f * n));
  EXPECT_EQ(values[2], bf16_of(-2.0f * n));
}

TEST(Collectives, GatherInPlaceBringsTheSlicesOfAllRanks) {
  const auto& world = test::world();
  const int n = world.size();
  constexpr int64_t count = 1000;
  std::vector<float> all(static_cast<size_t>(count * n), -1.0f);
  std::iota(all.begin() + world.rank() * count, all.begin() + (world.rank() + 1) * count,
            1.0f + world.rank() * count);
  world.all_gather_in_place(all.data(), count, DType::f32);
  for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], 1.0f + i);
}

TEST(Collectives, StringsOfAnyLengthKeepRankOrder) {
  const auto& world = test::world();
  const std::string mine(static_cast<size_t>(world.rank()) * 1000,
                         static_cast<char>('a' + world.rank()));
  const auto all = world.all_gather(mine);
  ASSERT_EQ(all.size(), static_cast<size_t>(world.size()));
  for (int r = 0; r < world.size(); ++r) {
    EXPECT_EQ(all[static_cast<size_t>(r)],
              std::string(static_cast<size_t>(r) * 1000, static_cast<char>('a' + r)));
  }
  const int root = world.size() - 1;
  const auto gathered = world.gather(mine, root);
  EXPECT_EQ(gathered.size(), world.rank() == root ? all.size() : 0u);
  EXPECT_EQ(world.broadcast(world.rank() == root ? "from the last" : "", root), "from the last");
}

TEST(Collectives, AllToAllDeliversEachPair) {
  const auto& world = test::world();
  std::vector<std::string> to;
  for (int r = 0; r < world.size(); ++r) {
    to.push_back(r % 2 ? std::string{}
                       : base::text(world.rank(), "->", r, std::string(100000, 'x')));
  }
  const auto from = world.all_to_all(to);
  for (int r = 0; r < world.size(); ++r) {
    const auto want = world.rank() % 2
                          ? std::string{}
                          : base::text(r, "->", world.rank(), std::string(100000, 'x'));
    EXPECT_EQ(from[static_cast<size_t>(r)], want);
  }
}

TEST(Collectives, RingOfNonBlockingTransfers) {
  const auto& world = test::world();
  if (world.size() == 1) GTEST_SKIP() << "needs a peer";
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  std::vector<int> out(1 << 18, world.rank());
  std::vector<int> in(out.size(), -1);
  auto receiving =
      world.receive_begin(in.data(), static_cast<int64_t>(in.size() * 4), previous, Tag{5});
  auto sending = world.send_begin(out.data(), static_cast<int64_t>(out.size() * 4), next, Tag{5});
  receiving.wait();
  sending.wait();
  EXPECT_EQ(in.front(), previous);
  EXPECT_EQ(in.back(), previous);
}

TEST(Comm, SplitsBySubsetAndColour) {
  const auto& world = test::world();
  const Comm halves = Comm::split(world, world.rank() % 2, world.rank(), "halves");
  EXPECT_EQ(halves->rank(), world.rank() / 2);
  const std::vector<int> reversed = [&] {
    std::vector<int> ranks(static_cast<size_t>(world.size()));
    std::iota(ranks.rbegin(), ranks.rend(), 0);
    return ranks;
  }();
  const Comm backwards = Comm::subset(world, reversed, "backwards");
  EXPECT_EQ(backwards->rank(), world.size() - 1 - world.rank());
  const std::vector<int> first{0};
  const Comm alone = Comm::subset(world, first, "alone");
  EXPECT_EQ(alone->size(), 1);
}

TEST(Comm, NullViewIsOneRank) {
  const CommView none;
  EXPECT_EQ(none.size(), 1);
  EXPECT_EQ(none.sum(3.0), 3.0);
  EXPECT_EQ(none.all_gather("x"), std::vector<std::string>{"x"});
  EXPECT_EQ(none.broadcast("y", 0), "y");
  none.barrier();
  EXPECT_THROW(none.send(nullptr, 0, 0, Tag{0}), InternalError);
}

// MPI gives wrong data and no error when the roots of a broadcast differ: the comparison finds the
// first such call, on every rank alike.
TEST(Collectives, ThatDifferAreNamed) {
  const auto& world = test::world();
  if (world.size() == 1) GTEST_SKIP() << "one rank cannot differ from itself";
  const Comm own = Comm::duplicate(world, "own");  // nothing is called on it yet
  const int last = world.size() - 1;
  compare_collectives(8);
  std::string message;
  try {
    for (int call = 0; call < 100; ++call) {
      int64_t value = call;
      own->all_reduce(&value, 1, DType::i64, Op::max);
      if (call != 2) continue;
      char byte = 0;
      own->broadcast(&byte, 1, DType::u8, world.rank() == last ? last : 0);
    }
    ADD_FAILURE() << "the difference was not found";
  } catch (const InternalError& error) { message = error.what(); }
  compare_collectives(0);
  EXPECT_EQ(message,
            base::text("the ranks of own called different collectives: the 4th was broadcast of 1 "
                       "elements (type 0, root 0) on rank 0, ",
                       "broadcast of 1 elements (type 0, root ", last, ") on rank ", last));
  world.barrier();
}

}  // namespace
}  // namespace trireme::comm
