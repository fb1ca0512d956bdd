// Where rings keep their stages, who may use them when, sums of shards of any sizes and the ledger
// of collectives: each against a model of it that counts elements one by one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "comm/ledger.hpp"
#include "comm/shard_exchange_parts.hpp"
#include "support/world.hpp"
#include "trireme/base/bf16.hpp"
#include "trireme/base/error.hpp"

namespace trireme::comm {
namespace {

using testing::HasSubstr;

std::vector<SlotGeometry> draw_stages(std::mt19937& random, int64_t ranks) {
  std::vector<SlotGeometry> stages(1 + random() % 6);
  std::map<size_t, int64_t> size_of_id;
  for (size_t s = 0; s < stages.size(); ++s) {
    std::set<size_t> ids;
    for (size_t p = 0; p < 1 + random() % 4; ++p)
      ids.insert(random() % 3 == 0 ? 0 : 1 + s * 4 + p);  // parameter 0 is in several stages
    for (const size_t id : ids) {
      const auto per_rank = size_of_id.try_emplace(id, 1 + random() % 100).first->second;
      stages[s].parameters.push_back({id, stages[s].elements, per_rank});
      stages[s].elements += (ranks * per_rank + 31) / 32 * 32;
    }
  }
  return stages;
}

TEST(TwoStageArena, NeighboursNeverMeetAndItIsNoLongerThanAPair) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<SlotGeometry> stages(1 + random() % 7);
    for (auto& stage : stages) stage.elements = static_cast<int64_t>(random() % 500);
    const TwoStageArena arena(stages);
    const auto rounded = [&](int s) {
      return (stages[static_cast<size_t>(s)].elements + 31) / 32 * 32;
    };
    int64_t longest = 0;
    for (int s = 0; s < arena.stages(); ++s) {
      EXPECT_GE(arena.begin(s), 0);
      EXPECT_LE(arena.end(s), arena.elements());
      EXPECT_GE(arena.end(s) - arena.begin(s), stages[static_cast<size_t>(s)].elements);
      EXPECT_EQ(arena.begin(s) % 32, 0);
      longest = std::max(longest, rounded(s) + (s + 1 < arena.stages() ? rounded(s + 1) : 0));
      EXPECT_FALSE(s + 1 < arena.stages() && arena.overlap(s, s + 1));
      for (int t = 0; t < arena.stages(); ++t) {
        bool shared = false;
        for (int64_t e = arena.begin(s); e < arena.end(s); ++e)
          shared = shared || (e >= arena.begin(t) && e < arena.end(t));
        EXPECT_EQ(arena.overlap(s, t), shared) << s << " and " << t;
      }
    }
    EXPECT_EQ(arena.elements(), longest);
  }
}

TEST(ParameterStorage, EveryParameterHasItsPlaceOnce) {
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    const auto copies = static_cast<int64_t>(1 + random() % 5);
    const auto stages = draw_stages(random, copies);
    const ParameterStorage storage(stages, copies);
    std::map<size_t, int64_t> want;
    for (const auto& stage : stages) {
      for (const auto& parameter : stage.parameters) want[parameter.id] = parameter.per_rank;
    }
    std::vector<int> taken(static_cast<size_t>(storage.elements), 0);
    for (size_t id = 0; id < storage.offset.size(); ++id) {
      ASSERT_EQ(storage.offset[id] >= 0, want.contains(id)) << id;
      if (!want.contains(id)) continue;
      EXPECT_EQ(storage.offset[id] % 32, 0);
      EXPECT_EQ(storage.per_rank[id], want[id]);
      for (int64_t e = 0; e < copies * want[id]; ++e)
        ++taken.at(static_cast<size_t>(storage.offset[id] + e));
    }
    EXPECT_LE(*std::max_element(taken.begin(), taken.end()), 1);
  }
}

std::string refused(const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::internal);
    return error.what();
  }
  return "";
}

