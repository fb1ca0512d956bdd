#include "torch/torch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "support/world.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/placed.hpp"
#include "trireme/job/node_limits.hpp"
#include "trireme/machine/device.hpp"
#include "trireme/machine/host_mirror.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/plan/job.hpp"

namespace trireme::machine {
namespace {

TEST(HostMirror, IsTheArrayItselfOnCpus) {
  std::vector<float> values{1, 2, 3};
  HostMirror mirror(at::kCPU);
  EXPECT_FALSE(mirror.copies());
  EXPECT_EQ(mirror.add(base::Placed(values.data(), base::Memory::host), 12), values.data());
  EXPECT_EQ(mirror.add(base::Placed<float>(), 0), nullptr);
  EXPECT_THROW(mirror.add(base::Placed(values.data(), base::Memory::device), 12), InternalError);
  mirror.to_host();
  mirror.to_device();
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(mirror.bytes(), 0);
}

TEST(Device, IsTheCpuWhereNoGpuIsLinkedIn) {
  const auto topology = comm::discover(test::world());
  EXPECT_EQ(visible_gpus(), 0);
  config::Options options;
  options.run.device = config::Device::automatic;
  EXPECT_TRUE(choose_device(options.run.device, test::world(), topology).is_cpu());
  options.run.device = config::Device::cuda;
  try {
    choose_device(options.run.device, test::world(), topology);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::unfit_environment);
    EXPECT_NE(std::string(error.what()).find("no GPU support"), std::string::npos) << error.what();
  }
  EXPECT_EQ(
      count_here(ranks_on_device(test::world(), topology, at::kCPU), {0, test::world().size()}), 1)
      << "rank 0 is there, no rank lies behind the last";
  EXPECT_EQ(static_cast<int>(ranks_on_device(test::world(), topology, at::kCPU).size()),
            topology.local_size);
  EXPECT_GT(free_memory(at::kCPU), 0);
}

TEST(Device, AnOldDriverIsNamedWithTheWayOut) {
  using testing::AllOf, testing::HasSubstr, testing::Not;
  EXPECT_THAT(no_gpu_words({.driver = 12040, .runtime = 13000}),
              AllOf(HasSubstr("serves CUDA 12.4"), HasSubstr("built with CUDA 13.0"),
                    HasSubstr("driver 580"), HasSubstr("cuda-compat-13-0"),
                    HasSubstr("TRIREME_GPU=12 ./bootstrap.sh build")));
  EXPECT_THAT(no_gpu_words({.driver = 11080, .runtime = 12080}),
              AllOf(HasSubstr("serves CUDA 11.8"), HasSubstr("driver 525"),
                    HasSubstr("cuda-compat-12-8"), Not(HasSubstr("TRIREME_GPU"))));
  EXPECT_THAT(no_gpu_words({.driver = 0, .runtime = 13000}), HasSubstr("no NVIDIA driver answers"));
  for (const int driver : {13000, 13020, 14000}) {
    EXPECT_THAT(no_gpu_words({.driver = driver, .runtime = 13000}),
                AllOf(HasSubstr("CUDA_VISIBLE_DEVICES"), Not(HasSubstr("serves"))));
  }
  EXPECT_THAT(no_gpu_words({.driver = 12020, .runtime = 12080}), HasSubstr("CUDA_VISIBLE_DEVICES"))
      << "versions of one major number go together";
}

TEST(KvCache, IsAShareOfTheFreeMemoryAndNeverMoreThanOfUse) {
  config::ModelShape shape;
  shape.vocab = 64;
  shape.hidden = 32;
  shape.layers = 2;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 8;
  shape.ffn = 64;
  const auto spec = model::describe(shape, model::HeadKind::language);
  const int64_t token = 2 * 2 * 2 * 8 * 4;  // keys and values, layers, KV heads, head size, fp32
  const auto bytes = [&](config::MemoryShare share, int64_t free) {
    return plan::kv_cache_bytes(share, token, 4, 255, free);
  };
  EXPECT_EQ(bytes({0.5, 0}, int64_t{1} << 40), 4 * 256 * token);  // four sequences of 256 tokens
  EXPECT_EQ(bytes({0.5, 0}, 2 * 700 * token), 700 * token);
  EXPECT_EQ(bytes({0.5, 0}, 0), (255 + 256) * token);  // at least one sequence
  EXPECT_EQ(bytes({0.5, 300 * token}, 0), 300 * token);
  EXPECT_EQ(plan::kv_bytes_per_token(spec.shape, 1, 4), token);
}

TEST(KvCache, FreeMemoryIsWhatCanBeAllocated) {
  std::ifstream info("/proc/meminfo");
  int64_t available = 0;
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("MemAvailable:")) available = std::atoll(line.c_str() + 13) * 1024;
  }
  EXPECT_NEAR(static_cast<double>(free_memory(at::kCPU)),
              static_cast<double>(std::min(available, job::available_memory().bytes)),
              0.05 * static_cast<double>(available))
      << "page cache counts as free";
}

TEST(KvCache, WhatADeckNeedsAtATime) {
  config::Options options;
  options.data.max_len = 1000;
  options.generate.max_batch = 64;
  options.rollout.batch_size = 128;
  options.rollout.n_samples_per_prompt = 4;
  EXPECT_EQ(plan::kv_need(options, 200, 4).sequences, 64);
  EXPECT_EQ(plan::kv_need(options, 200, 4).expected_length, 200 + 800 / 2);
  EXPECT_EQ(plan::kv_need(options, 200, 32).sequences, 16) << "a replica has four prompts";
  options.rollout.max_new_tokens = 100;
  EXPECT_EQ(plan::kv_need(options, 200, 4).expected_length, 250);
}

TEST(KvCache, AShortageIsSaid) {
  const plan::KvNeed need{64, 700};
  EXPECT_EQ(plan::kv_shortage(need, 64 * 700 * 100, 100), "");
  const std::string text = plan::kv_shortage(need, 12 * 700 * 100 + 5, 100);
  EXPECT_THAT(text, testing::HasSubstr("holds 12 of the 64 sequences"));
  EXPECT_THAT(text, testing::HasSubstr("generate.kv_memory"));
}

}  // namespace
}  // namespace trireme::machine
