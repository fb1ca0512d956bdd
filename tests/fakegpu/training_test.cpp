// Training by the paths of a GPU, on the fake one: the exchange by NCCL, the optimizer's pass by
// the kernel for devices and by LibTorch's operators, state on the host beside it, hybrid sharding;
// against the same steps on the host.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "fakegpu/device_lane.hpp"
#include "fakegpu/host_as_device.hpp"
#include "support/world.hpp"
#include "trireme/kernels/device_kernels.hpp"
#include "trireme/kernels/products.hpp"
#include "trireme/trace/region.hpp"
#include "unit/zero/tiny_model.hpp"

namespace trireme::test {
namespace {

struct Way {
  bool own_kernels = true;
  bool offload = false;
  bool hybrid = false;
  double max_norm = 0.05;
  config::DType reduce = config::DType::f32;
  bool exact = false;  // train.exact_products; rounded gradients have the host's bits
  bool once = false;   // train.reduce_once, two micro-batches a step
  bool twice = false;  // two micro-batches a step
};

struct Trained {
  std::vector<float> state;  // master and moments of this rank
  std::vector<double> norms;
  int64_t changed = 0;
  std::string exchange;
  int64_t reduced_bytes = 0, replica_bytes = 0;  // of gradients, that went between ranks
  int64_t begun_bytes = 0;                       // of replica_bytes, before the optimizer's steps
};

int64_t counted(const std::string& name) {
  const auto counts = trace::counts();
  const auto found = counts.find(name);
  return found == counts.end() ? 0 : found->second;
}

zero::AdamWOptions adam(const Way& way) {
  zero::AdamWOptions options;
  options.lr = 1e-2;
  options.weight_decay = 0.1;
  options.eps = 1e-4;  // large: a gradient of rounding size must not become a step of size lr
  options.max_norm = way.max_norm;
  return options;
}

// Two groups, sharded inside, where there are enough ranks; else one.
struct Groups {
  explicit Groups(bool hybrid) {
    const int rank = world().rank(),
              group = hybrid && world().size() > 1 ? world().size() / 2 : world().size();
    shard = comm::Comm::split(world(), rank / group, rank, "shard");
    if (group < world().size())
      replicas = comm::Comm::split(world(), rank % group, rank, "replicas");
  }
  comm::Comm shard;
  std::optional<comm::Comm> replicas;
};

Trained train(config::DType type, const Way& way, const Groups& groups) {
  const auto spec = model::describe(tiny_shape(Tied::yes), model::HeadKind::language);
  zero::ShardedModelOptions options;
  options.compute = type;
  options.exchange = comm::ExchangeKind::automatic;
  options.offload = way.offload;
  options.reduce = way.reduce;
  options.reduce_once = way.once;
  std::optional<comm::CommView> replicas;
  if (groups.replicas) replicas = groups.replicas->view();
  zero::ShardedModel model(spec, groups.shard, replicas, at::kCPU, options);
  model.load(initial_reader(spec));
  Trained out;
  out.exchange = model.exchange_kind();
  const int64_t before = counted("replica_gradient_bytes");
  for (int step = 0; step < 3; ++step) {
    const auto batch = tiny_work(spec.shape, world().rank(), step);
    const int64_t sent = counted("replica_gradient_bytes");
    if (way.once || way.twice)
      model.forward_backward(batch, loss_of(spec, batch), zero::Reduce::later);
    model.forward_backward(batch, loss_of(spec, batch));
    out.begun_bytes += counted("replica_gradient_bytes") - sent;
    const auto result = model.step(adam(way));
    EXPECT_TRUE(result.updated) << result.not_finite;
    out.norms.push_back(result.grad_norm);
    out.changed += result.changed_values;
  }
  out.reduced_bytes = model.counters().reduced_bytes;
  out.replica_bytes = counted("replica_gradient_bytes") - before;
  for (size_t p = 0; p < spec.parameters.size(); ++p) {
    for (const auto& array : {model.master(p), model.moment1(p), model.moment2(p)}) {
      const float* values = array.address();  // a fake device's memory is the host's
      out.state.insert(out.state.end(), values, values + model.own(p).elements());
    }
  }
  return out;
}

// While it lives.
struct ExactProducts {
  explicit ExactProducts(bool wanted) { kernels::use_exact_products(wanted); }
  ExactProducts(const ExactProducts&) = delete;
  ~ExactProducts() { kernels::use_exact_products(true); }
};

Trained on_host(config::DType type, const Way& way) {
  const ExactProducts exact(way.exact);
  return train(type, way, Groups(way.hybrid));
}

Trained on_device(config::DType type, const Way& way) {
  own_device();
  fakegpu::set_delays(
      {.seed = static_cast<unsigned>(3 + world().rank()), .legacy_us = 20, .others_us = 20});
  const Groups groups(way.hybrid);
  const HostAsDevice device;
  if (!way.own_kernels) kernels::set_device_kernels(nullptr);
  const ExactProducts exact(way.exact);
  return train(type, way, groups);
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return most;
}

class DeviceTraining : public testing::TestWithParam<config::DType> {};

// Without clipping, whose norm is added up in another order, the kernel for devices gives the
// host's bits.
TEST_P(DeviceTraining, TheKernelForDevicesGivesTheHostsBits) {
  const Way way{.max_norm = 1e6};
  const Trained want = on_host(GetParam(), way), got = on_device(GetParam(), way);
  EXPECT_EQ(got.exchange, "NCCL ring");
  EXPECT_EQ(largest_difference(want.state, got.state), 0);
  EXPECT_EQ(got.changed, want.changed);
  for (size_t i = 0; i < want.norms.size(); ++i)
    EXPECT_NEAR(got.norms[i], want.norms[i], 1e-9 * want.norms[i]);
}

TEST_P(DeviceTraining, EveryWayOfTheUpdateComesToTheSame) {
  const double tolerance = GetParam() == config::DType::f32
                               ? 2e-6
                               : 2e-3;  // in bf16 a last bit of a master moves a weight by a 256th
  for (const Way& way :
       {Way{}, Way{.own_kernels = false}, Way{.own_kernels = false, .offload = true},
        Way{.offload = true}, Way{.once = true}}) {
    const Trained want = on_host(GetParam(), way), got = on_device(GetParam(), way);
    EXPECT_LE(largest_difference(want.state, got.state), tolerance)
        << "own kernels " << way.own_kernels << ", offload " << way.offload << ", reduced once "
        << way.once;
    for (size_t i = 0; i < want.norms.size(); ++i)
      EXPECT_NEAR(got.norms[i], want.norms[i], tolerance * want.norms[i]);
  }
}

// train.exact_products: gradients of bf16 weights are added to their slots by the product, nearer
// to those of fp32 than rounded ones, and all of them are.
TEST_P(DeviceTraining, ProductsAddToGradientsByThemselves) {
  const bool bf16 = GetParam() == config::DType::bf16;
  const Trained rounded = on_device(GetParam(), Way{});
  EXPECT_EQ(HostAsDevice::products_added(), 0);
  const Trained exact = on_device(GetParam(), Way{.exact = true}),
                again = on_device(GetParam(), Way{.exact = true});
  const auto spec = model::describe(tiny_shape(Tied::yes), model::HeadKind::language);
  // In each step but that in which this rank has nothing to learn from: seven products a block; the
  // head's weight and hidden states, a piece of the vocabulary each.
  EXPECT_EQ(HostAsDevice::products_added(), bf16 ? 2 * (7 * spec.shape.layers + 2) : 0);
  EXPECT_EQ(exact.state, again.state);
  EXPECT_EQ(exact.state == rounded.state, !bf16);
  EXPECT_LE(largest_difference(exact.state, rounded.state), bf16 ? 5e-3 : 0)
      << "three steps of 1e-2";
  for (size_t i = 0; i < exact.norms.size(); ++i)
    EXPECT_NEAR(exact.norms[i], rounded.norms[i], 1e-2 * rounded.norms[i]);
}

// Gradients of replicas are added where they lie, during the last backward pass of a step.
TEST_P(DeviceTraining, NoGradientOfAReplicaGoesThroughTheHost) {
  for (const Way& way :
       {Way{.hybrid = true, .max_norm = 1e6}, Way{.hybrid = true, .max_norm = 1e6, .once = true},
        Way{.hybrid = true, .max_norm = 1e6, .twice = true}}) {
    const Trained want = on_host(GetParam(), way);
    const int64_t before = counted("replica_gradient_host_bytes");
    const Trained got = on_device(GetParam(), way);
    EXPECT_EQ(largest_difference(want.state, got.state), 0);  // two replicas: one order
    EXPECT_EQ(got.replica_bytes > 0, world().size() > 1);
    EXPECT_EQ(got.replica_bytes, want.replica_bytes);
    EXPECT_EQ(got.begun_bytes, got.replica_bytes);
    EXPECT_EQ(want.begun_bytes, 0);
    EXPECT_EQ(counted("replica_gradient_host_bytes"), before);
  }
}

// What has its sum over replicas takes no gradients of this rank alone.
TEST(DeviceReplicas, RefuseAMicroBatchAfterTheLast) {
  if (world().size() == 1) GTEST_SKIP() << "needs replicas";
  own_device();
  const Groups groups(true);
  const HostAsDevice device;
  const auto spec = model::describe(tiny_shape(Tied::yes), model::HeadKind::language);
  zero::ShardedModel model(spec, groups.shard, groups.replicas->view(), at::kCPU, {});
  model.load(initial_reader(spec));
  const auto batch = tiny_work(spec.shape, world().rank(), 0);
  EXPECT_THROW(model.step(adam({})), UserError) << "without a micro-batch";
  model.forward_backward(batch, loss_of(spec, batch));
  EXPECT_THROW(model.forward_backward(batch, loss_of(spec, batch)), UserError);
  model.zero_gradients();  // the step is given up
  model.forward_backward(batch, loss_of(spec, batch));
  EXPECT_TRUE(model.step(adam({})).updated);
}

// train.reduce_dtype = "bf16": half the bytes by NCCL, in a shard group and across groups; norms
// and state within the rounding of gradients, the same bits again.
TEST_P(DeviceTraining, GradientsGoBetweenDevicesInHalfPrecision) {
  for (const bool hybrid : {false, true}) {
    const Way fp32{.hybrid = hybrid}, bf16{.hybrid = hybrid, .reduce = config::DType::bf16};
    const int64_t before = counted("replica_gradient_host_bytes");
    const Trained whole = on_device(GetParam(), fp32), half = on_device(GetParam(), bf16),
                  again = on_device(GetParam(), bf16);
    EXPECT_EQ(2 * half.reduced_bytes, whole.reduced_bytes);
    EXPECT_EQ(2 * half.replica_bytes, whole.replica_bytes);
    EXPECT_EQ(half.reduced_bytes + half.replica_bytes > 0, world().size() > 1);
    EXPECT_EQ(counted("replica_gradient_host_bytes"), before);
    EXPECT_NEAR(half.norms[0], whole.norms[0], whole.norms[0] / 128)
        << "a gradient is rounded on its rank and in the sum, in a group and across groups";
    EXPECT_EQ(half.state == whole.state, world().size() == 1);
    EXPECT_EQ(half.state, again.state);
    EXPECT_LE(largest_difference(whole.state, half.state), 5e-3) << "three steps of 1e-2";
  }
}

INSTANTIATE_TEST_SUITE_P(Types, DeviceTraining,
                         testing::Values(config::DType::f32, config::DType::bf16),
                         [](const auto& tested) {
                           return tested.param == config::DType::f32 ? "fp32" : "bf16";
                         });

}  // namespace
}  // namespace trireme::test