// Against sets of the stages that are held and in use.
TEST(RingLayout, AllowsWhatOverwritesNothingInUse) {
  std::mt19937 random(3);
  int allowed = 0, denied = 0;
  for (int round = 0; round < 100; ++round) {
    const auto stages = draw_stages(random, 2);
    RingLayout layout(stages, DType::bf16);
    const TwoStageArena arena(stages);
    std::set<int> held, used;
    int reducing = -1;
    for (int step = 0; step < 40; ++step) {
      const int stage = static_cast<int>(random() % stages.size());
      const auto over = [&](const std::set<int>& others) {
        return std::any_of(others.begin(), others.end(), [&](int other) {
          return other != stage && arena.overlap(stage, other);
        });
      };
      std::string error;
      bool wrong = false;
      switch (random() % 7) {
        case 0:
          wrong = over(used);
          error = refused([&] { layout.occupy(stage); });
          if (wrong) break;
          std::erase_if(held,
                        [&](int other) { return other != stage && arena.overlap(stage, other); });
          held.insert(stage);
          break;
        case 1:
          wrong = !held.contains(stage);
          error = refused([&] { layout.use(stage); });
          if (!wrong) used.insert(stage);
          break;
        case 2:
          layout.release(stage);
          used.erase(stage);
          break;
        case 3:
          wrong = reducing >= 0;
          error = refused([&] { layout.begin_reduction(stage); });
          if (!wrong) reducing = stage;
          break;
        case 4:
          wrong = stage != reducing;
          error = refused([&] { layout.end_reduction(stage); });
          if (!wrong) reducing = -1;
          break;
        case 5:
          wrong = reducing >= 0 && arena.overlap(stage, reducing);
          error = refused([&] { layout.may_write_gradients(stage); });
          break;
        default:
          wrong = reducing >= 0 || !used.empty();
          error = refused([&] { layout.may_leave(); });
      }
      ASSERT_EQ(!error.empty(), wrong) << error << " round " << round << " step " << step;
      ++(wrong ? denied : allowed);
      if (wrong) break;  // what a refused occupy() has let go of does not matter: the run ends
      for (int s = 0; s < layout.stages(); ++s) ASSERT_EQ(layout.holds(s), held.contains(s)) << s;
    }
  }
  EXPECT_GT(allowed, 100);
  EXPECT_GT(denied, 20);
}

// ---- sums ----

std::unique_ptr<ShardExchange> exchange_of(const std::vector<SlotGeometry>& stages,
                                           ExchangeKind kind) {
  ExchangeOptions options;
  options.kind = kind;
  options.weight_type = DType::f32;
  return make_shard_exchange(test::world(), stages, options);
}

// What rank `rank` writes at element e of a parameter: small whole numbers, whose sums are exact in
// any order.
float gradient_value(int rank, size_t stage, size_t id, int64_t e) {
  return static_cast<float>(
      (static_cast<int64_t>(stage) * 31 + static_cast<int64_t>(id) * 17 + e * 7 + rank * 101) %
          1000 -
      500);
}

TEST(ExchangeOfAnySizes, WeightsAndSumsAreThoseOfALoopOverRanks) {
  const auto& world = test::world();
  for (const ExchangeKind kind : {ExchangeKind::windows, ExchangeKind::mpi_ring}) {
    for (uint32_t seed = 0; seed < 2; ++seed) {
      std::mt19937 random(seed);  // the same on every rank
      const auto stages = draw_stages(random, world.size());
      const auto exchange = exchange_of(stages, kind);
      exchange->begin_update();
      for (const auto& stage : stages) {
        for (const auto& parameter : stage.parameters) {
          auto* slice = reinterpret_cast<float*>(exchange->own_slice(parameter.id));
          for (int64_t e = 0; e < parameter.per_rank; ++e)
            slice[e] = gradient_value(world.rank(), 99, parameter.id, e);
        }
      }
      exchange->end_update();
      for (size_t s = 0; s < stages.size(); ++s) {
        const auto& parameters = stages[s].parameters;
        const int stage = static_cast<int>(s);
        exchange->gather(stage);
        const auto weights = exchange->gathered(stage);
        const auto gradients = exchange->gradients(stage);
        ASSERT_EQ(weights.size(), parameters.size());
        std::vector<std::vector<float>> sums;
        std::vector<float*> into;
        for (size_t p = 0; p < parameters.size(); ++p) {
          const auto& [id, offset, per_rank, trainable] = parameters[p];
          float whole = 0;
          for (int64_t e = 0; e < world.size() * per_rank; ++e) {
            std::memcpy(&whole, weights[p] + e * 4, 4);
            ASSERT_EQ(whole, gradient_value(static_cast<int>(e / per_rank), 99, id, e % per_rank))
                << "weight " << e << " of " << id;
            gradients[p][e] = gradient_value(world.rank(), s, id, e);
          }
          sums.emplace_back(static_cast<size_t>(per_rank), 0.5f);  // what is there stays
        }
        for (auto& sum : sums) into.push_back(sum.data());
        exchange->release(stage);
        exchange->reduce(stage);
        exchange->finish_reduce(stage, into);
        for (size_t p = 0; p < parameters.size(); ++p) {
          for (int64_t e = 0; e < parameters[p].per_rank; ++e) {
            float want = 0.5f;
            for (int rank = 0; rank < world.size(); ++rank)
              want += gradient_value(rank, s, parameters[p].id,
                                     world.rank() * parameters[p].per_rank + e);
            ASSERT_EQ(sums[p][static_cast<size_t>(e)], want)
                << exchange->kind() << " stage " << s << " element " << e;
          }
        }
      }
      EXPECT_EQ(exchange->counters().reductions, static_cast<int64_t>(stages.size()));
    }
  }
}

