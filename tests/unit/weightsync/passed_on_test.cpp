// Plans as messages that are carried out, for ranks and nodes in any order: who passes something on
// has got it, from somebody who had it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <tuple>

#include "layouts.hpp"
#include "trireme/weightsync/plan.hpp"
#include "weightsync/flow_builder.hpp"

namespace trireme::weightsync {
namespace {

using PartOfPlan = std::tuple<int, int, int>;  // shard, slice, bucket

struct DrawnJob {
  base::ShardLayout source, target;
  Members members;
  int ranks = 0;
  PlanOptions options;
};

std::vector<std::vector<int>> groups_from(const std::vector<int>& ranks, int groups, int each) {
  std::vector<std::vector<int>> out;
  for (int g = 0; g < groups; ++g)
    out.emplace_back(ranks.begin() + g * each, ranks.begin() + (g + 1) * each);
  return out;
}

// Trainers and generators on shuffled ranks, nodes of uneven sizes, the ranks of a node anywhere.
DrawnJob draw_job(uint32_t seed) {
  std::mt19937 random(seed);
  const auto from = [&](int least, int most) {
    return least + static_cast<int>(random() % static_cast<uint32_t>(most - least + 1));
  };
  LlamaShape shape;
  shape.layers = 1;
  shape.kv_heads = from(1, 3);
  shape.heads = shape.kv_heads * from(1, 2);
  shape.head = 4;
  shape.hidden = from(3, 20);
  shape.ffn = from(3, 30);
  shape.vocabulary = from(3, 40);
  const int groups = from(1, 2), shards = from(1, 4), replicas = from(1, 5),
            slices = from(1, static_cast<int>(shape.kv_heads));
  DrawnJob job;
  job.ranks = std::max(groups * shards, replicas * slices) + from(0, 4);
  std::vector<int> ranks(static_cast<size_t>(job.ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::shuffle(ranks.begin(), ranks.end(), random);
  job.members.sources = groups_from(ranks, groups, shards);
  std::shuffle(ranks.begin(), ranks.end(), random);
  job.members.targets = groups_from(ranks, replicas, slices);
  const int nodes = from(1, 4);
  for (int rank = 0; rank < job.ranks; ++rank) {
    job.members.node_of.push_back(from(0, nodes - 1));
    job.members.shares_memory.push_back(from(0, 3) != 0);
  }
  job.source = base::ShardLayout::by_rows(llama_tensors(shape), shards);
  job.target = llama_slices(shape, slices);
  job.options.bucket_bytes = 2 * from(1, 200);
  job.options.node_bucket_bytes = 2 * from(1, 200);
  job.options.relay = static_cast<PlanOptions::Relay>(from(0, 2));
  return job;
}

std::vector<Plan> plans_of(const DrawnJob& job) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < job.ranks; ++rank)
    plans.push_back(make_plan(job.source, job.target, job.members, rank, job.options));
  return plans;
}

// Elements of each bucket, which must be the same in every flow that has it.
int64_t shared_elements(const DrawnJob& job, int shard, int slice) {
  int64_t sum = 0;
  for (size_t i = 0; i < job.source.tensors().size(); ++i) {
    const auto run = base::copy_between(job.source.block(i, shard), job.target.block(i, slice));
    sum += run ? run->elements() : 0;
  }
  return sum;
}

void expect_everybody_is_served(const DrawnJob& job) {
  const std::vector<Plan> plans = plans_of(job);
  const auto node = [&](int rank) { return job.members.node_of[static_cast<size_t>(rank)]; };
  std::vector<std::map<PartOfPlan, int64_t>> has(
      plans.size());  // by rank: what came there, with its elements
  struct Hop {
    int from, to;
    PartOfPlan part;
    int64_t elements;
  };
  std::vector<Hop> open;
  for (const Plan& plan : plans) {
    for (const Flow& flow : plan.sends) {
      ASSERT_FALSE(flow.to.empty());
      if (!flow.passed_on()) {
        const bool holds = std::ranges::any_of(job.members.sources, [&](const auto& group) {
          return group[static_cast<size_t>(flow.shard)] == flow.from;
        });
        ASSERT_TRUE(holds) << "rank " << flow.from << " sends a shard that it does not have";
      }
      for (const int to : flow.to) {
        ASSERT_TRUE(std::ranges::any_of(job.members.targets, [&](const auto& replica) {
          return replica[static_cast<size_t>(flow.slice)] == to;
        }));
        const bool memory = job.members.shares_memory[static_cast<size_t>(flow.from)] &&
                            job.members.shares_memory[static_cast<size_t>(to)];
        const Route route = to == flow.from                         ? Route::local
                            : node(to) == node(flow.from) && memory ? Route::node
                                                                    : Route::message;
        ASSERT_EQ(flow.route, route);
        for (const Bucket& bucket : flow.buckets)
          open.push_back({flow.passed_on() ? flow.from : -1,
                          to,
                          {flow.shard, flow.slice, bucket.number},
                          bucket.elements});
      }
    }
  }
  // Deliver what can be delivered until nothing more can: whoever passes on waits for it.
  for (bool moved = true; moved && !open.empty();) {
    moved = false;
    std::vector<Hop> later;
    for (const Hop& hop : open) {
      if (hop.from >= 0 && !has[static_cast<size_t>(hop.from)].contains(hop.part)) {
        later.push_back(hop);
        continue;
      }
      if (hop.from >= 0) { ASSERT_EQ(has[static_cast<size_t>(hop.from)][hop.part], hop.elements); }
      ASSERT_TRUE(has[static_cast<size_t>(hop.to)].emplace(hop.part, hop.elements).second)
          << "rank " << hop.to << " gets a bucket twice";
      moved = true;
    }
    open.swap(later);
  }
  ASSERT_TRUE(open.empty()) << open.size() << " buckets wait for each other";
  for (const auto& replica : job.members.targets) {
    for (size_t slice = 0; slice < replica.size(); ++slice) {
      std::map<int, int64_t> of_shard;
      for (const auto& [part, elements] : has[static_cast<size_t>(replica[slice])])
        of_shard[std::get<0>(part)] += elements;
      for (int shard = 0; shard < job.source.ranks(); ++shard) {
        ASSERT_EQ(of_shard[shard], shared_elements(job, shard, static_cast<int>(slice)))
            << "shard " << shard << " of rank " << replica[slice];
      }
    }
  }
}

TEST(PlanCarriedOut, EveryTargetGetsEveryBucketFromSomebodyWhoHasIt) {
  for (uint32_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    expect_everybody_is_served(draw_job(seed));
    if (testing::Test::HasFatalFailure()) return;
  }
}

// A node that holds no shard takes no byte twice from other nodes, wherever its ranks stand in the
// job.
TEST(PlanCarriedOut, NoNodeTakesABucketTwice) {
  for (uint32_t seed = 200; seed < 280; ++seed) {
    const DrawnJob job = draw_job(seed);
    std::map<std::pair<int, PartOfPlan>, int> taken;
    for (const Plan& plan : plans_of(job)) {
      for (const Flow& flow : plan.sends) {
        for (const int to : flow.to) {
          const int there = job.members.node_of[static_cast<size_t>(to)];
          if (there == job.members.node_of[static_cast<size_t>(flow.from)]) continue;
          for (const Bucket& bucket : flow.buckets) {
            EXPECT_EQ((++taken[{there, {flow.shard, flow.slice, bucket.number}}]), 1)
                << "node " << there << " seed " << seed;
          }
        }
      }
    }
  }
}

// ---- buckets ----

TEST(FlowBuilder, BucketsAreFullAndKeepTheOrder) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const int64_t limit = 1 + static_cast<int64_t>(random() % 20);
    Flow flow;
    FlowBuilder builder(flow, limit);
    std::vector<std::tuple<uint32_t, int64_t, int64_t>>
        want;  // tensor, source element, target element: row by row
    for (uint32_t tensor = 0; tensor < 4; ++tensor) {
      base::CopyRun run;
      run.rows = 1 + static_cast<int64_t>(random() % 6);
      run.columns = 1 + static_cast<int64_t>(random() % 30);
      run.source_offset = static_cast<int64_t>(random() % 10);
      run.target_offset = static_cast<int64_t>(random() % 10);
      run.source_stride = run.columns + static_cast<int64_t>(random() % 5);
      run.target_stride = run.columns + static_cast<int64_t>(random() % 5);
      builder.add(tensor, run);
      for (int64_t r = 0; r < run.rows; ++r) {
        for (int64_t c = 0; c < run.columns; ++c)
          want.emplace_back(tensor, run.source_offset + r * run.source_stride + c,
                            run.target_offset + r * run.target_stride + c);
      }
    }
    builder.finish();
    builder.finish();  // nothing is left
    std::vector<std::tuple<uint32_t, int64_t, int64_t>> got;
    size_t next_piece = 0;
    for (size_t b = 0; b < flow.buckets.size(); ++b) {
      const Bucket& bucket = flow.buckets[b];
      EXPECT_EQ(bucket.number, static_cast<int32_t>(b));
      EXPECT_EQ(bucket.first, next_piece);
      EXPECT_GT(bucket.last, bucket.first);
      EXPECT_GT(bucket.elements, 0);
      EXPECT_LE(bucket.elements, limit);
      int64_t elements = 0;
      for (size_t p = bucket.first; p < bucket.last; ++p) {
        const auto& [tensor, run] = flow.pieces[p];
        elements += run.elements();
        for (int64_t r = 0; r < run.rows; ++r) {
          for (int64_t c = 0; c < run.columns; ++c)
            got.emplace_back(tensor, run.source_offset + r * run.source_stride + c,
                             run.target_offset + r * run.target_stride + c);
        }
      }
      EXPECT_EQ(elements, bucket.elements);
      next_piece = bucket.last;
    }
    EXPECT_EQ(next_piece, flow.pieces.size());
    ASSERT_EQ(got, want) << "limit " << limit << " round " << round;
  }
}

