// Properties of plans, for every rank of the job at once on one process: integer arithmetic needs
// no MPI.
#include "trireme/weightsync/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "layouts.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::weightsync {
namespace {

struct Job {
  base::ShardLayout source;
  base::ShardLayout target;
  Members members;
  int ranks = 0;
  PlanOptions options;
};

std::vector<Plan> all_plans(const Job& job) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < job.ranks; ++rank)
    plans.push_back(make_plan(job.source, job.target, job.members, rank, job.options));
  return plans;
}

// Ways from a sender to a receiver must be listed alike by both, in the same order.
void expect_both_ends_agree(const std::vector<Plan>& plans) {
  std::map<std::pair<int, int>, std::vector<const Flow*>> sent, received;
  for (const Plan& plan : plans) {
    for (const Flow& f : plan.sends) {
      for (const int to : f.to) {
        if (f.route != Route::local) sent[{f.from, to}].push_back(&f);
      }
    }
  }
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    for (const Flow& f : plans[rank].receives)
      received[{f.from, static_cast<int>(rank)}].push_back(&f);
  }
  ASSERT_EQ(sent.size(), received.size());
  for (const auto& [pair, flows] : sent) {
    const auto& others = received[pair];
    ASSERT_EQ(flows.size(), others.size());
    for (size_t i = 0; i < flows.size(); ++i) {
      EXPECT_EQ(flows[i]->shard, others[i]->shard);
      EXPECT_EQ(flows[i]->slice, others[i]->slice);
      ASSERT_EQ(flows[i]->buckets.size(), others[i]->buckets.size());
      ASSERT_EQ(flows[i]->pieces.size(), others[i]->pieces.size());
      for (size_t b = 0; b < flows[i]->buckets.size(); ++b)
        EXPECT_EQ(flows[i]->buckets[b].number, others[i]->buckets[b].number);
    }
  }
}

// Every element of every target is written once, with the element that belongs there.
void expect_exact_cover(const Job& job, const std::vector<Plan>& plans) {
  std::map<int, std::pair<int, int>> role;  // rank -> replica, slice
  for (size_t r = 0; r < job.members.targets.size(); ++r) {
    for (size_t k = 0; k < job.members.targets[r].size(); ++k)
      role[job.members.targets[r][k]] = {static_cast<int>(r), static_cast<int>(k)};
  }
  for (const auto& [rank, where] : role) {
    const int slice = where.second;
    std::vector<std::vector<int64_t>> written(
        job.target.tensors().size());  // global element + 1, 0: never
    for (size_t i = 0; i < written.size(); ++i)
      written[i].assign(
          static_cast<size_t>(std::max<int64_t>(0, job.target.block(i, slice).elements())), 0);
    auto apply = [&](const Flow& flow) {
      EXPECT_EQ(flow.slice, slice);
      int64_t elements = 0;
      for (const Bucket& bucket : flow.buckets) {
        int64_t in_bucket = 0;
        for (size_t p = bucket.first; p < bucket.last; ++p) {
          const Piece& piece = flow.pieces[p];
          const base::Block source = job.source.block(piece.tensor, flow.shard);
          const int64_t columns = job.source.tensors()[piece.tensor].columns();
          for (int64_t r = 0; r < piece.run.rows; ++r) {
            for (int64_t c = 0; c < piece.run.columns; ++c) {
              const int64_t from = piece.run.source_offset + r * piece.run.source_stride + c;
              const int64_t global = (source.row + from / source.columns) * columns +
                                     source.column + from % source.columns;
              const int64_t to = piece.run.target_offset + r * piece.run.target_stride + c;
              ASSERT_LT(to, static_cast<int64_t>(written[piece.tensor].size()));
              ASSERT_EQ(written[piece.tensor][static_cast<size_t>(to)], 0) << "written twice";
              written[piece.tensor][static_cast<size_t>(to)] = global + 1;
            }
          }
          in_bucket += piece.run.elements();
        }
        EXPECT_EQ(in_bucket, bucket.elements);
        EXPECT_LE(in_bucket * job.options.element_bytes, job.options.bucket_bytes);
        elements += in_bucket;
      }
      EXPECT_EQ(elements, flow.elements());
    };
    for (const Flow& flow : plans[static_cast<size_t>(rank)].receives) apply(flow);
    for (const Flow& flow : plans[static_cast<size_t>(rank)].sends) {
      if (flow.route == Route::local) apply(flow);
    }
    for (size_t i = 0; i < written.size(); ++i) {
      const base::Block block = job.target.block(i, slice);
      const int64_t columns = job.target.tensors()[i].columns();
      for (int64_t e = 0; e < static_cast<int64_t>(written[i].size()); ++e) {
        const int64_t global =
            (block.row + e / block.columns) * columns + block.column + e % block.columns;
        ASSERT_EQ(written[i][static_cast<size_t>(e)], global + 1)
            << job.target.tensors()[i].name << " element " << e << " on rank " << rank;
      }
    }
  }
}