// The sum is taken from left to right and then added: the same bits for any number of threads and
// sources.
TEST(AddInOrder, IsTheSumFromLeftToRight) {
  std::mt19937 random(7);
  for (const size_t sources : {size_t{1}, size_t{2}, size_t{3}, size_t{5}}) {
    for (const size_t count :
         {size_t{0}, size_t{1}, size_t{2047}, size_t{2048}, size_t{2049}, size_t{70001}}) {
      std::vector<std::vector<float>> values(sources, std::vector<float>(count));
      std::vector<float> into(count), want(count);
      Sources from;
      for (auto& part : values) {
        for (float& v : part)
          v = static_cast<float>(random()) / static_cast<float>(1 + random() % 1000);
        from.push_back(reinterpret_cast<const std::byte*>(part.data()));
      }
      for (size_t i = 0; i < count; ++i) {
        into[i] = static_cast<float>(random() % 1000) / 7;
        float sum = values[0][i];
        for (size_t s = 1; s < sources; ++s) sum += values[s][i];
        want[i] = into[i] + sum;
      }
      std::vector<float> in_parts = into;
      add_in_order(into.data(), DType::f32, from, static_cast<int64_t>(count), {});
      EXPECT_EQ(into, want) << sources << " of " << count;
      add_in_order(in_parts.data(), DType::f32, from, static_cast<int64_t>(count),
                   [](int64_t n, const std::function<void(int64_t, int64_t)>& body) {
                     for (int64_t i = 0; i < n; i += 1001) body(i, std::min(n, i + 1001));
                   });
      EXPECT_EQ(in_parts, want);
    }
  }
}

// In bf16 the values are widened, the sum is fp32; one that goes on is rounded at its end.
TEST(AddInOrder, WidensHalfPrecisionAndRoundsWhatGoesOn) {
  std::mt19937 random(11);
  for (const size_t sources : {size_t{1}, size_t{2}, size_t{3}}) {
    for (const size_t count : {size_t{1}, size_t{2048}, size_t{2049}, size_t{70001}}) {
      std::vector<std::vector<uint16_t>> values(sources, std::vector<uint16_t>(count));
      std::vector<float> into(count), want(count);
      std::vector<uint16_t> sum(count), fresh(count), want_sum(count), want_fresh(count);
      Sources from;
      for (auto& part : values) {
        for (uint16_t& v : part) v = base::float_to_bf16(static_cast<float>(random() % 100000) / 7);
        from.push_back(reinterpret_cast<const std::byte*>(part.data()));
      }
      for (size_t i = 0; i < count; ++i) {
        into[i] = static_cast<float>(random() % 1000) / 7;
        sum[i] = base::float_to_bf16(static_cast<float>(random() % 1000) / 3);
        float alone = base::bf16_to_float(values[0][i]), onto = base::bf16_to_float(sum[i]) + alone;
        for (size_t s = 1; s < sources; ++s) {
          alone += base::bf16_to_float(values[s][i]);
          onto += base::bf16_to_float(values[s][i]);
        }
        want[i] = into[i] + alone;
        want_fresh[i] = base::float_to_bf16(alone);
        want_sum[i] = base::float_to_bf16(onto);
      }
      const auto n = static_cast<int64_t>(count);
      add_in_order(into.data(), DType::bf16, from, n, {});
      EXPECT_EQ(into, want) << sources << " of " << count;
      sum_in_order(reinterpret_cast<std::byte*>(sum.data()), DType::bf16, true, from, n);
      EXPECT_EQ(sum, want_sum) << sources << " of " << count;
      sum_in_order(reinterpret_cast<std::byte*>(fresh.data()), DType::bf16, false, from, n);
      EXPECT_EQ(fresh, want_fresh) << sources << " of " << count;
    }
  }
}

TEST(RoundInPlace, LeavesEveryValueAtTheBeginning) {
  std::mt19937 random(5);
  const ParallelFor backwards =
      [](int64_t n, const std::function<void(int64_t, int64_t)>& body) {  // as threads might
        for (int64_t end = n; end > 0; end -= std::min<int64_t>(end, 4099))
          body(std::max<int64_t>(0, end - 4099), end);
      };
  for (const int64_t count : {0, 1, 2047, 2049, 65536, 65537, 131073, 400003}) {
    std::vector<float> values(static_cast<size_t>(count) + 1, 3.f);
    std::vector<uint16_t> want;
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      values[i] = static_cast<float>(random()) / 1e5f;
      want.push_back(base::float_to_bf16(values[i]));
    }
    round_in_place(values.data(), count, backwards);
    std::vector<uint16_t> got(want.size());
    if (count > 0) std::memcpy(got.data(), values.data(), got.size() * sizeof(uint16_t));
    EXPECT_EQ(got, want) << count;
    EXPECT_EQ(values.back(), 3.f) << "what follows";
  }
}

