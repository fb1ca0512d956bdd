#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include "driver/device.hpp"
#include "driver/generator.hpp"
#include "driver/host_mirror.hpp"
#include "support/world.hpp"
#include "trireme/base/error.hpp"

namespace trireme::driver {
namespace {

TEST(HostMirror, IsTheArrayItselfOnCpus) {
  std::vector<float> values{1, 2, 3};
  HostMirror mirror(at::kCPU);
  EXPECT_FALSE(mirror.copies());
  EXPECT_EQ(mirror.add(values.data(), 12), values.data());
  EXPECT_EQ(mirror.add(static_cast<void*>(nullptr), 0), nullptr);
  mirror.to_host();
  mirror.to_device();
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(mirror.bytes(), 0);
}

TEST(Device, IsTheCpuWhereNoGpuIsLinkedIn) {
  const Roles roles = make_roles(config::Options{}, test::world());
  EXPECT_EQ(visible_gpus(), 0);
  config::Options options;
  options.run.device = config::Device::automatic;
  EXPECT_TRUE(choose_device(options, roles).is_cpu());
  options.run.device = config::Device::cuda;
  try {
    choose_device(options, roles);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::unfit_environment);
    EXPECT_NE(std::string(error.what()).find("no GPU support"), std::string::npos) << error.what();
  }
  EXPECT_EQ(ranks_on_device(roles, at::kCPU), roles.topology.local_size);
  EXPECT_GT(free_memory(at::kCPU), 0);
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
    return kv_cache_bytes(share, spec, 1, config::DType::fp32, 4, 255, free);
  };
  EXPECT_EQ(bytes({0.5, 0}, int64_t{1} << 40), 4 * 256 * token);  // four sequences of 256 tokens
  EXPECT_EQ(bytes({0.5, 0}, 2 * 700 * token), 700 * token);
  EXPECT_EQ(bytes({0.5, 0}, 0), (255 + 256) * token);  // at least one sequence
  EXPECT_EQ(bytes({0.5, 300 * token}, 0), 300 * token);
}

}  // namespace
}  // namespace trireme::driver
