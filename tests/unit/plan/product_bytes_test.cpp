// What products of bf16 keep: code by the length of a run, or blocks in fp32.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "small_jobs.hpp"
#include "trireme/plan/job.hpp"

namespace trireme::test {
namespace {

constexpr int64_t full_caches = int64_t{40} << 20;

// Two trainers of one node, 32 sequences of 32 tokens each in a step: one pass.
SmallJob job_of(const std::vector<std::string>& overrides) {
  const plan::Machine cpus{.name = "cpus", .host_bytes = int64_t{1} << 34};
  return SmallJob({}, small_shape(), 1, 2, cpus)
      .with({"data.max_len=32", "train.batch_size=64", "train.micro_batch_tokens=1024"})
      .with(overrides);
}

int64_t bytes_of(const plan::Job& job, const std::string& what) {
  const plan::Ledger ledger = plan::memory_of_rank(job, 0);
  int64_t bytes = 0;
  for (const auto& entry : ledger.entries()) {
    if (entry.what == what) bytes += entry.bytes;
  }
  return bytes;
}

int64_t code_of(SmallJob small, config::Command command, int64_t evaluated = 0,
                plan::HostBf16 way = plan::HostBf16::vectors) {
  if (command != config::Command::ppo) small.models.critic.reset();
  plan::Job job = small.job();
  job.command = command;
  job.host_bf16 = way;
  job.length = {small.options.run.iterations, evaluated};
  return bytes_of(job, "code of bf16 products by their shapes");
}

int64_t sft_code(const std::vector<std::string>& overrides) {
  return code_of(job_of(overrides), config::Command::sft);
}

// Matrices have five shapes: q and o, k and v, gate and up, down, the head. A pass has three
// products of each, of 64 that are kept.
TEST(ProductBytes, GrowsWithTheRunUntilTheCachesAreFull) {
  EXPECT_EQ(sft_code({"run.iterations=1"}), full_caches * 15 / 64);
  EXPECT_EQ(sft_code({"run.iterations=3"}), full_caches * 45 / 64);
  EXPECT_EQ(sft_code({"run.iterations=4"}), full_caches * 60 / 64);
  EXPECT_EQ(sft_code({"run.iterations=5"}), full_caches);
  EXPECT_EQ(sft_code({"run.iterations=9000000000000"}), full_caches);
}

TEST(ProductBytes, MatrixUnitsFillTheCachesMoreSlowly) {
  const auto code = [](const char* iterations) {
    return code_of(job_of({iterations}), config::Command::sft, 0, plan::HostBf16::tiles);
  };
  constexpr int64_t first = int64_t{3} << 20;
  EXPECT_EQ(code("run.iterations=3"), first + full_caches * 45 / 512);
  EXPECT_EQ(code("run.iterations=31"), first + full_caches * 465 / 512);
  EXPECT_EQ(code("run.iterations=32"), full_caches);
  EXPECT_EQ(code("run.iterations=9000000000000"), full_caches);
}

TEST(ProductBytes, CountsMicroBatchesAndPairs) {
  // 32 sequences of 32 tokens in passes of 16: two that are full, up to twice as many that are not.
  EXPECT_EQ(sft_code({"run.iterations=1", "train.micro_batch_tokens=512"}), full_caches * 60 / 64);
  EXPECT_EQ(code_of(job_of({"run.iterations=1"}), config::Command::dpo), full_caches * 60 / 64);
}

TEST(ProductBytes, IsFullWhereTheRunMayBeLong) {
  EXPECT_EQ(sft_code({"run.iterations=0"}), full_caches);
  EXPECT_EQ(code_of(job_of({"run.iterations=1"}), config::Command::sft, -1), full_caches);
}

TEST(ProductBytes, EvaluationsHaveTheSameRowsEachTime) {
  for (const char* iterations : {"run.iterations=1", "run.iterations=2"}) {
    const SmallJob job = job_of({iterations});
    EXPECT_EQ(code_of(job, config::Command::sft, 32),
              full_caches * (15 * job.options.run.iterations + 5) / 64);
  }
}

// The critic's head is a sixth shape; answers are scored by forward passes alone.
TEST(ProductBytes, OfPpoCountsStepsAndScoring) {
  std::vector<std::string> deck{"run.iterations=1", "rollout.batch_size=64",
                                "rollout.n_samples_per_prompt=1"};
  EXPECT_EQ(code_of(job_of(deck), config::Command::ppo), full_caches * (18 + 6) / 64);
  deck[1] = "rollout.batch_size=128";
  EXPECT_EQ(code_of(job_of(deck), config::Command::ppo), full_caches * (2 * 18 + 4 * 6) / 64);
  deck[1] = "rollout.batch_size=256";
  EXPECT_EQ(code_of(job_of(deck), config::Command::ppo), full_caches);
}

// Steps of a generator or a judge, which have their own products otherwise; sft writes nothing.
TEST(ProductBytes, AreThoseOfSteps) {
  const std::vector<std::string> deck{"run.iterations=1", "rollout.batch_size=64",
                                      "rollout.n_samples_per_prompt=1", "generate.backend=torch"};
  EXPECT_EQ(code_of(job_of(deck), config::Command::ppo), full_caches);
  EXPECT_EQ(sft_code({"run.iterations=1", "generate.backend=torch"}), full_caches * 15 / 64);
}

// 1,024 tokens a pass on two threads: the widest input is 16, the widest block of an output 512 x
// 16, and gradients of weights multiply 8 rows of 1,024 with 1,024 x 16.
TEST(ProductBytes, BlocksInFp32WhereBf16IsNotMultipliedNatively) {
  EXPECT_EQ(sft_code({"run.iterations=6", "model.dtype=fp32"}), 0);
  SmallJob small = job_of({"run.iterations=6"});
  small.models.critic.reset();
  plan::Job job = small.job();
  job.command = config::Command::sft;
  job.length = {6, 0};
  constexpr const char* blocks = "blocks of bf16 products in fp32";
  EXPECT_EQ(bytes_of(job, blocks), 0);
  job.host_bf16 = plan::HostBf16::widened;
  EXPECT_EQ(bytes_of(job, "code of bf16 products by their shapes"), 0);
  EXPECT_EQ(bytes_of(job, blocks), 2 * 4 * (512 * 16 + 1024 * 16 + 512 * 16));
  job.compute = config::DType::f32;
  EXPECT_EQ(bytes_of(job, blocks), 0);
}

// By the largest matrix, here the head, from 4 to 56 MiB.
TEST(ProductBytes, CountsOperandsOfFp32) {
  const auto of = [](config::DType type, int64_t vocab) {
    SmallJob small = job_of({});
    small.models.actor.tensors[0].shape[0] = vocab;
    plan::Job job = small.job();
    job.compute = type;
    return bytes_of(job, "operands of fp32 products");
  };
  const int64_t hidden = small_shape().hidden;
  EXPECT_EQ(of(config::DType::f32, 64), int64_t{4} << 20);
  EXPECT_EQ(of(config::DType::f32, 1 << 18), 4 * (1 << 18) * hidden);
  EXPECT_EQ(of(config::DType::f32, int64_t{1} << 30), int64_t{56} << 20);
  EXPECT_EQ(of(config::DType::bf16, 4096), 0);
}

}  // namespace
}  // namespace trireme::test
