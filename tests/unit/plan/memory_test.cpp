// The ledger of the shipped 70B deck against sums that were made by hand from the sources (GB = 1e9
// bytes, two decimals).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "layouts.hpp"
#include "trireme/config/placement.hpp"
#include "trireme/config/ranks.hpp"
#include "trireme/config/reward_sources.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/plan/job.hpp"
#include "trireme/plan/pass_bytes.hpp"

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
      : options(std::move(wanted)),
        node_of_rank(config::block_nodes(8 * nodes, 8)),
        roles(config::resolve_ranks({}, 8 * nodes, node_of_rank)) {
    const auto big = model::describe(llama(80, 8192, 64, 28672), model::HeadKind::language);
    const auto small = model::describe(llama(32, 4096, 32, 14336), model::HeadKind::score);
    models.actor = layout(big);
    models.slices = model::tensor_parallel_layout(big, 8);
    models.critic = layout(small);
    models.reference = models.actor;
    models.reward_models = {layout(small)};
  }
  plan::Ledger ledger(int rank = 0) const {
    const plan::Job job{
        options, roles, node_of_rank, models, *plan::known_machine("h100"), config::DType::bf16};
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
    if (entry.owner == owner && (what.empty() || entry.what == what))
      sum += 1e-9 * static_cast<double>(entry.bytes);
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
      {"actor", "stage inputs", 5.37, 2.68},  // the hand's 81 less the head's, which stands in that
                                              // phase only; 128 ranks have one sequence each
      {"actor", "head: gradient of a piece of the vocabulary", 0,
       0},  // 6.30 when all of it was made, and cast; 0.07 of a piece, until products added to its
            // slot
      {"actor", "norm: a chunk in fp64", 0.03,
       0.03},  // a whole copy of the shard, 17.64 GB, before the norm went in chunks
  };
  const plan::Ledger small = Job70b(4).ledger(), large = Job70b(16).ledger();
  for (const Expected& row : rows) {
    EXPECT_NEAR(gigabytes(small, row.owner, row.what), row.at_32, 0.011)
        << row.owner << ": " << row.what;
    EXPECT_NEAR(gigabytes(large, row.owner, row.what), row.at_128, 0.011)
        << row.owner << ": " << row.what;
  }
  const auto optimizer = [](const plan::Ledger& ledger) {
    return gigabytes(ledger, "actor", "fp32 master weights") +
           gigabytes(ledger, "actor", "fp32 gradients") +
           gigabytes(ledger, "actor", "Adam's moments");
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
  const double states =
      (87.8 - 3.81 - 2 * 1.49 - 2.97) *
      1e9;  // by hand, without context and communicators; with one ring for all models
  EXPECT_GT(static_cast<double>(ledger.bytes(Place::device, Phase::start)), states);
  EXPECT_GT(ledger.peak(Place::device), plan::known_machine("h100")->device_bytes);
  EXPECT_EQ(ledger.peak_phase(Place::device), Phase::reward)
      << "generators give their weights back before trainers learn";
}

TEST(MemoryLedger, CountsOnlyWhatTheRolesOfARankHold) {
  Job70b job(4);
  job.roles.trainer = {0, 1, 2, 3};
  job.roles.generator = {8, 9, 10, 11, 12, 13, 14, 15};
  job.roles.reward = {4, 5, 6, 7};
  const plan::Ledger trainer = job.ledger(0);
  for (const auto& entry : trainer.entries())
    EXPECT_TRUE(entry.owner != "generator" && entry.owner != "reference") << entry.owner;
  const plan::Ledger generator = job.ledger(8);
  for (const auto& entry : generator.entries()) {
    EXPECT_TRUE(entry.owner == "generator" || entry.owner == "process" ||
                entry.owner == "weight sync")
        << entry.owner;
  }
  const plan::Ledger reward = job.ledger(4);
  for (const auto& entry : reward.entries()) {
    EXPECT_TRUE(
        std::set<std::string>({"reference", "reward model 0", "all models", "process", "scoring"})
            .contains(entry.owner))
        << entry.owner;
  }
}