// ---- memory that rings take turns in ----

struct FakeTenant final : RingMemory::Tenant {
  void leave() override {
    ++left;
    if (busy) throw InternalError("busy");
  }
  void lose() override { ++lost; }
  int left = 0, lost = 0;
  bool busy = false;
};

TEST(RingMemory, GrowsForTheLargestAndTellsTheOthers) {
  std::vector<int64_t> made;
  const auto allocate = [&](int64_t bytes) {
    made.push_back(bytes);
    return std::shared_ptr<std::byte>(new std::byte[static_cast<size_t>(bytes)],
                                      std::default_delete<std::byte[]>());
  };
  RingMemory memory;
  FakeTenant a, b, c;
  memory.add(a, {100, 50, 0}, allocate);
  EXPECT_TRUE(memory.take(a));
  EXPECT_FALSE(memory.take(a));
  memory.add(b, {100, 40, 0}, allocate);
  EXPECT_EQ(a.lost + a.left, 0) << "it is large enough";
  EXPECT_TRUE(memory.take(b));
  EXPECT_EQ(a.left, 1);
  memory.add(c, {10, 60, 5}, allocate);
  EXPECT_EQ(std::make_pair(a.lost, b.lost), std::make_pair(1, 1));
  EXPECT_EQ(b.left, 1) << "it had the memory";
  EXPECT_EQ(made, (std::vector<int64_t>{100, 50, 60, 5})) << "what is large enough stays";
  EXPECT_EQ(memory.bytes(), 165);
  EXPECT_EQ(memory.turns(), 1);
  EXPECT_TRUE(memory.take(b)) << "nobody has it after that";
  b.busy = true;
  EXPECT_NE(refused([&] { memory.take(c); }), "");
  b.busy = false;
  EXPECT_FALSE(memory.take(b)) << "a turn that was refused is none";
  memory.remove(b);
  EXPECT_TRUE(memory.take(c));
  EXPECT_EQ(memory.turns(), 1) << "who is gone leaves no more";
}

// ---- the ledger ----

TEST(Ledger, TellsEveryDifferenceAndTheOrder) {
  const auto hash_of = [](const std::vector<std::tuple<const char*, int64_t, int, int>>& calls) {
    Ledger ledger;
    for (const auto& [operation, count, type, root] : calls)
      ledger.note(operation, count, type, root);
    return ledger.hash();
  };
  std::set<uint64_t> hashes;
  for (const auto& calls : std::vector<std::vector<std::tuple<const char*, int64_t, int, int>>>{
           {},
           {{"barrier", 0, 0, -1}},
           {{"broadcast", 0, 0, -1}},
           {{"broadcast", 1, 0, -1}},
           {{"broadcast", int64_t{1} << 32, 0, -1}},
           {{"broadcast", 1, 1, -1}},
           {{"broadcast", 1, 0, 0}},
           {{"broadcast", 1, 0, 1}},
           {{"broadcast", 1, 0, 0}, {"barrier", 0, 0, -1}},
           {{"barrier", 0, 0, -1}, {"broadcast", 1, 0, 0}}}) {
    EXPECT_TRUE(hashes.insert(hash_of(calls)).second);
    EXPECT_EQ(hash_of(calls), hash_of(calls));
  }
}

TEST(Ledger, KeepsTheLastCallsAndSaysWhatTheyWere) {
  Ledger ledger;
  for (int64_t call = 0; call < 2 * Ledger::kept + 3; ++call)
    ledger.note("a_name_longer_than_its_place", call, 3, call % 2 == 0 ? 0 : -1);
  EXPECT_EQ(ledger.calls(), 2 * Ledger::kept + 3);
  for (int64_t call = ledger.calls() - Ledger::kept; call < ledger.calls(); ++call) {
    EXPECT_EQ(ledger.last()[static_cast<size_t>(call % Ledger::kept)].count, call);
  }
  EXPECT_EQ(Ledger::describe(ledger.last()[0]), "a_name_longer_t of 512 elements (type 3, root 0)");
  EXPECT_EQ(Ledger::describe(ledger.last()[1]), "a_name_longer_t of 513 elements (type 3)");
}

}  // namespace
}  // namespace trireme::comm
