#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "support/samples.hpp"
#include "support/world.hpp"
#include "trireme/base/error.hpp"
#include "trireme/learn/exchange.hpp"

namespace trireme::learn {
namespace {

Samples make(const std::vector<uint64_t>& ids) { return test::samples_of(ids); }

// With the columns that rewards and the reference fill.
Samples make_scored(const std::vector<uint64_t>& ids) {
  Samples samples = make(ids);
  samples.reward_parts.resize(2);
  for (const uint64_t id : ids) {
    samples.reward.push_back(static_cast<float>(id) / 4);
    samples.reward_parts[0].push_back(static_cast<float>(id));
    samples.reward_parts[1].push_back(-1.0f);
  }
  for (const int32_t token : samples.ids)
    samples.ref_log_probs.push_back(-static_cast<float>(token) / 8);
  return samples;
}

std::vector<uint64_t> share(int64_t total, int rank, int size) {
  std::vector<uint64_t> ids;
  for (int64_t i = rank; i < total; i += size)
    ids.push_back(static_cast<uint64_t>((i * 7919) % total));
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
    EXPECT_EQ(exchange.counters().bytes_sent,
              static_cast<int64_t>(mine.to_bytes().size()));  // packed, no padding
    EXPECT_EQ(exchange.counters().messages, 1);
  }
}

TEST(Exchange, PlacementDependsOnIdsOnly) {
  const auto& world = test::world();
  Exchange exchange(world);
  const std::vector<int> targets{0};
  const SequenceList here = exchange.list(make(share(40, world.rank(), world.size())));
  std::vector<uint64_t> all(40);
  std::iota(all.begin(), all.end(), uint64_t{0});
  const SequenceList there = exchange.list(world.rank() == 0 ? make(all) : Samples{});
  ASSERT_EQ(here.size(), there.size());
  for (size_t i = 0; i < here.size(); ++i) {
    EXPECT_EQ(here[i].id, there[i].id);
    EXPECT_EQ(here[i].tokens, there[i].tokens);
  }
}

TEST(Exchange, TwinsAreABug) {
  const auto& world = test::world();
  Exchange exchange(world);
  EXPECT_THROW(exchange.list(make({5, 5})), InternalError);
}

TEST(Exchange, NothingToMoveIsFine) {
  const auto& world = test::world();
  Exchange exchange(world);
  const std::vector<int> targets{world.size() - 1};
  EXPECT_EQ(exchange.spread(Samples{}, targets).size(), 0);
}

// Any sequence to any rank, every column with it.
TEST(Exchange, LaterColumnsTravelToWhereverTheyAreSent) {
  const auto& world = test::world();
  constexpr int64_t total = 53;
  Exchange exchange(world);
  const Samples mine = make_scored(share(total, world.rank(), world.size()));
  std::mt19937 random(3);  // the same on every rank
  for (int round = 0; round < 5; ++round) {
    const SequenceList sequences = exchange.list(mine);
    std::vector<int> rank_of;
    std::vector<uint64_t> wanted;
    for (const ListedSequence& sequence : sequences) {
      rank_of.push_back(static_cast<int>(random() % static_cast<unsigned>(world.size())));
      if (rank_of.back() == world.rank()) wanted.push_back(sequence.id);
    }
    EXPECT_EQ(exchange.move(mine, sequences, rank_of),
              wanted.empty() ? Samples{} : make_scored(wanted))
        << "round " << round;
  }
  EXPECT_EQ(world.sum(exchange.counters().bytes_sent) > 0, world.size() > 1);
}

// What is worked at elsewhere comes home with what was filled in there; ranks have even shares
// meanwhile, some had nothing.
TEST(Exchange, WhatWasSharedOutComesBackWithWhatWasDone) {
  const auto& world = test::world();
  constexpr int64_t total = 60;
  const bool idle = world.size() > 1 && world.rank() == 0;
  const Samples mine =
      idle ? Samples{}
           : make(share(total, world.rank() - (world.size() > 1), std::max(1, world.size() - 1)))
                 .sorted();
  Exchange exchange(world);
  SharedOut shared = exchange.share_out(mine);
  const int64_t tokens = shared.share.tokens();
  EXPECT_EQ(world.sum(shared.share.size()), total);
  EXPECT_LE(world.max(tokens) - world.sum(tokens) / world.size(), 20) << "even";
  shared.share = make_scored(shared.share.id);
  EXPECT_EQ(exchange.give_back(shared), mine.size() == 0 ? Samples{} : make_scored(mine.id));
  const SharedOut none = exchange.share_out(Samples{});
  EXPECT_EQ(none.share.size(), 0);
  EXPECT_EQ(exchange.give_back(none).size(), 0);
}

TEST(Exchange, ThereAndBackIsTheSameSamples) {
  const auto& world = test::world();
  constexpr int64_t total = 40;
  Exchange exchange(world);
  const Samples mine = make_scored(share(total, world.rank(), world.size())).sorted();
  const SequenceList sequences = exchange.list(mine);
  std::vector<int> owner(total, 0);
  for (const uint64_t id : mine.id) owner[id] = world.rank();
  world.all_reduce(owner.data(), total, comm::DType::i32, comm::Op::max);
  const std::vector<int> last{world.size() - 1};
  const Samples away = exchange.spread(mine, last);
  EXPECT_EQ(away.size(), world.rank() == world.size() - 1 ? total : 0);
  EXPECT_EQ(exchange.move(away, sequences, owner), mine);
}

// The parts of all ranks, of which some have nothing: what is scored need not be scored again.
TEST(Stored, ScoredSequencesStayApart) {
  const std::string parts = to_stored(make_scored({7, 3})) + to_stored(Samples{}) +
                            to_stored(make({5})) + to_stored(make_scored({9})) +
                            to_stored(make({2, 4}));
  const StoredSamples found = from_stored(parts);
  EXPECT_EQ(found.scored, make_scored({7, 3, 9}));
  EXPECT_EQ(found.others, make({5, 2, 4}));
  EXPECT_THROW(from_stored(parts.substr(0, parts.size() - 1)), UserError);
}

}  // namespace
}  // namespace trireme::learn