TEST(MemoryLedger, ATeacherInTheStepsIsOnTheTrainers) {
  Job70b job(4);
  job.roles.trainer = {0, 1, 2, 3};
  job.roles.generator = {8, 9, 10, 11, 12, 13, 14, 15};
  job.roles.reward = {4, 5, 6, 7};
  const std::string rows = "the teacher's logits of a micro-batch";
  job.options.algo.distill.coef = 1;
  EXPECT_EQ(gigabytes(job.ledger(0), "reference", ""), 0) << "on the drawn tokens";
  EXPECT_GT(gigabytes(job.ledger(4), "reference", "own weight slices"), 0);
  job.options.algo.distill.policy = config::DistillPolicy::distribution;
  EXPECT_GT(gigabytes(job.ledger(0), "reference", "own weight slices"), 0);
  EXPECT_EQ(gigabytes(job.ledger(4), "reference", ""), 0);
  EXPECT_NEAR(gigabytes(job.ledger(0), "reference", rows), 1e-9 * 4096 * 128256 * 2, 1e-6);
  job.options.algo.distill.top_k = 64;
  EXPECT_NEAR(gigabytes(job.ledger(0), "reference", rows), 1e-9 * 4096 * 64 * (8 + 4), 1e-6);
  job.models.reference.reset();
  EXPECT_GT(gigabytes(job.ledger(0), "reference", rows), 0) << "the actor without its adapter";
}

int64_t scored(const plan::Ledger& ledger, Phase phase) {
  for (const auto& entry : ledger.entries()) {
    if (entry.owner == "scoring" && (entry.phases & plan::phase_bit(phase)) != 0)
      return entry.bytes;
  }
  return 0;
}

int64_t pass_bytes(const plan::ModelLayout& model, int64_t tokens) {
  return plan::scoring_pass_bytes({model, tokens, tokens,
                                   model.tensors[model.stages.back().back()].shape.front(), 0,
                                   plan::Operators::device, 2, 2});
}

config::RewardSource model_source(int64_t batch_tokens = 0, int64_t max_len = 0) {
  config::RewardSource source;
  source.kind = config::RewardKind::model;
  source.batch_tokens = batch_tokens;
  source.max_len = max_len;
  return source;
}

// Each reward rank has a whole copy of a judge, and pages for max_batch sequences of max_len; two
// sources of one folder share both.
TEST(MemoryLedger, JudgesAreWholeOnEachRewardRank) {
  Job70b job(4);
  const model::ModelSpec spec =
      model::describe(llama(32, 4096, 32, 11008), model::HeadKind::language);
  config::RewardSource judge;
  judge.kind = config::RewardKind::judge;
  judge.path = "models/judge";
  judge.max_batch = 8;
  config::RewardSource second = judge;
  second.path = "models//judge/";
  second.max_batch = 24;
  second.max_len = 1000;
  job.options.reward.source = {judge, second};
  ASSERT_EQ(config::judge_models(job.options).size(), 1u);
  job.models.judges = {{layout(spec), model::tensor_parallel_layout(spec, 1)}};
  const plan::Ledger ledger = job.ledger(job.roles.reward.front());
  EXPECT_NEAR(gigabytes(ledger, "judge 0", "weights"), 2e-9 * static_cast<double>(spec.elements()),
              0.001);
  const config::ModelShape& shape = spec.shape;
  const int64_t longest = std::min(2 * job.options.max_len(), shape.longest());
  const double pages = 24.0 * static_cast<double>((longest + 256) / 256 * 256) * 2 * 2 *
                       static_cast<double>(shape.layers * shape.kv_dim());
  EXPECT_NEAR(gigabytes(ledger, "judge 0", "KV pages"), 1e-9 * pages, 1e-6);
  EXPECT_GT(gigabytes(ledger, "judge 0", "activations of a step"), 0);
  const auto others = std::ranges::find_if(job.roles.generator, [&](int rank) {
    return std::ranges::find(job.roles.reward, rank) == job.roles.reward.end();
  });
  if (others != job.roles.generator.end()) {
    EXPECT_EQ(gigabytes(job.ledger(*others), "judge 0", ""), 0);
  }
}

