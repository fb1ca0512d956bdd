#include <gtest/gtest.h>

#include <numeric>

#include "driver/exchange.hpp"
#include "support/world.hpp"
#include "trireme/base/error.hpp"

namespace trireme::driver {
namespace {

// `count` sequences whose lengths and tokens follow from their ids.
Samples make(const std::vector<uint64_t>& ids) {
  Samples samples;
  for (const uint64_t id : ids) {
    const auto length = static_cast<size_t>(3 + id % 17);
    samples.id.push_back(id);
    samples.prompt_row.push_back(static_cast<int64_t>(id));
    samples.prompt_len.push_back(2);
    samples.finish_reason.push_back(FinishReason::stop);
    for (size_t t = 0; t < length; ++t) {
      samples.ids.push_back(static_cast<int32_t>(100 * id + t));
      samples.action_mask.push_back(t >= 2);
      samples.log_probs.push_back(-static_cast<float>(t));
      samples.version.push_back(1);
    }
    samples.cu_seqlens.push_back(static_cast<int64_t>(samples.ids.size()));
  }
  return samples;
}

std::vector<uint64_t> share(int64_t total, int rank, int size) {
  std::vector<uint64_t> ids;
  for (int64_t i = rank; i < total; i += size) ids.push_back(static_cast<uint64_t>((i * 7919) % total));
  return ids;
}

TEST(Exchange, EverySequenceArrivesOnceAndWhole) {
  const auto& world = test::world();
  constexpr int64_t total = 101;
  const Samples mine = make(share(total, world.rank(), world.size()));
  Exchange exchange(world);
  std::vector<int> targets(static_cast<size_t>(world.size()));
  std::iota(targets.begin(), targets.end(), 0);
  const Samples got = exchange.spread(mine, targets);
  got.check();
  EXPECT_EQ(got, make(got.id));
  EXPECT_EQ(world.sum(got.size()), total);
  const int64_t tokens = world.sum(got.tokens());
  EXPECT_LE(world.max(got.tokens()) - tokens / world.size(), 20) << "balanced to within a sequence";
  EXPECT_TRUE(std::is_sorted(got.id.begin(), got.id.end()));
}

TEST(Exchange, BytesOnTheWireAreThoseOfTheSequencesThatMove) {
  const auto& world = test::world();
  const Samples mine = make(share(64, world.rank(), world.size()));
  Exchange exchange(world);
  const std::vector<int> first{0};
  const Samples got = exchange.spread(mine, first);
  EXPECT_EQ(got.size(), world.rank() == 0 ? 64 : 0);
  if (world.rank() == 0) {
    EXPECT_EQ(exchange.counters().bytes_sent, 0);  // what stays is not sent
  } else {
    EXPECT_EQ(exchange.counters().sequences_sent, mine.size());
    EXPECT_EQ(exchange.counters().bytes_sent, static_cast<int64_t>(mine.to_bytes().size()));  // packed, no padding
    EXPECT_EQ(exchange.counters().messages, 1);
  }
}

TEST(Exchange, PlacementDependsOnIdsOnly) {
  const auto& world = test::world();
  Exchange exchange(world);
  const std::vector<int> targets{0};
  const Cards here = exchange.cards(make(share(40, world.rank(), world.size())));
  std::vector<uint64_t> all(40);
  std::iota(all.begin(), all.end(), uint64_t{0});
  const Cards there = exchange.cards(world.rank() == 0 ? make(all) : Samples{});
  ASSERT_EQ(here.size(), there.size());
  for (size_t i = 0; i < here.size(); ++i) {
    EXPECT_EQ(here[i].id, there[i].id);
    EXPECT_EQ(here[i].tokens, there[i].tokens);
  }
}

TEST(Exchange, TwinsAreABug) {
  const auto& world = test::world();
  Exchange exchange(world);
  EXPECT_THROW(exchange.cards(make({5, 5})), InternalError);
}

TEST(Exchange, NothingToMoveIsFine) {
  const auto& world = test::world();
  Exchange exchange(world);
  const std::vector<int> targets{world.size() - 1};
  EXPECT_EQ(exchange.spread(Samples{}, targets).size(), 0);
}

}  // namespace
}  // namespace trireme::driver
