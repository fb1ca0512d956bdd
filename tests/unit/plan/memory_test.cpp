// The ledger of the shipped 70B deck against sums that were made by hand from the sources (GB = 1e9 bytes, two decimals).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "layouts.hpp"
#include "trireme/config/placement.hpp"
#include "trireme/config/ranks.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/plan/job.hpp"

namespace trireme::test {
namespace {

using plan::Phase;
using plan::Place;

config::ModelShape llama(int64_t layers, int64_t hidden, int64_t heads, int64_t ffn) {
  config::ModelShape shape;
  shape.layers = layers;
  shape.hidden = hidden;
  shape.heads = heads;
  shape.kv_heads = 8;
  shape.head_dim = 128;
  shape.ffn = ffn;
  shape.vocab = 128256;
  shape.max_positions = 8192;
  return shape;
}

// What inputs/science/ppo_70b.toml says of memory.
config::Options deck_70b() {
  config::Options options;
  options.data.max_len = 2048;
  options.generate.tensor_parallel = 8;
  options.train.micro_batch_tokens = 4096;
  return options;
}

struct Job70b {
  explicit Job70b(int nodes, config::Options wanted = deck_70b())
      : options(std::move(wanted)), node_of_rank(config::block_nodes(8 * nodes, 8)), roles(config::resolve_ranks({}, 8 * nodes, node_of_rank)) {
    const auto big = model::describe(llama(80, 8192, 64, 28672), model::HeadKind::language);
    const auto small = model::describe(llama(32, 4096, 32, 14336), model::HeadKind::score);
    models.actor = layout(big);
    models.slices = model::tensor_parallel_layout(big, 8);
    models.critic = layout(small);
    models.reference = models.actor;
    models.reward_models = {layout(small)};
  }
  plan::Ledger ledger(int rank = 0) const {
    const plan::Job job{options, roles, node_of_rank, models, *plan::known_machine("h100"), config::DType::bf16};
    return plan::memory_of_rank(job, rank);
  }
  config::Options options;
  std::vector<int> node_of_rank;
  config::RoleMap roles;
  plan::JobModels models;
};

double gigabytes(const plan::Ledger& ledger, const std::string& owner, const std::string& what) {
  double sum = 0;
  for (const auto& entry : ledger.entries()) {
    if (entry.owner == owner && (what.empty() || entry.what == what)) sum += 1e-9 * static_cast<double>(entry.bytes);
  }
  return sum;
}

struct Expected {
  const char* owner;
  const char* what;
  double at_32, at_128;
};

TEST(MemoryLedger, OfThe70bDeckIsTheSumMadeByHand) {
  const Expected rows[] = {
      {"actor", "own weight slices", 4.41, 1.10},
      {"all models", "ring of two stages", 3.81, 3.81},
      {"all models", "gradients of two stages", 7.63, 7.63},
      {"all models", "received gradients", 0.13, 0.03},
      {"generator", "weights", 17.64, 17.64},
      {"actor", "stage inputs", 5.37, 2.68},           // the hand's 81 less the head's, which stands in that phase only; 128 ranks have one sequence each
      {"actor", "head: gradient of a piece of the vocabulary", 0.07, 0.07},  // 6.30 when all of it was made, and cast
      {"actor", "norm: a chunk in fp64", 0.03, 0.03},  // a whole copy of the shard, 17.64 GB, before the norm went in chunks
  };
  const plan::Ledger small = Job70b(4).ledger(), large = Job70b(16).ledger();
  for (const Expected& row : rows) {
    EXPECT_NEAR(gigabytes(small, row.owner, row.what), row.at_32, 0.011) << row.owner << ": " << row.what;
    EXPECT_NEAR(gigabytes(large, row.owner, row.what), row.at_128, 0.011) << row.owner << ": " << row.what;
  }
  const auto optimizer = [](const plan::Ledger& ledger) {
    return gigabytes(ledger, "actor", "fp32 master weights") + gigabytes(ledger, "actor", "fp32 gradients") + gigabytes(ledger, "actor", "Adam's moments");
  };
  EXPECT_NEAR(optimizer(small), 35.28, 0.02);
  EXPECT_NEAR(optimizer(large), 8.82, 0.02);
  // By hand with a ring each: 8.22, 1.96 and 8.75; the ring of the actor serves them now.
  EXPECT_NEAR(gigabytes(small, "reference", ""), 8.22 - 3.81, 0.02);
  EXPECT_NEAR(gigabytes(small, "reward model 0", ""), 1.96 - 1.49, 0.02);
  EXPECT_NEAR(gigabytes(small, "critic", ""), 8.75 - 1.49 - 2.97, 0.08);
}

TEST(MemoryLedger, The70bDeckDoesNotFitOn32GpusOf80Gigabytes) {
  const plan::Ledger ledger = Job70b(4).ledger();
  const double states = (87.8 - 3.81 - 2 * 1.49 - 2.97) * 1e9;  // by hand, without context and communicators; with one ring for all models
  EXPECT_GT(static_cast<double>(ledger.bytes(Place::device, Phase::start)), states);
  EXPECT_GT(ledger.peak(Place::device), plan::known_machine("h100")->device_bytes);
  EXPECT_EQ(ledger.peak_phase(Place::device), Phase::backward);
}

TEST(MemoryLedger, CountsOnlyWhatTheRolesOfARankHold) {
  Job70b job(4);
  job.roles.trainer = {0, 1, 2, 3};
  job.roles.generator = {8, 9, 10, 11, 12, 13, 14, 15};
  job.roles.reward = {4, 5, 6, 7};
  const plan::Ledger trainer = job.ledger(0);
  for (const auto& entry : trainer.entries()) EXPECT_TRUE(entry.owner != "generator" && entry.owner != "reference") << entry.owner;
  const plan::Ledger generator = job.ledger(8);
  for (const auto& entry : generator.entries()) {
    EXPECT_TRUE(entry.owner == "generator" || entry.owner == "process" || entry.owner == "weight sync") << entry.owner;
  }
  const plan::Ledger reward = job.ledger(4);
  for (const auto& entry : reward.entries()) {
    EXPECT_TRUE(std::set<std::string>({"reference", "reward model 0", "all models", "process", "scoring"}).contains(entry.owner)) << entry.owner;
  }
}

TEST(MemoryLedger, PhasesAddWhatLivesInThem) {
  plan::Ledger ledger;
  ledger.add({"a", "always", Place::device, 10, plan::every_phase, plan::Accuracy::exact});
  ledger.add({"a", "in backward", Place::device, 5, plan::phase_bit(Phase::backward), plan::Accuracy::exact});
  ledger.add({"a", "on the host", Place::host, 100, plan::every_phase, plan::Accuracy::exact});
  ledger.add({"a", "nothing", Place::device, 0, plan::every_phase, plan::Accuracy::exact});
  EXPECT_EQ(ledger.entries().size(), 3u);
  EXPECT_EQ(ledger.bytes(Place::device, Phase::rollout), 10);
  EXPECT_EQ(ledger.bytes(Place::device, Phase::backward), 15);
  EXPECT_EQ(ledger.peak_phase(Place::device), Phase::backward);
  EXPECT_EQ(ledger.peak(Place::host), 100);
  EXPECT_EQ(ledger.largest(Place::device, Phase::backward, 1).front().what, "always");
}

TEST(KvCacheBytes, AreTheShareButNoMoreThanUsefulAndNoLessThanOneSequence) {
  const config::ModelShape shape = llama(80, 8192, 64, 28672);
  const int64_t token = 2 * 80 * 1 * 128 * 2;  // tensor parallel 8: one KV head a rank
  EXPECT_EQ(plan::kv_bytes_per_token(shape, 8, 2), token);
  const config::MemoryShare half{0.5, 0}, fixed{0, 1 << 30};
  EXPECT_EQ(plan::kv_cache_bytes(half, shape, 8, 2, 256, 2048, int64_t{8} << 30), int64_t{4} << 30);
  EXPECT_EQ(plan::kv_cache_bytes(half, shape, 8, 2, 4, 2048, int64_t{80} << 30), 4 * 2304 * token);
  EXPECT_EQ(plan::kv_cache_bytes(half, shape, 8, 2, 256, 2048, 0), (2048 + 256) * token);
  EXPECT_EQ(plan::kv_cache_bytes(fixed, shape, 8, 2, 256, 2048, 0), int64_t{1} << 30);
}

}  // namespace
}  // namespace trireme::test