// 1024 x 4 sequences of 2048 tokens on 32 ranks: the budget of the micro-batch counts.
TEST(MemoryLedger, OfModelsThatScoreInTurnsTheLargestPassCounts) {
  Job70b job(4);
  const plan::ModelLayout large = layout(
                              model::describe(llama(80, 8192, 64, 28672), model::HeadKind::score)),
                          small = job.models.reward_models.front();
  const int64_t reference = pass_bytes(job.models.actor, 4096);
  EXPECT_EQ(scored(job.ledger(), Phase::reward), reference);
  job.options.reward.source = {config::RewardSource{}, model_source(),
                               model_source(8192)};  // the first is a rule
  job.models.reward_models = {small, large};
  EXPECT_GT(pass_bytes(large, 8192), reference);
  EXPECT_EQ(scored(job.ledger(), Phase::reward), pass_bytes(large, 8192))
      << "the second reward model has a budget of its own";
  job.models.reward_models = {large, small};
  EXPECT_EQ(scored(job.ledger(), Phase::reward),
            std::max({reference, pass_bytes(large, 4096), pass_bytes(small, 8192)}));
  job.models.reference.reset();
  job.models.reward_models = {small, large};
  job.options.reward.source = {model_source(0, 16384), model_source(2048)};
  EXPECT_EQ(scored(job.ledger(), Phase::reward),
            std::max(pass_bytes(small, 16384), pass_bytes(large, 2048)))
      << "no less than its longest sequence";
  EXPECT_EQ(1e9 * gigabytes(job.ledger(), "reward model 0", "tables of the rotation"),
            2.0 * 16384 * 128 * 4);
  job.models.reward_models.clear();
  EXPECT_EQ(scored(job.ledger(), Phase::reward), 0);
}

TEST(MemoryLedger, ACriticLargerThanTheActorCountsForValues) {
  Job70b job(4);
  const plan::ModelLayout critic =
      layout(model::describe(llama(80, 8192, 64, 28672), model::HeadKind::score));
  job.models.actor = layout(model::describe(llama(32, 4096, 32, 14336), model::HeadKind::language));
  EXPECT_EQ(scored(job.ledger(), Phase::log_probs), pass_bytes(job.models.actor, 4096));
  job.models.critic = critic;
  EXPECT_GT(pass_bytes(critic, 4096), pass_bytes(job.models.actor, 4096));
  EXPECT_EQ(scored(job.ledger(), Phase::log_probs), pass_bytes(critic, 4096));
}

TEST(MemoryLedger, TheCheckpointsCopyHasTheMovingAverage) {
  Job70b job(4);
  const auto copied = [&] {
    return gigabytes(job.ledger(), "checkpoint", "page-locked copy of weights and moments");
  };
  const double without = copied();
  job.options.train.enable_ema = true;
  EXPECT_GT(copied() - without, 4 * 70.55 / 32) << "4 bytes of each of the actor's parameters";
  EXPECT_LT(copied() - without, 1.3 * 4 * 70.55 / 32)
      << "and what slabs of 64 MiB lose, in which two slices of the feed-forward weights fill 56";
  job.options.train.optimizer_offload = true;
  EXPECT_EQ(copied(), 0) << "the state is there already";
}

TEST(MemoryLedger, HasWhatStepsCopyOfASave) {
  Job70b job(4);
  job.options.train.optimizer_offload = true;
  const auto stage = [&] {
    return gigabytes(job.ledger(), "checkpoint", "one stage that a save has not written yet");
  };
  const double without = stage();
  EXPECT_GT(without, 12e-9 * 128256 * 8192 / 32)
      << "weights and both moments of the embedding's rows";
  EXPECT_LT(without, 12e-9 * 1.01 * 128256 * 8192 / 32);
  job.options.ckpt.copy_aside = config::CopyAside::all;
  EXPECT_EQ(stage(), 0);
  EXPECT_GT(gigabytes(job.ledger(), "checkpoint", "what a save has not written yet"),
            12 * 70.55 / 32)
      << "of the actor, and the critic's";
  job.options.ckpt.background = false;
  EXPECT_EQ(gigabytes(job.ledger(), "checkpoint", ""), 0);
}

