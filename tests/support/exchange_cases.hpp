// Cases for every kind of exchange: what is gathered, what is summed, and the protocol under ranks
// of different speed. One file of a test program includes this and instantiates the suites with the
// places that it knows (INSTANTIATE_TEST_SUITE_P).
#pragma once

#include <cmath>

#include "support/exchange_user.hpp"
#include "trireme/base/error.hpp"

namespace trireme::test {

struct Place {
  std::string name;
  std::function<std::unique_ptr<Lane>()> make;
  bool window = false;       // nothing crosses between the ranks of a node
  bool rounds_sums = false;  // of bf16: they are added by others than us
};
inline std::string name_of(const testing::TestParamInfo<Place>& info) { return info.param.name; }

class Exchange : public testing::TestWithParam<Place> {
 protected:
  std::unique_ptr<Lane> lane_ = GetParam().make();
  std::vector<comm::SlotGeometry> slots_ = five_stages(world().size());
};
// Those with private memory for two stages.
class RingExchange : public Exchange {};

// Several rounds, with weights rewritten in between.
TEST_P(Exchange, GathersAndSumsInRankOrder) {
  ExchangeUser user(*lane_, slots_, lane_->options());
  for (int round = 0; round < 4; ++round) {
    user.write(round);
    user.forward(round);
    user.backward(round);
    EXPECT_EQ(user.wrong(), 0) << "round " << round;
  }
  EXPECT_EQ(user->counters().reductions, 4 * (user.last() + 1));
  const bool crosses = GetParam().window ? comm::discover(world()).nodes > 1 : world().size() > 1;
  const auto crossed = world().sum(user->counters().gathered_bytes);
  EXPECT_EQ(crossed > 0, crosses) << crossed << " bytes";
}

// Sums of bf16 values: each rank's are rounded, then added in fp32 within a node; a sum that leaves
// a node is rounded once more. None is further from the sum of what the ranks had than these
// roundings allow.
inline float half_sum(const std::vector<float>& of_ranks, bool rounds_sums,
                      const std::vector<int>& node_of) {
  if (of_ranks.size() == 1) return of_ranks[0];
  float sum = in_bf16(of_ranks[0]);
  double exact = of_ranks[0], room = std::abs(of_ranks[0]);
  for (size_t rank = 1; rank < of_ranks.size(); ++rank) {
    if (rounds_sums && node_of[rank] != node_of[rank - 1]) sum = in_bf16(sum);
    sum += in_bf16(of_ranks[rank]);
    exact += of_ranks[rank];
    room += std::abs(of_ranks[rank]);
  }
  if (rounds_sums) sum = in_bf16(sum);
  EXPECT_LE(std::abs(sum - exact), (rounds_sums ? of_ranks.size() + 1 : 1) * room / 256);
  return sum;
}

// Windows round as a sum leaves a node.
inline SumOfRanks half_sum_at(const Place& place) {
  const auto topology = comm::discover(world());
  const bool rounds = place.window ? topology.nodes > 1 : place.rounds_sums;
  const auto node_of =
      place.window ? topology.node_of : std::vector<int>(topology.node_of.size(), 0);
  return [=](const std::vector<float>& of_ranks) { return half_sum(of_ranks, rounds, node_of); };
}

// Half the bytes of fp32, and the same bits whenever it runs.
TEST_P(Exchange, SumsInHalfPrecision) {
  auto options = lane_->options();
  ExchangeUser whole(*lane_, slots_, options);
  options.reduce_type = comm::DType::bf16;
  ExchangeUser half(*lane_, slots_, options, half_sum_at(GetParam()));
  for (int round = 0; round < 3; ++round) {
    for (ExchangeUser* user : {&whole, &half}) {
      user->write(round);
      user->forward(round);
      user->backward(round);
      EXPECT_EQ(user->wrong(), 0) << "round " << round;
    }
  }
  const auto bytes = [](const ExchangeUser& user) {
    return world().sum(user->counters().reduced_bytes);
  };
  EXPECT_EQ(2 * bytes(half), bytes(whole));
  EXPECT_EQ(bytes(half) > 0, bytes(whole) > 0);
  const auto memory = [](const ExchangeUser& user) { return user->counters().gradient_memory; };
  EXPECT_LE(memory(half), memory(whole)) << "rounded where they lie";
}

// Without reductions in between (frozen passes) only begin_update() keeps a fast rank from
// overwriting what a slow one reads.
TEST_P(Exchange, WeightsStayUntilAllReadersSignedOff) {
  ExchangeUser user(*lane_, slots_, lane_->options());
  for (int round = 0; round < 3; ++round) {
    user.write(round);
    user.gather(1);
    if (world().rank() == round % world().size())
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    user.check_weights(1, round);
  }
  EXPECT_EQ(user.wrong(), 0);
}

TEST_P(Exchange, RefusesWrongOrder) {
  const ExchangeUser user(*lane_, slots_, lane_->options());
  user->gradients(4);
  user->reduce(4);
  EXPECT_THROW(user->gradients(4), UserError);  // its reduction is not finished
  float* sink = lane_->allocate(2000);
  lane_->run({{sink, 2000, true}}, [sink] { std::fill(sink, sink + 2000, 0.f); });
  EXPECT_THROW(user->finish_reduce(2, {sink, sink, sink}), UserError);
  user->finish_reduce(4, {sink, sink + 100});
  lane_->wait();
}

TEST_P(Exchange, FrozenHasNoGradientMemory) {
  ExchangeUser user(*lane_, trainable(slots_, {}), lane_->options());
  EXPECT_EQ(user->counters().gradient_memory, 0);
  user.write(3);
  user.gather(1);
  user.check_weights(1, 3);
  EXPECT_EQ(user.wrong(), 0);
}

// Gradients, their memory and what goes between ranks are those of the trainable parameters: part
// of a stage, none of one, a tied one.
TEST_P(Exchange, ReducesTrainableParametersOnly) {
  for (const auto type : {comm::DType::f32, comm::DType::bf16}) {
    auto options = lane_->options();
    options.reduce_type = type;
    const SumOfRanks sum =
        type == comm::DType::f32 ? SumOfRanks(fp32_sum) : half_sum_at(GetParam());
    ExchangeUser all(*lane_, slots_, options, sum);
    all.write(0);
    all.forward(0);
    all.backward(0);
    for (const std::vector<size_t>& ids :
         {std::vector<size_t>{0, 2, 4}, {7}, {3, 5}, {0}, {1, 2, 6}}) {
      ExchangeUser some(*lane_, trainable(slots_, ids), options, sum);
      for (int round = 0; round < 3; ++round) {
        some.write(round);
        some.forward(round);
        some.backward(round);
        EXPECT_EQ(some.wrong(), 0) << "round " << round << ", first id " << ids.front();
      }
      EXPECT_LE(some->counters().gradient_memory, all->counters().gradient_memory);
      const auto bytes = [](const ExchangeUser& user) {
        return world().sum(user->counters().reduced_bytes);
      };
      const int64_t of_all = bytes(all);  // none where all ranks share a node's windows
      EXPECT_TRUE(of_all == 0 || bytes(some) < 3 * of_all);
    }
    EXPECT_EQ(all.wrong(), 0);
  }
}

// Adding on threads gives the bits of adding on one.
TEST_P(Exchange, AddsOnThreads) {
  auto options = lane_->options();
  options.parallel_for = [](int64_t count, const std::function<void(int64_t, int64_t)>& body) {
    std::thread other([&] { body(count / 3, count); });
    body(0, count / 3);
    other.join();
  };
  ExchangeUser user(*lane_, one_stage(world().size(), 70001), options);
  for (int round = 0; round < 2; ++round) {
    user.fill_gradients(0, round);
    user.reduce(0);
    user.finish(0, round);
  }
  EXPECT_EQ(user.wrong(), 0);
}

// More than are rounded by one thread.
TEST_P(Exchange, RoundsOnThreads) {
  auto options = lane_->options();
  options.reduce_type = comm::DType::bf16;
  options.parallel_for = [](int64_t count, const std::function<void(int64_t, int64_t)>& body) {
    std::thread other([&] { body(count / 3, count); });
    body(0, count / 3);
    other.join();
  };
  ExchangeUser user(*lane_, one_stage(world().size(), 170001), options, half_sum_at(GetParam()));
  for (int round = 0; round < 2; ++round) {
    user.fill_gradients(0, round);
    user.reduce(0);
    user.finish(0, round);
  }
  EXPECT_EQ(user.wrong(), 0);
}

// A refill of memory that is in use would be a silent wrong gradient: it is refused.
TEST_P(RingExchange, RefusesToOverwriteWeightsInUse) {
  const ExchangeUser user(*lane_, slots_, lane_->options());
  user->gather(0);
  user->gathered(0);
  user->gather(1);
  user->gathered(1);
  EXPECT_THROW(user->gather(2), UserError);
  user->release(0);
  user->gather(2);
  EXPECT_FALSE(user->holds(0));
  EXPECT_TRUE(user->holds(1));
  EXPECT_THROW(user->gathered(0), UserError);
}

// Two exchanges with one memory, of which the second is larger: each finds its weights after the
// other had the memory.
TEST_P(RingExchange, SharesItsMemoryInTurns) {
  const int ranks = world().size();
  auto options = lane_->options();
  options.rings = std::make_shared<comm::RingMemory>();
  const auto sees = [](ExchangeUser& user, int version) {
    user.gather(0);
    user.check_weights(0, version);
    EXPECT_EQ(user.wrong(), 0);
  };
  ExchangeUser small(*lane_, trainable(one_stage(ranks, 100), {}), options);
  small.write(1);
  sees(small, 1);
  const int64_t alone = options.rings->bytes();
  {
    ExchangeUser large(*lane_, trainable(one_stage(ranks, 300), {}), options);
    large.write(2);
    EXPECT_EQ(options.rings->bytes(), 4 * one_stage(ranks, 300).front().elements);
    EXPECT_GT(options.rings->bytes(), alone);
    EXPECT_FALSE(small->holds(0));  // the memory is another
    for (int round = 0; round < 3; ++round) {
      sees(large, 2);
      EXPECT_FALSE(small->holds(0));
      sees(small, 1);
      EXPECT_FALSE(large->holds(0));
    }
    EXPECT_EQ(options.rings->turns(), 5);
    EXPECT_EQ(small->counters().weight_memory + large->counters().weight_memory,
              4 * (128 + 320));  // own slices alone
    // In the middle of a pass nobody may take it.
    small->gather(0);
    small->gathered(0);
    EXPECT_THROW(large->gather(0), UserError);
    small->release(0);
  }
  sees(small, 1);  // the larger one is gone, its memory stays
}

}  // namespace trireme::test
