// Advice that is followed: what `trireme plan` and a refused job say to set is set, as a user
// would, and planned again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "small_jobs.hpp"
#include "trireme/plan/search.hpp"

namespace trireme::test {
namespace {

using plan::Phase;
using plan::Place;

config::Options small_deck() {
  config::Options options;
  options.data.max_len = 512;
  options.rollout.batch_size = 64;
  options.train.batch_size = 32;
  options.train.micro_batch_tokens = 4096;
  options.generate.tensor_parallel = 1;
  return options;
}

plan::Machine gpus(int64_t bytes) {
  plan::Machine machine = *plan::known_machine("h100");
  machine.device_bytes = bytes;
  return machine;
}

// Whatever the fullest rank is said to be, no rank has more, and no node.
TEST(Fit, BoundsEveryRankAndNode) {
  for (const auto& [trainer, generator] : {std::pair{"", ""},
                                           {"2", "2"},
                                           {"3", "1"},
                                           {"0-1", "0-3"},
                                           {"2-3", "0-3"},
                                           {"1-3", "0-3"}}) {
    for (const int64_t device : {int64_t{0}, int64_t{1} << 34}) {
      for (const auto& [group, degree] : {std::pair{0, 1}, {1, 1}, {0, 2}, {1, 2}}) {
        config::Options options = small_deck();
        options.ranks.trainer = trainer;
        options.ranks.generator = generator;
        options.train.shard_group = group;
        options.train.optimizer_offload = device > 0;
        options.generate.tensor_parallel = degree;
        config::ModelShape shape = small_shape(2, 6, 3);
        shape.ffn = 320;  // five units of 64: the second of two ranks has three of them
        if (config::resolve_ranks(options.ranks, 4, config::block_nodes(4, 2)).generator.size() %
                static_cast<size_t>(degree) !=
            0)
          continue;
        const SmallJob small(options, shape, 2, 2,
                             {.name = "m", .device_bytes = device, .host_bytes = int64_t{1} << 34});
        const plan::Fit fit = plan::fit(small.job());
        std::vector<std::vector<int64_t>> nodes(2, std::vector<int64_t>(plan::phase_count, 0));
        for (int rank = 0; rank < 4; ++rank) {
          const plan::Ledger ledger = plan::memory_of_rank(small.job(), rank);
          EXPECT_LE(ledger.peak(Place::device), fit.device.peak)
              << trainer << "/" << generator << ", rank " << rank;
          EXPECT_LE(ledger.peak(Place::host), fit.host.peak);
          for (int i = 0; i < plan::phase_count; ++i) {
            nodes[static_cast<size_t>(rank / 2)][static_cast<size_t>(i)] +=
                ledger.bytes(Place::host, static_cast<Phase>(i));
          }
        }
        for (const auto& node : nodes)
          EXPECT_LE(*std::max_element(node.begin(), node.end()), fit.node_bytes);
        EXPECT_EQ(fit.device.peak,
                  plan::memory_of_rank(small.job(), fit.device.rank).peak(Place::device));
      }
    }
  }
}

TEST(Fit, ACapacityIsReachedAndNotExceeded) {
  SmallJob small(small_deck(), small_shape(), 1, 2, {.name = "m"});
  EXPECT_TRUE(plan::fit(small.job()).fits()) << "of nothing known nothing is exceeded";
  small.machine.host_bytes = int64_t{1} << 40;
  // The caches take a share of what is free: a size, so that the need is one number.
  small.options.generate.kv_memory = {0, 1 << 20};
  const int64_t need = plan::fit(small.job()).node_bytes;
  small.machine.host_bytes = need;
  EXPECT_TRUE(plan::fit(small.job()).fits());
  small.machine.host_bytes = need - 1;
  EXPECT_FALSE(plan::fit(small.job()).fits());
}

TEST(CachesBesideTraining, StayWhereNineTenthsOfTheMemoryHoldAll) {
  for (const bool devices : {false, true}) {
    config::Options options = small_deck();
    options.generate.kv_memory = {0, 1 << 20};
    SmallJob small(options, small_shape(), 1, 2, {.name = "m"});
    int64_t& memory = devices ? small.machine.device_bytes : small.machine.host_bytes;
    memory = int64_t{1} << 40;
    plan::Job kept = small.job();
    kept.keeps_caches = true;
    const plan::Fit fit = plan::fit(kept);
    const int64_t need = devices ? fit.device.peak : fit.node_bytes;
    const auto stay = [&](int64_t bytes) {
      memory = bytes;
      return plan::caches_beside_training(small.job()).stay;
    };
    EXPECT_TRUE(stay(need * 10 / 9 + 10));
    EXPECT_FALSE(stay(need * 10 / 9 - 10)) << "a tenth is for what is estimated";
    EXPECT_FALSE(stay(plan::free_unknown));
    memory = int64_t{1} << 40;
    small.options.generate.keep_kv_memory = false;
    const plan::CachesBesideTraining caches = plan::caches_beside_training(small.job());
    EXPECT_FALSE(caches.stay);
    EXPECT_GT(caches.bytes, 0);
    EXPECT_THAT(
        plan::describe(caches),
        testing::HasSubstr(
            "given back while trainers of the rank work (generate.keep_kv_memory = false)"));
  }
}

TEST(CachesBesideTraining, AreThoseOfGeneratorsThatTakeTurnsWithTrainers) {
  const auto bytes = [](const std::vector<std::string>& overrides, int nodes = 1) {
    config::Options options = small_deck();
    options.generate.kv_memory = {0, 1 << 20};
    return plan::caches_beside_training(
               SmallJob(options, small_shape(), nodes, 2, gpus(int64_t{80} << 30))
                   .with(overrides)
                   .job())
        .bytes;
  };
  EXPECT_EQ(bytes({"ranks.trainer=1", "ranks.generator=1"}), 0);
  EXPECT_EQ(bytes({"train.async_depth=1"}), 0) << "they work at the same time";
  EXPECT_GT(bytes({}, 2), 0);
}

// Two KV heads and eight ranks a node: generate.tensor_parallel stops at 2.
TEST(NearestFits, FitWhenTheyAreSet) {
  std::set<std::string> keys;
  for (const int64_t megabytes : {2150, 2250, 2350, 2500, 3000, 4000, 8000}) {
    for (const char* dtype : {"bf16", "fp32"}) {
      config::Options options = small_deck();
      options.train.recompute = 0;
      options.train.enable_ema = true;
      options.train.shard_group = 4;
      config::ModelShape shape = small_shape(4, 4, 2);
      shape.hidden = 512;
      shape.head_dim = 128;
      shape.ffn = 2048;
      shape.vocab = 32000;
      const SmallJob given = SmallJob(options, shape, 1, 8, gpus(megabytes * 1'000'000))
                                 .with({std::string("model.dtype=") + dtype});
      if (plan::fit(given.job()).fits()) continue;
      for (const auto& remedy : plan::nearest_fits(given.job(), given.cut(), 6)) {
        EXPECT_TRUE(remedy.fit.fits()) << remedy.change;
        std::vector<std::string> overrides;
        int nodes = 1;
        for (size_t at = 0; at < remedy.change.size();) {
          const size_t end = std::min(remedy.change.find(" and ", at), remedy.change.size());
          const std::string change = remedy.change.substr(at, end - at);
          const bool is_key = change.find('=') != std::string::npos;
          if (is_key) overrides.push_back(change);
          if (!is_key) nodes = std::stoi(change);
          keys.insert(is_key ? change.substr(0, change.find('=')) : "nodes");
          at = end + 5;
        }
        const SmallJob changed = given.with(overrides, nodes);
        EXPECT_NO_THROW(config::check_placement(changed.options, changed.roles)) << remedy.change;
        const plan::Fit fit = plan::fit(changed.job());
        EXPECT_TRUE(fit.fits()) << remedy.change << " on " << megabytes << " MB";
        EXPECT_EQ(fit.device.peak, remedy.fit.device.peak) << remedy.change;
        EXPECT_EQ(fit.node_bytes, remedy.fit.node_bytes) << remedy.change;
      }
    }
  }
  EXPECT_GE(keys.size(), 4u) << "several keys helped, on one machine or another";
}

// A model of eight blocks whose activations are most of what it holds.
SmallJob long_sequences(const std::vector<std::string>& overrides, int64_t megabytes) {
  config::Options options = small_deck();
  options.train.micro_batch_tokens = 65536;
  options.train.batch_size = 512;
  options.rollout.batch_size = 512;
  options.generate.kv_memory = {0, 1 << 20};
  config::ModelShape shape = small_shape(8, 4, 2);
  shape.hidden = 256;
  shape.head_dim = 64;
  shape.ffn = 1024;
  return SmallJob(options, shape, 1, 2, gpus(megabytes * 1'000'000)).with(overrides);
}

TEST(FewestRecomputed, KeepsWhatTheMachineHasRoomFor) {
  const auto peak = [](SmallJob job, int64_t recompute) {
    job.options.train.recompute = recompute;
    return plan::fit(job.job()).device.peak;
  };
  const SmallJob least = long_sequences({}, 80'000);
  const int64_t all = peak(least, 8), block = peak(least, 6) - peak(least, 7);
  ASSERT_GT(block, 100'000'000);
  const auto fewest = [&](const char* budget, int64_t bytes) {
    SmallJob job = long_sequences({std::string("train.keep_memory=") + budget}, 1);
    job.machine.device_bytes = bytes;
    return plan::fewest_recomputed(job.job());
  };
  const int64_t three = peak(least, 5), four = peak(least, 4);
  EXPECT_EQ(fewest("1", three), 5) << "three of eight fit";
  EXPECT_EQ(fewest("1", three - 1), 6);
  EXPECT_EQ(fewest("1", four - 1), 5);
  EXPECT_EQ(fewest("0.5", all + 2 * (three - all)), 5) << "half of what is left";
  EXPECT_EQ(fewest("1", int64_t{1} << 40), 0);
  EXPECT_EQ(peak(least, fewest("1", 1 << 20)), all)
      << "where nothing fits, what is kept makes it no worse";
}

TEST(Search, LeavesRecomputationToKeepMemory) {
  const SmallJob given = long_sequences({"train.keep_memory=0.5"}, 80'000);
  const plan::SearchResult found = plan::search(given.job(), given.cut(), 5);
  ASSERT_FALSE(found.best.empty());
  for (const auto& candidate : found.best)
    EXPECT_EQ(candidate.deck.find("train.recompute"), std::string::npos) << candidate.deck;
  EXPECT_GT(plan::search(long_sequences({}, 80'000).job(), given.cut(), 1).best.front().time.total,
            0);
  // As with the number of blocks that a run of that deck would take.
  std::vector<std::string> overrides{"train.keep_memory=0.5"};
  std::istringstream words(found.best.front().deck);
  for (std::string word; words >> word;) {
    if (word != "colocated") overrides.push_back(word);
  }
  SmallJob taken = long_sequences(overrides, 80'000);
  taken.options.train.recompute = plan::fewest_recomputed(taken.job());
  EXPECT_DOUBLE_EQ(plan::iteration_time(taken.job()).total, found.best.front().time.total);
  EXPECT_EQ(plan::fit(taken.job()).device.peak, found.best.front().fit.device.peak);
}

TEST(Search, PutsTheOptimizersStateOnTheHostWhereThatHelps) {
  const auto offloads = [](const SmallJob& job) {
    const plan::SearchResult found = plan::search(job.job(), job.cut(), 1000);
    EXPECT_FALSE(found.best.empty());
    std::set<bool> out;
    for (const auto& candidate : found.best)
      out.insert(candidate.deck.find("train.optimizer_offload=true") != std::string::npos);
    return std::pair(out, found.best.empty() ? std::string() : found.best.front().deck);
  };
  // Most of the memory is the optimizer's state: with 60 % of the need without offload only offload
  // fits.
  config::Options options = small_deck();
  options.train.micro_batch_tokens = 512;
  options.generate.kv_memory = {0, 1 << 20};
  config::ModelShape shape = small_shape(16, 16, 2);
  shape.hidden = 2048;
  shape.head_dim = 128;
  shape.ffn = 8192;
  SmallJob job(options, shape, 1, 2, gpus(int64_t{1} << 40));
  const auto [both, fastest] = offloads(job);
  EXPECT_EQ(both, (std::set<bool>{false, true}));
  EXPECT_NE(fastest.find("train.optimizer_offload=false"), std::string::npos)
      << "copies take time: " << fastest;
  const int64_t on_device = plan::fit(job.job()).device.peak;
  job.machine.device_bytes = on_device * 6 / 10;
  EXPECT_EQ(offloads(job).first, std::set<bool>{true});
}

// Over a slow network gradients are faster that go to their owners once a step.
TEST(Search, AddsGradientsUpFirstWhereThatPays) {
  config::Options options = small_deck();
  options.rollout.batch_size = options.train.batch_size =
      1024;  // several micro-batches, however many tokens each has
  SmallJob job(options, small_shape(16, 16, 2), 2, 1, gpus(int64_t{1} << 40));
  job.machine.network = 1e8;
  int sharded = 0;
  for (const auto& candidate : plan::search(job.job(), job.cut(), 1000).best) {
    // Copies of the whole model meet once a step anyway, and one trainer meets nobody.
    if (!candidate.deck.starts_with("colocated") ||
        candidate.deck.find("train.shard_group=0") == std::string::npos)
      continue;
    ++sharded;
    EXPECT_NE(candidate.deck.find("train.reduce_once=true"), std::string::npos) << candidate.deck;
  }
  EXPECT_GT(sharded, 0);
  const SmallJob alone(options, small_shape(16, 16, 2), 1, 1, gpus(int64_t{1} << 40));
  for (const auto& candidate : plan::search(alone.job(), alone.cut(), 1000).best)
    EXPECT_EQ(candidate.deck.find("train.reduce_once=true"), std::string::npos)
        << "nobody to send to";
}

TEST(Search, NamesDecksThatStartAndAreAsSaid) {
  for (const bool finished_first : {false, true}) {
    config::Options options = small_deck();
    options.train.partial_rollout_enable = finished_first;
    if (finished_first) options.train.partial_rollout_order = config::PartialRolloutOrder::finished;
    options.train.async_depth = finished_first ? 1 : 0;
    const SmallJob given(options, small_shape(2, 4, 2), 2, 4, gpus(int64_t{80} << 30));
    const plan::SearchResult found = plan::search(given.job(), given.cut(), 1000);
    ASSERT_FALSE(found.best.empty());
    EXPECT_LE(found.fitting, found.tried);
    EXPECT_LE(found.best.size(), found.fitting);
    std::set<std::string> decks;
    double last = 0;
    for (const auto& candidate : found.best) {
      EXPECT_TRUE(decks.insert(candidate.deck).second) << "once: " << candidate.deck;
      EXPECT_GE(candidate.time.total, last) << "the fastest first";
      last = candidate.time.total;
      std::vector<std::string> overrides;
      std::istringstream words(candidate.deck);
      for (std::string word; words >> word;) {
        if (word != "colocated") overrides.push_back(word);
      }
      const SmallJob taken = given.with(overrides);
      EXPECT_NO_THROW(config::check_placement(taken.options, taken.roles)) << candidate.deck;
      if (finished_first) { EXPECT_EQ(taken.options.train.async_depth, 1) << candidate.deck; }
      const plan::Fit fit = plan::fit(taken.job());
      EXPECT_TRUE(fit.fits());
      EXPECT_EQ(fit.device.peak, candidate.fit.device.peak) << candidate.deck;
      EXPECT_DOUBLE_EQ(plan::iteration_time(taken.job()).total, candidate.time.total)
          << candidate.deck;
    }
    EXPECT_EQ(plan::search(given.job(), given.cut(), 2).best.size(), 2u);
  }
  const SmallJob tight(small_deck(), small_shape(2, 4, 2), 1, 4, gpus(1000));
  EXPECT_TRUE(plan::search(tight.job(), tight.cut(), 10).best.empty());
}

}  // namespace
}  // namespace trireme::test