TEST(MirrorBytes, AreSlabsThatArraysShare) {
  constexpr int64_t mib = 1 << 20;
  plan::MirrorBytes mirror;
  mirror.add(1);
  EXPECT_EQ(mirror.total(), 64 * mib);
  mirror.add(64 * mib - 64);
  EXPECT_EQ(mirror.total(), 64 * mib) << "the rest of the first, which gave 64 bytes to one byte";
  mirror.add(1);
  EXPECT_EQ(mirror.total(), 128 * mib);
  mirror.add(64 * mib);
  EXPECT_EQ(mirror.total(), 192 * mib) << "a new one; what the last one had left is lost";
  mirror.add(65 * mib);
  EXPECT_EQ(mirror.total(), 320 * mib) << "the next power of two";
  mirror.add(63 * mib);
  EXPECT_EQ(mirror.total(), 320 * mib) << "of which a half was free";
}

TEST(MemoryLedger, HasWhatLibrariesAndTheAllocatorTakeBesides) {
  Job70b job(4);
  const plan::Ledger ledger = job.ledger();
  EXPECT_NEAR(gigabytes(ledger, "process", "CUDA context and libraries"), 0.6291456, 1e-9);
  EXPECT_NEAR(gigabytes(ledger, "process", "workspaces of products"), 2 * 0.067108864, 1e-9)
      << "of two streams";
  int64_t tensors = 0;  // in the phase that has most, but for what this is about
  for (const auto& entry : ledger.entries()) {
    const bool counts = entry.place == Place::device && entry.kind == plan::Kind::tensors &&
                        entry.owner != "process";
    if (counts && (entry.phases & plan::phase_bit(ledger.peak_phase(Place::device))) != 0)
      tensors += entry.bytes;
  }
  EXPECT_NEAR(gigabytes(ledger, "process", "what the allocator keeps between tensors"),
              1e-9 * static_cast<double>(tensors) / 50, 0.01);
}

// What is free at the start of a job is what the context has left.
TEST(MemoryLedger, AContextThatStandsIsNotCountedAgain) {
  Job70b job(4);
  job.options.generate.kv_memory = {0, int64_t{1} << 30};  // otherwise a share of what is free
  plan::Job started{
      job.options,        job.roles, job.node_of_rank, job.models, *plan::known_machine("h100"),
      config::DType::bf16};
  const int64_t before = plan::memory_of_rank(started, 0).peak(Place::device),
                fitting = plan::fit(started).device.peak;
  started.process_started = true;
  EXPECT_EQ(before - plan::memory_of_rank(started, 0).peak(Place::device), 600 << 20);
  EXPECT_EQ(fitting - plan::fit(started).device.peak, 600 << 20);
}

TEST(MemoryLedger, PhasesAddWhatLivesInThem) {
  plan::Ledger ledger;
  ledger.add({"a", "always", Place::device, 10, plan::every_phase, plan::Accuracy::exact});
  ledger.add({"a", "in backward", Place::device, 5, plan::phase_bit(Phase::backward),
              plan::Accuracy::exact});
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
  EXPECT_EQ(plan::kv_cache_bytes(half, token, 256, 2048, int64_t{8} << 30), int64_t{4} << 30);
  EXPECT_EQ(plan::kv_cache_bytes(half, token, 4, 2048, int64_t{80} << 30), 4 * 2304 * token);
  EXPECT_EQ(plan::kv_cache_bytes(half, token, 256, 2048, 0), (2048 + 256) * token);
  EXPECT_EQ(plan::kv_cache_bytes(fixed, token, 256, 2048, 0), int64_t{1} << 30);
}

}  // namespace
}  // namespace trireme::test
