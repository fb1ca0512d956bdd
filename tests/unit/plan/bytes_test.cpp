// Bytes of a model with twelve tensors, added up by hand, and a ledger against plain sums.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "small_jobs.hpp"
#include "trireme/base/text.hpp"
#include "trireme/kernels/int8_gemm.hpp"
#include "trireme/plan/ledger.hpp"
#include "trireme/plan/model_bytes.hpp"

namespace trireme::test {
namespace {

using plan::Accuracy;
using plan::Exchange;
using plan::Phase;
using plan::Place;
using testing::HasSubstr;

// Of 3 ranks one has 4 x 8 of the embedding and the head, 3 x 8 of q and o, 2 x 8 of k and v, 6 x 8
// of gate and up, 3 x 16 of down, 3 of each norm.
TEST(ModelBytes, OfThreeRanksByHand) {
  const plan::ModelLayout model = layout(model::describe(small_shape(), model::HeadKind::language));
  EXPECT_EQ(plan::elements(model), 2 * 80 + 2 * 64 + 2 * 32 + 3 * 128 + 3 * 8);
  EXPECT_EQ(plan::shard_elements(model, 3), 12 * 64) << "each part takes a word of 64";
  // In units of 32: gate, up and down take two each. Of all three ranks: q 72 -> 96, k 48 -> 64,
  // gate 144 -> 160, a norm 9 -> 32.
  constexpr int64_t own = (12 + 3) * 32, block = 2 * 96 + 2 * 64 + 3 * 160 + 2 * 32,
                    all = 96 + block + 32 + 96, two = block + 32 + 96;
  constexpr int64_t slice = 2 * 24 + 2 * 16 + 3 * 48 + 2 * 3;  // of the block, without padding
  const auto bytes = [&](Exchange exchange, bool average) {
    return plan::sharded_model_bytes(model, 2, average, {exchange, 3, 3});
  };
  const auto host = bytes(Exchange::host_ring, true);
  EXPECT_EQ(host.weights_own, 2 * own);
  EXPECT_EQ(host.weights_ring, 2 * two);
  EXPECT_EQ(host.gradient_slots, 4 * two);
  EXPECT_EQ(host.receive, 4 * 2 * slice) << "of the two others";
  EXPECT_EQ(host.master, 4 * 768);
  EXPECT_EQ(host.gradients, 4 * 768);
  EXPECT_EQ(host.moments, 8 * 768);
  EXPECT_EQ(host.average, 4 * 768);
  const auto device = bytes(Exchange::device_ring, false);
  EXPECT_EQ(device.receive, 4 * slice);
  EXPECT_EQ(device.average, 0);
  const auto window = bytes(Exchange::windows, false);
  EXPECT_EQ(window.weights_own, (2 * all + 2) / 3) << "rounded up";
  EXPECT_EQ(window.weights_ring, 0);
  EXPECT_EQ(window.receive, 0);
  const auto nodes = plan::sharded_model_bytes(model, 2, false, {Exchange::windows, 3, 2});
  EXPECT_EQ(nodes.weights_own, 2 * all / 2) << "a half of the node's";
  EXPECT_EQ(nodes.weights_ring, 0);
  EXPECT_EQ(nodes.gradient_slots, 4 * two);
  EXPECT_EQ(nodes.receive, 4 * 3 * slice);
  const auto halves = [&](int ranks, Exchange exchange) {
    return plan::sharded_model_bytes(model, 2, false, {exchange, ranks, 2, 2});
  };
  EXPECT_EQ(halves(3, Exchange::host_ring).receive, 2 * 2 * slice) << "gradients travel in bf16";
  EXPECT_EQ(halves(3, Exchange::device_ring).receive, 2 * slice);
  EXPECT_EQ(halves(3, Exchange::windows).receive, 2 * 3 * slice);
  EXPECT_EQ(halves(3, Exchange::windows).gradient_slots, 4 * two) << "rounded where they lie";
  EXPECT_EQ(halves(1, Exchange::device_ring).receive,
            plan::sharded_model_bytes(model, 2, false, {Exchange::device_ring, 1}).receive)
      << "a single rank rounds nothing";
  const auto frozen =
      plan::sharded_model_bytes(plan::frozen(model), 2, true, {Exchange::host_ring, 3});
  EXPECT_EQ(frozen.weights_ring, 2 * two);
  EXPECT_EQ(frozen.gradient_slots + frozen.receive + frozen.master + frozen.gradients +
                frozen.moments + frozen.average,
            0);
}

// The final norm and the head alone: 3 and 4 x 8 of a rank.
TEST(ModelBytes, OfWhatIsTrainable) {
  auto spec = model::describe(small_shape(), model::HeadKind::language);
  const auto whole = layout(spec);
  model::freeze(spec, {"model.embed_tokens.*", "model.layers.*"}, "actor.freeze");
  const plan::ModelLayout model = layout(spec);
  EXPECT_EQ(plan::elements(model), plan::elements(whole));
  EXPECT_EQ(plan::trainable_elements(model), 8 + 80);
  EXPECT_EQ(plan::first_trainable_stage(model), 2u);
  EXPECT_EQ(plan::frozen_blocks(model), 1);
  EXPECT_EQ(plan::shard_elements(model, 3), 2 * 64);
  EXPECT_EQ(plan::largest_stage_slice(model, 3), 3 + 32);
  EXPECT_EQ(plan::gradient_sum_bytes(model, 3), 4 * (32 + 96));
  const auto part = plan::sharded_model_bytes(model, 2, true, {Exchange::host_ring, 3}),
             all = plan::sharded_model_bytes(whole, 2, true, {Exchange::host_ring, 3});
  EXPECT_EQ(part.weights_own, all.weights_own);
  EXPECT_EQ(part.weights_ring, all.weights_ring);
  EXPECT_EQ(part.gradient_slots, 4 * (32 + 96));
  EXPECT_EQ(part.receive, 4 * 2 * (3 + 32));
  EXPECT_EQ(part.master, 4 * 128);
  EXPECT_EQ(part.moments, 8 * 128);
  EXPECT_EQ(part.average, 4 * 128);
  const double trained = 88, products = static_cast<double>(plan::elements(whole)) - 80;
  EXPECT_DOUBLE_EQ(plan::backward_shares(model).inputs, trained / products);
  EXPECT_DOUBLE_EQ(plan::backward_shares(model).weights, trained / products);
  EXPECT_EQ(plan::backward_shares(whole).inputs + plan::backward_shares(whole).weights, 2);
  const auto frozen = plan::frozen(whole);
  EXPECT_EQ(plan::first_trainable_stage(frozen), frozen.stages.size());
  EXPECT_EQ(plan::shard_elements(frozen, 3), 0);
}

TEST(ModelBytes, ATiedHeadIsStoredOnceAndGatheredTwice) {
  config::ModelShape shape = small_shape();
  shape.tied = true;
  const plan::ModelLayout model = layout(model::describe(shape, model::HeadKind::language));
  EXPECT_EQ(plan::elements(model), 80 + 2 * 64 + 2 * 32 + 3 * 128 + 3 * 8);
  const auto bytes =
      plan::sharded_model_bytes(plan::frozen(model), 4, false, {Exchange::host_ring, 1});
  EXPECT_EQ(bytes.weights_own, 4 * (96 + 2 * 64 + 2 * 32 + 3 * 128 + 3 * 32));
  EXPECT_EQ(bytes.weights_ring, 4 * (2 * 64 + 2 * 32 + 3 * 128 + 2 * 32 + 32 + 96))
      << "the block and the head";
}

TEST(ModelBytes, OfAGenerator) {
  const model::ModelSpec spec = model::describe(small_shape(), model::HeadKind::language);
  // In bf16 and whole: embedding and head 160 -> 192 bytes, a norm 16 -> 64.
  EXPECT_EQ(plan::generator_weight_bytes(model::tensor_parallel_layout(spec, 1), 0, 2),
            2 * 192 + 2 * 128 + 2 * 64 + 3 * 256 + 3 * 64);
  for (const bool tied : {false, true}) {
    config::ModelShape shape = small_shape(2, 6, 3);
    shape.tied = tied;
    const model::ModelSpec whole = model::describe(shape, model::HeadKind::language);
    for (int degree = 1; degree <= 2; ++degree) {
      const auto slices = model::tensor_parallel_layout(whole, degree);
      for (int rank = 0; rank < degree; ++rank) {
        int64_t want = 0;
        for (size_t p = tied ? 0 : 1; p < whole.parameters.size(); ++p) {
          if (whole.parameters[p].spec.shape.size() == 2)
            want += kernels::int8_bytes(slices.block(p, rank).columns, slices.block(p, rank).rows);
        }
        EXPECT_EQ(plan::generator_int8_bytes(slices, rank, tied), want);
      }
    }
  }
  EXPECT_EQ(plan::kv_bytes_per_token(small_shape(5, 6, 3), 1, 2), 2 * 5 * 3 * 4 * 2);
  EXPECT_EQ(plan::kv_bytes_per_token(small_shape(5, 6, 3), 2, 2), 2 * 5 * 2 * 4 * 2)
      << "one of the two ranks has two of three heads";
}

int64_t bytes_of(const plan::Ledger& ledger, const std::string& what) {
  int64_t sum = 0;
  for (const auto& entry : ledger.entries()) sum += entry.what == what ? entry.bytes : 0;
  return sum;
}

plan::Machine of_cpus() { return {.name = "cpus", .host_bytes = int64_t{64} << 30}; }

// Two sums of fp32 rows that a node's ranks share; the parts of all ranks where MPI copies them.
// 100 prompt tokens and 28 sequences of hidden 8.
TEST(GeneratorLedger, CountsThePartsOfSumsOverAReplica) {
  config::Options options;
  options.data.max_len = 64;
  options.generate.tensor_parallel = 4;
  options.generate.max_batch_tokens = 100;
  options.generate.max_batch = 28;
  const auto parts = [&](int nodes, int per_node, plan::Machine machine) {
    const SmallJob made(options, small_shape(1, 4, 4), nodes, per_node, std::move(machine));
    return bytes_of(plan::memory_of_rank(made.job(), 0), "parts of sums over the replica's ranks");
  };
  const int64_t one = (100 + 28) * 8 * 4;
  EXPECT_EQ(parts(1, 4, of_cpus()), 2 * one);
  EXPECT_EQ(parts(2, 2, of_cpus()), 4 * one) << "a replica of two nodes";
  EXPECT_EQ(parts(1, 4, *plan::known_machine("h100")), 0) << "NCCL adds in place";
  options.generate.shared_sums = false;
  EXPECT_EQ(parts(1, 4, of_cpus()), 4 * one);
  options.generate.tensor_parallel = 1;
  EXPECT_EQ(parts(1, 4, of_cpus()), 0);
}

// No more than the deck's bytes, nor than the logits of a micro-batch: 200 tokens of vocabulary 10
// in fp32.
TEST(TrainerLedger, CountsLogitsThatWaitForTheirGradient) {
  config::Options options;
  options.model.dtype = config::ComputeType::fp32;
  options.data.max_len = 64;
  options.train.micro_batch_tokens = 200;
  const auto kept = [&](plan::Machine machine, int64_t shortest_prompt = 0) {
    const SmallJob made(options, small_shape(), 1, 1, std::move(machine));
    plan::Job job = made.job();
    job.length.shortest_prompt = shortest_prompt;
    const plan::Ledger ledger = plan::memory_of_rank(job, 0);
    for (const auto& entry : ledger.entries()) {
      if (entry.what != "head: logits that wait for their gradient") continue;
      EXPECT_EQ(entry.phases, plan::phase_bit(Phase::head));
    }
    return bytes_of(ledger, "head: logits that wait for their gradient");
  };
  EXPECT_EQ(kept(of_cpus()), 200 * 10 * 4);
  EXPECT_EQ(kept(*plan::known_machine("h100")), 0);
  EXPECT_EQ(kept(of_cpus(), 40), 200 * 10 * 4) << "answers of any length";
  options.rollout.max_new_tokens = 10;
  EXPECT_EQ(kept(of_cpus()), 200 * 10 * 4) << "prompts of any length";
  EXPECT_EQ(kept(of_cpus(), 40), 40 * 10 * 4) << "10 of at least 50 tokens";
  options.train.logits_memory = {1000};
  EXPECT_EQ(kept(of_cpus()), 1000);
  options.train.logits_memory = {};
  EXPECT_EQ(kept(of_cpus()), 0);
}

TEST(Ledger, AgainstPlainSums) {
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    plan::Ledger ledger;
    std::vector<plan::Entry> entries;
    for (int i = 0; i < 12; ++i) {
      const auto pick = [&](uint32_t below) { return static_cast<uint32_t>(random() % below); };
      const plan::Entry entry{"o",
                              std::to_string(i),
                              Place(pick(2)),
                              int64_t{pick(6)} - 1,
                              pick(1 << plan::phase_count),
                              Accuracy(pick(2)),
                              pick(3)};
      ledger.add(entry);
      if (entry.bytes > 0) entries.push_back(entry);
    }
    int64_t resident = 0;
    for (const Place place : {Place::device, Place::host}) {
      int64_t peak = 0;
      int first = 0;
      for (int i = 0; i < plan::phase_count; ++i) {
        int64_t sum = 0, estimated = 0, mapped = 0;
        std::vector<plan::Entry> there;
        for (const auto& entry : entries) {
          if (entry.place != place || (entry.phases >> i & 1) == 0) continue;
          sum += entry.bytes;
          mapped += entry.mapped;
          estimated += entry.accuracy == Accuracy::estimate ? entry.bytes : 0;
          there.push_back(entry);
        }
        const auto phase = static_cast<Phase>(i);
        ASSERT_EQ(ledger.bytes(place, phase), sum);
        ASSERT_EQ(ledger.bytes(place, phase, Accuracy::estimate), estimated);
        ASSERT_EQ(ledger.bytes(place, phase, Accuracy::exact), sum - estimated);
        if (sum > peak) std::tie(peak, first) = std::pair(sum, i);
        if (place == Place::host) resident = std::max(resident, sum + mapped);
        std::stable_sort(there.begin(), there.end(),
                         [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
        const auto largest = ledger.largest(place, phase, 3);
        ASSERT_EQ(largest.size(), std::min<size_t>(there.size(), 3));
        for (size_t k = 0; k < largest.size(); ++k) ASSERT_EQ(largest[k].what, there[k].what);
      }
      ASSERT_EQ(ledger.peak(place), peak);
      ASSERT_EQ(ledger.peak_phase(place), static_cast<Phase>(first)) << "the first of the largest";
    }
    ASSERT_EQ(ledger.resident_peak(), resident);
  }
}

TEST(Ledger, ASumThatDoesNotFitIsNoSmallOne) {
  plan::Ledger ledger;
  for (int i = 0; i < 2; ++i)
    ledger.add({"a", "b", Place::host, INT64_MAX, plan::every_phase, Accuracy::exact});
  EXPECT_ANY_THROW(ledger.bytes(Place::host, Phase::start));
}

TEST(KvNeed, OfTheDecksRollouts) {
  config::Options options;
  options.data.max_len = 100;
  options.rollout.batch_size = 10;
  options.rollout.n_samples_per_prompt = 3;
  options.generate.max_batch = 8;
  EXPECT_EQ(plan::kv_need(options, 20, 4).sequences, 8) << "of nine";
  EXPECT_EQ(plan::kv_need(options, 20, 10).sequences, 3);
  options.train.async_depth = 1;
  EXPECT_EQ(plan::kv_need(options, 20, 10).sequences, 3)
      << "a batch ends before the next one begins";
  options.train.partial_rollout_enable = true;
  EXPECT_EQ(plan::kv_need(options, 20, 10).sequences, 6) << "of two batches";
  EXPECT_EQ(plan::kv_need(options, 20, 4).expected_length, 20 + 80 / 2);
  EXPECT_EQ(plan::kv_need(options, 150, 4).expected_length, 150) << "no room is left";
  for (const auto& [wish, half] : {std::pair{30, 15}, {500, 40}}) {
    options.rollout.max_new_tokens = wish;
    EXPECT_EQ(plan::kv_need(options, 20, 4).expected_length, 20 + half);
  }
}

TEST(KvShortage, IsSaidOneByteTooEarlyAndNotLater) {
  EXPECT_EQ(plan::kv_shortage({8, 60}, 4800, 10), "");
  EXPECT_EQ(plan::kv_shortage({0, 60}, 0, 10), "");
  EXPECT_EQ(plan::kv_shortage({3, 0}, 30, 10), "") << "a length of at least one token";
  const std::string text = plan::kv_shortage({8, 60}, 4799, 10);
  EXPECT_THAT(text, HasSubstr("holds 7 of the 8 sequences"));
  EXPECT_THAT(text, HasSubstr("(60 tokens each"));
  EXPECT_THAT(text, HasSubstr("generate.kv_memory = \"" + base::human_bytes(4800) + "\""));
}

}  // namespace
}  // namespace trireme::test