// Members on consecutive ranks: `groups` x M sources from 0, R x t targets from `first_target`.
Members members_of(int groups, int m, int replicas, int t, int first_target) {
  Members members;
  int next = 0;
  for (int g = 0; g < groups; ++g) {
    members.sources.emplace_back(static_cast<size_t>(m));
    for (int& rank : members.sources.back()) rank = next++;
  }
  next = first_target;
  for (int r = 0; r < replicas; ++r) {
    members.targets.emplace_back(static_cast<size_t>(t));
    for (int& rank : members.targets.back()) rank = next++;
  }
  return members;
}

int draw(uint64_t seed, uint32_t what, int below) {
  return std::min(below - 1, static_cast<int>(base::uniform(3, base::Stream::test, seed, what) *
                                              static_cast<float>(below)));
}

TEST(Plan, RandomLayoutsWriteEveryElementOnce) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    LlamaShape shape;
    shape.layers = 1 + draw(seed, 0, 2);
    shape.kv_heads = 1 + draw(seed, 1, 4);
    shape.heads = shape.kv_heads * (1 + draw(seed, 2, 3));
    shape.head = 4;
    shape.hidden = 8 + draw(seed, 3, 30);
    shape.ffn = 5 + draw(seed, 4, 40);
    shape.vocabulary = 11 + draw(seed, 5, 60);
    const int groups = 1 + draw(seed, 6, 3);
    const int m = 1 + draw(seed, 7, 5);
    const int replicas = 1 + draw(seed, 8, 4);
    const int t = 1 + draw(seed, 9, static_cast<int>(shape.kv_heads));
    const int sources = groups * m;
    const int first_target = draw(seed, 10, sources + 1);  // from fully colocated to disjoint
    Job job;
    job.source = base::ShardLayout::by_rows(llama_tensors(shape), m);
    job.target = llama_slices(shape, t);
    job.members = members_of(groups, m, replicas, t, first_target);
    job.ranks = std::max(sources, first_target + replicas * t);
    job.options.bucket_bytes = 2 * (1 + draw(seed, 11, 500));
    job.options.node_bucket_bytes = job.options.bucket_bytes;
    if (draw(seed, 12, 2) == 1) job.options.relay = PlanOptions::Relay::always;
    const int per_node = 1 + draw(seed, 13, 4);
    const int per_memory = 1 + draw(seed, 14, 4);
    for (int rank = 0; rank < job.ranks; ++rank) {
      job.members.node_of.push_back(rank / per_node);
      job.members.shares_memory.push_back(rank / per_memory % 3 != 0);
    }
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto plans = all_plans(job);
    expect_both_ends_agree(plans);
    expect_exact_cover(job, plans);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Plan, ARankWithBothRolesSendsItselfNothing) {
  Job job;
  job.source = base::ShardLayout::by_rows(llama_tensors({}), 2);
  job.target = base::ShardLayout::whole(llama_tensors({}), 1);
  job.members = members_of(1, 2, 2, 1, 0);
  job.ranks = 2;
  for (const Plan& plan : all_plans(job)) {
    for (const Flow& flow : plan.sends)
      EXPECT_EQ(flow.route == Route::local, flow.to.front() == flow.from);
    EXPECT_EQ(plan.receives.size(), 1u);
  }
}

