// The exchanges alone: what is gathered, what is summed, and the protocol under ranks of different speed.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <cstring>
#include <thread>
#include <vector>

#include "support/world.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/shard_exchange.hpp"

namespace trireme::test {
namespace {

using comm::ExchangeKind;

// Five stages; parameter 0 is in the first and the last (tied). per_rank values are odd on purpose.
std::vector<comm::SlotGeometry> five_stages(int ranks) {
  const std::vector<std::vector<std::pair<size_t, int64_t>>> stages = {
      {{0, 700}}, {{1, 13}, {2, 129}}, {{3, 13}, {4, 129}, {5, 1}}, {{6, 300}}, {{7, 5}, {0, 700}}};
  std::vector<comm::SlotGeometry> slots;
  for (const auto& stage : stages) {
    comm::SlotGeometry slot;
    for (const auto& [id, per_rank] : stage) {
      slot.parameters.push_back({id, slot.elements, per_rank});
      slot.elements += (per_rank * ranks + 31) / 32 * 32;
    }
    slots.push_back(slot);
  }
  return slots;
}

float weight_value(size_t id, int rank, int64_t i, int version) {
  return static_cast<float>(1000 * version + 100 * rank) + static_cast<float>(id) + 0.001f * static_cast<float>(i);
}
// Values whose sum depends on the order of addition.
float gradient_value(int rank, int stage, size_t p, int64_t i, int round) {
  return (rank % 2 ? -1.f : 1.f) * (1.0e4f / static_cast<float>(1 + rank)) + 0.37f * static_cast<float>(i) +
         static_cast<float>(stage) + 0.1f * static_cast<float>(p) + static_cast<float>(round);
}

comm::ExchangeOptions fp32_options(ExchangeKind kind) {
  comm::ExchangeOptions options;
  options.kind = kind;
  options.weight_type = comm::DType::f32;
  return options;
}

class Exchange : public testing::TestWithParam<ExchangeKind> {
 protected:
  void write(comm::ShardExchange& exchange, int version) {
    exchange.begin_update();
    std::vector<bool> done(8, false);
    for (const auto& slot : slots_) {
      for (const auto& parameter : slot.parameters) {
        if (done[parameter.id]) continue;
        done[parameter.id] = true;
        auto* own = reinterpret_cast<float*>(exchange.own_slice(parameter.id));
        for (int64_t i = 0; i < parameter.per_rank; ++i) own[i] = weight_value(parameter.id, world().rank(), i, version);
      }
    }
    exchange.end_update();
  }
  void check_weights(comm::ShardExchange& exchange, int stage, int version) {
    const auto pointers = exchange.gathered(stage);
    const auto& slot = slots_[static_cast<size_t>(stage)];
    ASSERT_EQ(pointers.size(), slot.parameters.size());
    int wrong = 0;
    for (size_t p = 0; p < pointers.size(); ++p) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(pointers[p]) % 64, 0u);
      const auto* values = reinterpret_cast<const float*>(pointers[p]);
      const auto& parameter = slot.parameters[p];
      for (int rank = 0; rank < world().size(); ++rank) {
        for (int64_t i = 0; i < parameter.per_rank; ++i) {
          wrong += values[rank * parameter.per_rank + i] != weight_value(parameter.id, rank, i, version);
        }
      }
    }
    EXPECT_EQ(wrong, 0) << "stage " << stage;
    EXPECT_TRUE(exchange.holds(stage));
    exchange.release(stage);
  }
  void fill_gradients(comm::ShardExchange& exchange, int stage, int round) {
    const auto pointers = exchange.gradients(stage);
    const auto& slot = slots_[static_cast<size_t>(stage)];
    for (size_t p = 0; p < pointers.size(); ++p) {
      const int64_t n = slot.parameters[p].per_rank * world().size();
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(pointers[p][i], 0.f);
        pointers[p][i] = gradient_value(world().rank(), stage, p, i, round);
      }
    }
  }
  void finish(comm::ShardExchange& exchange, int stage, int round) {
    const auto& slot = slots_[static_cast<size_t>(stage)];
    std::vector<std::vector<float>> sums;
    std::vector<float*> into;
    for (const auto& parameter : slot.parameters) sums.emplace_back(parameter.per_rank, 0.5f);
    for (auto& sum : sums) into.push_back(sum.data());
    exchange.finish_reduce(stage, into);
    int wrong = 0;
    for (size_t p = 0; p < sums.size(); ++p) {
      const int64_t first = world().rank() * slot.parameters[p].per_rank;
      for (int64_t i = 0; i < slot.parameters[p].per_rank; ++i) {
        float sum = gradient_value(0, stage, p, first + i, round);
        for (int rank = 1; rank < world().size(); ++rank) sum += gradient_value(rank, stage, p, first + i, round);
        wrong += sums[p][static_cast<size_t>(i)] != 0.5f + sum;
      }
    }
    EXPECT_EQ(wrong, 0) << "stage " << stage << " round " << round;
  }
  static void dawdle(int step) {  // another rank is late at every step
    if (step % world().size() == world().rank()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

  std::vector<comm::SlotGeometry> slots_ = five_stages(world().size());
};

// The stage order of training, several rounds, with weights rewritten in between.
TEST_P(Exchange, GathersAndSumsInRankOrder) {
  const auto exchange = comm::make_shard_exchange(world(), slots_, fp32_options(GetParam()));
  const int last = static_cast<int>(slots_.size()) - 1;
  for (int round = 0; round < 4; ++round) {
    write(*exchange, round);
    exchange->gather(0);
    for (int stage = 0; stage <= last; ++stage) {
      if (stage < last) exchange->gather(stage + 1);
      dawdle(stage + round);
      check_weights(*exchange, stage, round);
    }
    for (int stage = last; stage >= 0; --stage) {
      exchange->gather(stage);
      if (stage > 0) exchange->gather(stage - 1);
      check_weights(*exchange, stage, round);
      fill_gradients(*exchange, stage, round);
      dawdle(stage);
      if (stage < last) finish(*exchange, stage + 1, round);
      exchange->reduce(stage);
    }
    finish(*exchange, 0, round);
  }
  EXPECT_EQ(exchange->counters().reductions, 4 * (last + 1));
  if (GetParam() == ExchangeKind::shared_window || world().size() == 1) {
    EXPECT_EQ(exchange->counters().gathered_bytes, 0);
  } else {
    EXPECT_GT(exchange->counters().gathered_bytes, 0);
  }
}

// Without reductions in between (frozen passes) only begin_update() keeps a fast rank from overwriting what a slow one reads.
TEST_P(Exchange, WeightsStayUntilAllReadersSignedOff) {
  const auto exchange = comm::make_shard_exchange(world(), slots_, fp32_options(GetParam()));
  for (int round = 0; round < 3; ++round) {
    write(*exchange, round);
    exchange->gather(1);
    if (world().rank() == round % world().size()) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    check_weights(*exchange, 1, round);
  }
}

TEST_P(Exchange, RefusesWrongOrder) {
  const auto exchange = comm::make_shard_exchange(world(), slots_, fp32_options(GetParam()));
  exchange->gradients(4);
  exchange->reduce(4);
  EXPECT_THROW(exchange->gradients(4), UserError);  // its reduction is not finished
  std::vector<float> sink(2000);
  EXPECT_THROW(exchange->finish_reduce(2, {sink.data(), sink.data(), sink.data()}), UserError);
  exchange->finish_reduce(4, {sink.data(), sink.data() + 100});
}

TEST_P(Exchange, FrozenHasNoGradientMemory) {
  auto options = fp32_options(GetParam());
  options.gradients = false;
  const auto exchange = comm::make_shard_exchange(world(), slots_, options);
  EXPECT_EQ(exchange->counters().gradient_memory, 0);
  write(*exchange, 3);
  exchange->gather(1);
  check_weights(*exchange, 1, 3);
}

// Adding on threads gives the bits of adding on one.
TEST_P(Exchange, AddsOnThreads) {
  auto options = fp32_options(GetParam());
  options.parallel_for = [](int64_t count, const std::function<void(int64_t, int64_t)>& body) {
    std::thread other([&] { body(count / 3, count); });
    body(0, count / 3);
    other.join();
  };
  comm::SlotGeometry slot;
  slot.parameters.push_back({0, 0, 70001});
  slot.elements = (70001 * world().size() + 31) / 32 * 32;
  slots_ = {slot};
  const auto exchange = comm::make_shard_exchange(world(), slots_, options);
  for (int round = 0; round < 2; ++round) {
    fill_gradients(*exchange, 0, round);
    exchange->reduce(0);
    finish(*exchange, 0, round);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Exchange, testing::Values(ExchangeKind::shared_window, ExchangeKind::mpi_ring),
                         [](const auto& value) { return value.param == ExchangeKind::mpi_ring ? "ring" : "window"; });

// A refill of memory that is in use would be a silent wrong gradient: it is refused.
TEST(MpiRing, RefusesToOverwriteWeightsInUse) {
  const auto exchange = comm::make_shard_exchange(world(), five_stages(world().size()), fp32_options(ExchangeKind::mpi_ring));
  exchange->gather(0);
  exchange->gathered(0);
  exchange->gather(1);
  exchange->gathered(1);
  EXPECT_THROW(exchange->gather(2), UserError);
  exchange->release(0);
  exchange->gather(2);
  EXPECT_FALSE(exchange->holds(0));
  EXPECT_TRUE(exchange->holds(1));
  EXPECT_THROW(exchange->gathered(0), UserError);
}

// Two exchanges with one memory, of which the second is larger: each finds its weights after the other had the memory.
TEST(MpiRing, SharesItsMemoryInTurns) {
  const auto rings = std::make_shared<comm::RingMemory>();
  const int ranks = world().size();
  auto options = fp32_options(ExchangeKind::mpi_ring);
  options.rings = rings;
  options.gradients = false;
  const auto one_stage = [ranks](int64_t per_rank) {
    const int64_t elements = (per_rank * ranks + 31) / 32 * 32;
    return std::vector<comm::SlotGeometry>{{{{0, 0, per_rank}}, elements}};
  };
  const auto make = [&](int64_t per_rank, float value) {
    auto exchange = comm::make_shard_exchange(world(), one_stage(per_rank), options);
    exchange->begin_update();
    auto* own = reinterpret_cast<float*>(exchange->own_slice(0));
    std::fill(own, own + per_rank, value + static_cast<float>(world().rank()));
    exchange->end_update();
    return exchange;
  };
  const auto sees = [&](comm::ShardExchange& exchange, int64_t per_rank, float value) {
    exchange.gather(0);
    const auto* whole = reinterpret_cast<const float*>(exchange.gathered(0).front());
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(whole[rank * per_rank], value + static_cast<float>(rank));
      EXPECT_EQ(whole[(rank + 1) * per_rank - 1], value + static_cast<float>(rank));
    }
    exchange.release(0);
  };
  const auto small = make(100, 10);
  sees(*small, 100, 10);
  const int64_t alone = rings->bytes();
  {
    const auto large = make(300, 20);
    EXPECT_EQ(rings->bytes(), 4 * one_stage(300).front().elements);
    EXPECT_GT(rings->bytes(), alone);
    EXPECT_FALSE(small->holds(0));  // the memory is another
    for (int round = 0; round < 3; ++round) {
      sees(*large, 300, 20);
      EXPECT_FALSE(small->holds(0));
      sees(*small, 100, 10);
      EXPECT_FALSE(large->holds(0));
    }
    EXPECT_EQ(rings->turns(), 5);
    EXPECT_EQ(small->counters().weight_memory + large->counters().weight_memory, 4 * (128 + 320));  // own slices alone
    // In the middle of a pass nobody may take it.
    small->gather(0);
    small->gathered(0);
    EXPECT_THROW(large->gather(0), UserError);
    small->release(0);
  }
  sees(*small, 100, 10);  // the larger one is gone, its memory stays
}

TEST(MpiRing, HoldsTwoStagesNotTheModel) {
  const auto slots = five_stages(world().size());
  const auto exchange = comm::make_shard_exchange(world(), slots, fp32_options(ExchangeKind::mpi_ring));
  const int64_t n = world().size();
  const int64_t own = 4 * (700 + 13 + 129 + 13 + 129 + 1 + 300 + 5);
  const int64_t ring = 4 * n * (700 + 5 + 300);  // the last two stages
  EXPECT_LE(exchange->counters().weight_memory, own + ring + 16 * 128);
}

TEST(MakeShardExchange, PicksTheWindowOnOneNode) {
  const auto exchange = comm::make_shard_exchange(world(), five_stages(world().size()), {});
  EXPECT_NE(exchange->kind().find("shared window"), std::string::npos);
}

TEST(MakeShardExchange, RefusesAGpuInAProgramWithoutCuda) {
  comm::ExchangeOptions options;
  options.device = true;
  EXPECT_THROW(comm::make_shard_exchange(world(), five_stages(world().size()), options), UserError);
}

}  // namespace
}  // namespace trireme::test