TEST(FlowBuilder, DealingKeepsEveryBucketOnce) {
  Flow flow;
  flow.shard = 5;
  FlowBuilder builder(flow, 4);
  builder.add(0, {1, 30, 0, 30, 0, 30});
  builder.add(1, {3, 3, 0, 3, 0, 7});
  builder.finish();
  for (const size_t count : {size_t{1}, size_t{2}, size_t{3}, size_t{100}}) {
    std::set<int32_t> seen;
    int64_t elements = 0;
    for (size_t which = 0; which < count; ++which) {
      const Flow part = every_nth_bucket(flow, count, which);
      elements += part.elements();
      for (const Bucket& bucket : part.buckets) {
        EXPECT_TRUE(seen.insert(bucket.number).second);
        EXPECT_EQ((static_cast<size_t>(bucket.number) + 5) % count, which);
        const Bucket& whole = flow.buckets[static_cast<size_t>(bucket.number)];
        ASSERT_EQ(bucket.last - bucket.first, whole.last - whole.first);
        for (size_t p = 0; p < bucket.last - bucket.first; ++p) {
          EXPECT_EQ(part.pieces[bucket.first + p].run.source_offset,
                    flow.pieces[whole.first + p].run.source_offset);
          EXPECT_EQ(part.pieces[bucket.first + p].tensor, flow.pieces[whole.first + p].tensor);
        }
      }
    }
    EXPECT_EQ(seen.size(), flow.buckets.size());
    EXPECT_EQ(elements, 39);
  }
}

}  // namespace
}  // namespace trireme::weightsync