// A hybrid trainer holds each shard several times: the work is shared.
TEST(Plan, HybridReplicasShareTheSending) {
  Job job;
  job.source = base::ShardLayout::by_rows(llama_tensors({}), 2);
  job.target = llama_slices({}, 2);
  job.members = members_of(4, 2, 4, 2, 8);
  job.ranks = 16;
  job.options.relay = PlanOptions::Relay::never;
  const auto plans = all_plans(job);
  int64_t least = INT64_MAX;
  int64_t most = 0;
  for (int rank = 0; rank < 8; ++rank) {
    int64_t sent = 0;
    for (const Flow& flow : plans[static_cast<size_t>(rank)].sends) sent += flow.elements();
    least = std::min(least, sent);
    most = std::max(most, sent);
  }
  EXPECT_LE(most, least + least / 4);
}

// With relay a trainer sends its shard once, whatever the number of replicas, and each generator
// receives its slice once.
TEST(Plan, RelaysMeetTheBound) {
  Job job;
  LlamaShape shape;
  shape.hidden = 128;
  shape.vocabulary = 2000;
  job.source = base::ShardLayout::by_rows(llama_tensors(shape), 2);
  job.target = base::ShardLayout::whole(llama_tensors(shape), 1);
  job.members = members_of(1, 2, 4, 1, 2);
  job.ranks = 6;
  job.options.bucket_bytes = 8192;
  const auto plans = all_plans(job);
  EXPECT_TRUE(plans[0].relay);
  const int64_t total = job.source.total_elements();
  for (int rank = 0; rank < 6; ++rank) {
    int64_t sent = 0;
    int64_t received = 0;
    for (const Flow& flow : plans[static_cast<size_t>(rank)].sends) sent += flow.elements();
    for (const Flow& flow : plans[static_cast<size_t>(rank)].receives) received += flow.elements();
    if (rank < 2) {
      EXPECT_EQ(sent, job.source.elements(rank));
    } else {
      EXPECT_EQ(received, total);
      EXPECT_LE(sent, total);
    }
  }
  EXPECT_EQ(plans[0].bound_bytes(), total * 2);
}

// Elements that each node takes from other nodes.
std::map<int, int64_t> from_the_network(const Job& job, const std::vector<Plan>& plans) {
  std::map<int, int64_t> out;
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    const int node = job.members.node_of[rank];
    for (const Flow& flow : plans[rank].receives) {
      if (job.members.node_of[static_cast<size_t>(flow.from)] != node) out[node] += flow.elements();
    }
  }
  return out;
}

// Two trainers a node, four replicas a node: all weights come once to a node, a part to each of its
// ranks, and with more nodes of generators than of trainers each node of trainers sends them once
// in all.
TEST(Plan, ANodeTakesEveryByteOnce) {
  LlamaShape shape;
  shape.hidden = 128;
  shape.vocabulary = 2000;
  for (const int generator_nodes : {1, 2, 3}) {
    for (const bool memory : {true, false}) {
      for (const int t : {1, 2}) {
        SCOPED_TRACE(testing::Message()
                     << generator_nodes << " nodes, slices " << t << (memory ? "" : ", messages"));
        Job job;
        job.source = base::ShardLayout::by_rows(llama_tensors(shape), 4);
        job.target = llama_slices(shape, t);
        job.members = members_of(1, 4, generator_nodes * 4 / t, t, 4);
        job.ranks = 4 + generator_nodes * 4;
        for (int rank = 0; rank < job.ranks; ++rank)
          job.members.node_of.push_back(rank < 4 ? rank / 2 : 1 + rank / 4);
        job.members.shares_memory.assign(static_cast<size_t>(job.ranks), memory);
        job.options.bucket_bytes = 8192;
        const auto plans = all_plans(job);
        expect_both_ends_agree(plans);
        expect_exact_cover(job, plans);
        EXPECT_EQ(plans[0].relay, generator_nodes > 2);
        EXPECT_EQ(plans[0].passes_messages, generator_nodes > 2 || !memory);
        int64_t slices = 0;
        for (int k = 0; k < t; ++k) slices += job.target.elements(k);
        for (const auto& [node, elements] : from_the_network(job, plans))
          EXPECT_EQ(elements, slices) << "node " << node;
        int64_t sent = 0;
        for (int rank = 0; rank < job.ranks; ++rank) {
          const Plan& plan = plans[static_cast<size_t>(rank)];
          int64_t taken = 0;
          for (const Flow& flow : plan.receives)
            taken += job.members.node_of[static_cast<size_t>(flow.from)] !=
                             job.members.node_of[static_cast<size_t>(rank)]
                         ? flow.elements()
                         : 0;
          if (rank < 4) {
            for (const Flow& flow : plan.sends) sent += flow.elements();
          } else {
            EXPECT_GT(taken, slices / 4 * 3 / 4) << "rank " << rank;
            EXPECT_LT(taken, slices / 4 * 5 / 4) << "rank " << rank;
          }
          for (const Flow& flow : plan.sends)
            EXPECT_EQ(flow.to.size() > 1, flow.route == Route::node && t == 1)
                << "one ring for all others";
        }
        EXPECT_EQ(sent, plans[0].relay ? slices : slices * generator_nodes);
      }
    }
  }
}

