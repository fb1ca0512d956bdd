// What moves between a GPU's memory and the host's in a run: mirrors, checkpoints, weight sync.
#include "torch/torch.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "driver/checkpointing.hpp"
#include "driver/weight_bridge.hpp"
#include "gpu/device.hpp"
#include "support/world.hpp"
#include "trireme/base/placed.hpp"
#include "trireme/machine/host_mirror.hpp"
#include "unit/zero/tiny_model.hpp"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;

at::TensorOptions floats_on_gpu() { return at::TensorOptions().dtype(at::kFloat).device(gpu()); }

base::Placed<float> placed(at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<float>(), base::Memory::device};
}

TEST(GpuMirror, CopiesBothWaysAndKeepsItsAddresses) {
  const int64_t large = int64_t{20} << 20;  // more than one slab of 64 MiB holds
  at::Tensor a = at::full({large}, 2.5, floats_on_gpu()), b = at::arange(5, floats_on_gpu());
  a.narrow(0, large - 1, 1).fill_(9);
  machine::HostMirror mirror(gpu());
  ASSERT_TRUE(mirror.copies());
  float* host_b = mirror.add(placed(b), 5 * 4);
  float* host_a = mirror.add(placed(a), large * 4);
  EXPECT_EQ(mirror.add(placed(b), 5 * 4), host_b);
  mirror.to_host();
  EXPECT_EQ(host_a[large - 2], 2.5f);
  EXPECT_EQ(host_a[large - 1], 9.f);
  EXPECT_EQ(host_b[4], 4.f);
  b.zero_();
  host_a[7] = -1;
  mirror.to_device();
  EXPECT_EQ(a[7].item<float>(), -1.f);
  EXPECT_EQ(b[4].item<float>(), 4.f);
}

// A folder that all ranks share, removed at the end.
class SharedFolder {
 public:
  SharedFolder() {
    const int64_t number = world().broadcast_value(static_cast<int64_t>(::getpid()), 0);
    path_ = fs::temp_directory_path() / ("trireme-gpu-" + std::to_string(number));
  }
  ~SharedFolder() {
    world().barrier();
    std::error_code ignored;
    if (world().rank() == 0) fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

zero::ShardedModel make_model(const model::ModelSpec& spec) {
  zero::ShardedModelOptions options;
  options.compute = config::DType::f32;
  zero::ShardedModel model(spec, world(), std::nullopt, gpu(), options);
  model.load([&spec](size_t p, const base::Block& block, float* out) {
    initial_rows(spec, p, block, out);
  });
  model.enable_average(0.9);
  return model;
}

// A step with gradients of one everywhere.
void step(zero::ShardedModel& model) {
  for (size_t p = 0; p < model.spec().parameters.size(); ++p) {
    if (!model.own(p).empty())
      at::from_blob(model.gradient(p).address(), {model.own(p).elements()}, floats_on_gpu())
          .fill_(1);
  }
  zero::AdamWOptions options;
  options.lr = 0.01;
  ASSERT_TRUE(model.step(options).updated);
}

// Master, moments, average and compute-dtype values of this rank, on the host.
std::vector<at::Tensor> state_of(zero::ShardedModel& model) {
  std::vector<at::Tensor> out;
  for (size_t p = 0; p < model.spec().parameters.size(); ++p) {
    if (model.own(p).empty()) continue;
    const void* const arrays[] = {model.master(p).address(), model.moment1(p).address(),
                                  model.moment2(p).address(), model.average(p).address(),
                                  model.compute_slice(p).address()};
    for (const void* array : arrays) {
      out.push_back(
          at::from_blob(const_cast<void*>(array), {model.own(p).elements()}, floats_on_gpu())
              .cpu()
              .clone());
    }
  }
  return out;
}

TEST(GpuCheckpoint, ALoadedModelIsTheSavedOneThoughTrainingWentOn) {
  const SharedFolder scratch;
  config::Options options;
  options.run.dir = (scratch.path() / "run").string();
  const comm::Roles roles = comm::make_roles(options, world());
  const driver::RunFolder folder(options, roles.world);
  const auto spec = model::describe(tiny_shape(Tied::yes), model::HeadKind::language);
  auto model = make_model(spec);
  step(model);
  const auto want = state_of(model);
  {
    driver::Checkpointing saver(options, roles, folder, gpu(), true);
    saver.add({"actor", &spec, &model, true});
    driver::RunState state;
    state.iteration = 1;
    state.training.actor_steps = model.steps();
    saver.save(state, {}, false);
    step(model);  // the writer has copies
  }               // and is waited for

  auto loaded = make_model(spec);
  driver::Checkpointing loader(options, roles, folder, gpu(), true);
  loader.add({"actor", &spec, &loaded, true});
  driver::StoredParts parts;
  ASSERT_TRUE(loader.resume(parts).has_value());
  EXPECT_EQ(loaded.steps(), 1);
  const auto got = state_of(loaded);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
}

TEST(GpuWeightSync, TheGeneratorGetsTheActorsWeights) {
  config::Options options;
  options.model.dtype = config::ComputeType::fp32;
  const comm::Roles roles = comm::make_roles(options, world());
  const auto spec = model::describe(tiny_shape(Tied::no), model::HeadKind::language);
  auto actor = make_model(spec);
  generate::GeneratorWeights weights(spec, config::DType::f32, 0, 1, generate::Place::device);
  driver::WeightBridge bridge(options, roles, spec, gpu(), false);
  bridge.run(1, &actor, &weights);
  EXPECT_EQ(weights.version(), 1);
  const auto whole = whole_parameters(spec);
  for (size_t p = 0; p < whole.size(); ++p)
    EXPECT_TRUE(at::equal(weights.tensor(p).cpu(), whole[p])) << spec.parameters[p].spec.name;
  step(actor);
  bridge.run(2, &actor, &weights);
  for (size_t p = 0; p < whole.size(); ++p)
    EXPECT_FALSE(at::equal(weights.tensor(p).cpu(), whole[p])) << spec.parameters[p].spec.name;
}

}  // namespace
}  // namespace trireme::test