// Replicas beside a part of the trainers: what these hold does not come from other nodes.
TEST(Plan, WhatANodeHoldsStaysInside) {
  Job job;
  job.source = base::ShardLayout::by_rows(llama_tensors({}), 4);
  job.target = base::ShardLayout::whole(llama_tensors({}), 1);
  job.members = members_of(1, 4, 4, 1, 0);
  job.ranks = 4;
  job.members.node_of = {0, 0, 1, 1};
  const auto plans = all_plans(job);
  EXPECT_FALSE(plans[0].relay);
  expect_exact_cover(job, plans);
  auto network = from_the_network(job, plans);
  EXPECT_EQ(network[0], job.source.elements(2) + job.source.elements(3));
  EXPECT_EQ(network[1], job.source.elements(0) + job.source.elements(1));
}

// 70B, 128 ZeRO ranks on 16 nodes to 8 replicas of TP 8: a rank's plan stays small.
TEST(Plan, SeventyBillionOn128Ranks) {
  const LlamaShape shape{80, 8192, 64, 8, 128, 28672, 128256};
  Job job;
  auto tensors = llama_tensors(shape);
  job.source = base::ShardLayout::by_rows(tensors, 128);
  job.target = llama_slices(shape, 8);
  job.members = members_of(1, 128, 8, 8, 128);
  for (int rank = 0; rank < 192; ++rank) job.members.node_of.push_back(rank / 8);
  int64_t covered = 0;
  for (const int rank : {0, 77, 127, 128, 150, 191}) {
    const Plan plan = make_plan(job.source, job.target, job.members, rank, job.options);
    EXPECT_LE(plan.memory_bytes, 64 << 20) << rank;
    EXPECT_FALSE(plan.relay);
    size_t buckets = 0;
    for (const auto* flows : {&plan.sends, &plan.receives}) {
      for (const Flow& flow : *flows) {
        buckets += flow.buckets.size();
        EXPECT_LE(static_cast<int64_t>(flow.buckets.size()),
                  flow.elements() * 2 / job.options.bucket_bytes + 2 +
                      static_cast<int64_t>(flow.pieces.size()) / 8);
      }
    }
    EXPECT_GT(buckets, 0u);
    if (rank < 128) {
      EXPECT_EQ(plan.sends.size(), 64u);
      for (const Flow& flow : plan.sends) covered += flow.elements();
    } else {
      EXPECT_EQ(plan.receives.size(), 128u);
      int64_t received = 0;
      for (const Flow& flow : plan.receives) received += flow.elements();
      EXPECT_EQ(received, job.target.elements((rank - 128) % 8));
    }
  }
  EXPECT_GT(covered, 0);
}

TEST(Plan, RefusesWhatDoesNotFit) {
  auto error_of = [](const Job& job) {
    try {
      make_plan(job.source, job.target, job.members, 0, job.options);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::configuration);
      return std::string(error.what());
    }
    return std::string();
  };
  Job job;
  job.source = base::ShardLayout::by_rows(llama_tensors({}), 2);
  job.target = llama_slices({}, 2);
  job.members = members_of(1, 2, 1, 2, 2);
  EXPECT_EQ(error_of(job), "");
  Job other = job;
  other.members = members_of(1, 3, 1, 2, 3);
  EXPECT_THAT(error_of(other), testing::HasSubstr("3 ranks"));
  other = job;
  LlamaShape wider;
  wider.ffn = 100;
  other.target = llama_slices(wider, 2);
  EXPECT_THAT(error_of(other), testing::HasSubstr("mlp.gate_proj.weight"));
  other = job;
  other.options.bucket_bytes = 1;
  EXPECT_THAT(error_of(other), testing::HasSubstr("bucket_bytes"));
}

}  // namespace
}  // namespace trireme::weightsync
