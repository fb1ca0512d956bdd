// Whole optimizer steps: against LibTorch's AdamW on the whole model, hybrid sharding, the average,
// refused updates.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/world.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/adamw.hpp"
#include "trireme/trace/region.hpp"
#include "trireme/zero/replica_check.hpp"
#include "unit/zero/tiny_model.hpp"

namespace trireme::test {
namespace {

class Training : public testing::TestWithParam<comm::ExchangeKind> {};

TEST_P(Training, ThreeStepsEqualLibTorchsAdamW) {
  const auto spec = model::describe(tiny_shape(Tied::yes), model::HeadKind::language);
  zero::ShardedModelOptions options;
  options.compute = config::DType::f32;
  options.exchange = GetParam();
  options.offload =
      GetParam() ==
      comm::ExchangeKind::mpi_ring;  // on CPUs another piece of host memory, and the same numbers
  options.track_changes = true;
  zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, options);
  model.load(initial_reader(spec));
  auto want = whole_parameters(spec);
  const auto norms = plain_steps(spec, want, world().size(), 3);
  for (int step = 0; step < 3; ++step) {
    const auto batch = tiny_work(spec.shape, world().rank(), step);
    model.forward_backward(batch, loss_of(spec, batch));
    const auto result = model.step(adam());
    EXPECT_TRUE(result.updated);
    EXPECT_NEAR(result.grad_norm, norms[static_cast<size_t>(step)],
                1e-5 * norms[static_cast<size_t>(step)]);
    EXPECT_EQ(result.elements, spec.elements());
    EXPECT_GT(result.changed_values, 0);
    EXPECT_LE(result.changed_values, result.elements);
  }
  EXPECT_EQ(model.steps(), 3);
  expect_trained(model, want);
  // The compute-dtype weights are the master's, on every rank's view of the whole model.
  const auto batch = tiny_batch(spec.shape, 1, {3});
  model.forward(batch, [&](const at::Tensor&, const at::Tensor& head) {
    const auto& embedding = want[spec.index_of(model::Role::embedding)];
    EXPECT_LE(head.sub(embedding).abs().max().item<double>(),
              2e-5 * embedding.abs().max().item<double>());
  });
}

// Gradients and their norm after one pass, and the bytes that went between ranks.
struct OnePass {
  std::vector<float> gradients;
  double norm = 0;
  int64_t bytes = 0;
};
OnePass one_pass(comm::ExchangeKind exchange, config::DType reduce) {
  const auto spec = model::describe(tiny_shape(Tied::yes), model::HeadKind::language);
  zero::ShardedModelOptions options;
  options.compute = config::DType::f32;
  options.exchange = exchange;
  options.reduce = reduce;
  zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, options);
  model.load(initial_reader(spec));
  const auto batch = tiny_work(spec.shape, world().rank(), 0);
  model.forward_backward(batch, loss_of(spec, batch));
  OnePass out;
  for (size_t p = 0; p < spec.parameters.size(); ++p) {
    if (!model.own(p).empty())
      out.gradients.insert(out.gradients.end(), model.gradient(p).host(),
                           model.gradient(p).host() + model.own(p).elements());
  }
  out.norm = model.step(adam()).grad_norm;
  out.bytes = world().sum(model.counters().reduced_bytes);
  return out;
}

// Three steps of four micro-batches, of which ranks have none now and then.
struct Accumulated {
  std::vector<float> state;
  std::vector<double> norms;
  int64_t reductions = 0, bytes = 0, sums = 0;
};
Accumulated accumulate(comm::ExchangeKind exchange, bool once, config::DType reduce) {
  constexpr int64_t micro_batches = 4;
  const auto spec = model::describe(tiny_shape(Tied::yes), model::HeadKind::language);
  zero::ShardedModelOptions options;
  options.compute = config::DType::f32;
  options.exchange = exchange;
  options.reduce = reduce;
  options.reduce_once = once;
  zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, options);
  model.load(initial_reader(spec));
  Accumulated out;
  for (int step = 0; step < 3; ++step) {
    for (int64_t left = micro_batches; left > 0;) {
      const auto batch = tiny_work(spec.shape, world().rank(), step + static_cast<int>(left));
      model.forward_backward(batch, loss_of(spec, batch), zero::reduce_before(--left));
    }
    out.norms.push_back(model.step(adam()).grad_norm);
  }
  for (size_t p = 0; p < spec.parameters.size(); ++p) {
    if (!model.own(p).empty())
      out.state.insert(out.state.end(), model.master(p).host(),
                       model.master(p).host() + model.own(p).elements());
  }
  out.reductions = model.counters().reductions;
  out.bytes = world().sum(model.counters().reduced_bytes);
  out.sums = model.memory().sums;
  return out;
}

TEST_P(Training, GradientsReducedOnceAStepAreThoseOfEachMicroBatch) {
  for (const auto reduce : {config::DType::f32, config::DType::bf16}) {
    const Accumulated each = accumulate(GetParam(), false, reduce),
                      once = accumulate(GetParam(), true, reduce);
    EXPECT_EQ(each.sums, 0);
    EXPECT_GT(once.sums, 0);
    EXPECT_EQ(4 * once.reductions, each.reductions);
    EXPECT_EQ(4 * once.bytes, each.bytes);
    const double tolerance = reduce == config::DType::f32 ? 1e-5 : 1.0 / 128;
    for (size_t i = 0; i < each.norms.size(); ++i)
      EXPECT_NEAR(once.norms[i], each.norms[i], tolerance * each.norms[i]);
    ASSERT_EQ(once.state.size(), each.state.size());
    for (size_t i = 0; i < each.state.size(); ++i)
      ASSERT_NEAR(once.state[i], each.state[i], reduce == config::DType::f32 ? 2e-6 : 2e-3) << i;
  }
}

TEST_P(Training, GradientsThatWereToGoLaterAreAskedForAndForgotten) {
  const auto spec = model::describe(tiny_shape(Tied::yes), model::HeadKind::language);
  zero::ShardedModelOptions options;
  options.compute = config::DType::f32;
  options.exchange = GetParam();
  options.reduce_once = true;
  zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, options);
  model.load(initial_reader(spec));
  const auto batch = tiny_work(spec.shape, world().rank(), 0);
  model.forward_backward(batch, loss_of(spec, batch));
  const double norm = model.step({.lr = 0}).grad_norm;
  model.forward_backward(batch, loss_of(spec, batch), zero::Reduce::later);
  EXPECT_THROW(model.step(adam()), InternalError);
  model.zero_gradients();
  model.forward_backward(batch, loss_of(spec, batch));
  EXPECT_EQ(model.step(adam()).grad_norm, norm) << "nothing is left of the step that was not made";
}

TEST_P(Training, GradientsInHalfPrecisionAreThoseOfFp32ButForTheirRounding) {
  const OnePass whole = one_pass(GetParam(), config::DType::f32),
                half = one_pass(GetParam(), config::DType::bf16);
  EXPECT_EQ(2 * half.bytes, whole.bytes);
  EXPECT_NEAR(half.norm, whole.norm, whole.norm / 256);
  ASSERT_EQ(half.gradients.size(), whole.gradients.size());
  double difference = 0;
  for (size_t i = 0; i < half.gradients.size(); ++i)
    difference += std::pow(half.gradients[i] - whole.gradients[i], 2);
  difference = std::sqrt(world().sum(difference));
  EXPECT_LE(difference, whole.norm / 256)
      << "each value, and each sum that leaves a node, is off by less than its 256th";
  EXPECT_EQ(difference > 0, world().size() > 1);
  const OnePass again = one_pass(GetParam(), config::DType::bf16);
  EXPECT_EQ(again.gradients, half.gradients) << "the same bits";
}

INSTANTIATE_TEST_SUITE_P(Kinds, Training,
                         testing::Values(comm::ExchangeKind::windows, comm::ExchangeKind::mpi_ring),
                         [](const auto& value) {
                           return value.param == comm::ExchangeKind::mpi_ring ? "ring" : "windows";
                         });

// The bits of several steps add up until they are cleared: a value that a step changes and the next
// one leaves alone counts.
TEST(ChangedBits, AreThoseOfAllStepsSinceTheyWereCleared) {
  const auto spec = model::describe(tiny_shape(Tied::yes), model::HeadKind::language);
  zero::ShardedModelOptions options;
  options.compute = config::DType::bf16;
  options.track_changes = true;
  zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, options);
  model.load(initial_reader(spec));
  const auto values = [&](size_t p) {
    const auto* first = reinterpret_cast<const uint16_t*>(model.compute_slice(p).host());
    return std::vector<uint16_t>(first, first + model.own(p).elements());
  };
  const auto bit = [&](size_t p, size_t i) {
    return (model.changed(p)[i / 64] >> (i % 64) & 1) != 0;
  };
  for (size_t p = 0; p < spec.parameters.size(); ++p) {
    for (size_t i = 0; i < values(p).size(); ++i) EXPECT_TRUE(bit(p, i)) << "everything was loaded";
  }
  model.clear_changes();
  std::vector<std::vector<uint16_t>> before;
  for (size_t p = 0; p < spec.parameters.size(); ++p) before.push_back(values(p));
  std::vector<std::vector<uint8_t>> want(before.size());
  for (size_t p = 0; p < before.size(); ++p) want[p].assign(before[p].size(), 0);
  int64_t lost = 0;  // changed by the first step only: what assigning the bits would lose
  for (int step = 0; step < 2; ++step) {
    const auto batch = tiny_work(spec.shape, world().rank(), step);
    model.forward_backward(batch, loss_of(spec, batch));
    model.step(adam());
    for (size_t p = 0; p < before.size(); ++p) {
      const auto now = values(p);
      for (size_t i = 0; i < now.size(); ++i) {
        const bool changes = now[i] != before[p][i];
        lost += step == 1 && want[p][i] && !changes;
        want[p][i] |= changes;
      }
      before[p] = now;
    }
  }
  EXPECT_GT(world().sum(lost), 0) << "the test would see nothing";
  for (size_t p = 0; p < want.size(); ++p) {
    for (size_t i = 0; i < want[p].size(); ++i)
      ASSERT_EQ(bit(p, i), want[p][i] != 0) << spec.parameters[p].spec.name << " " << i;
  }
}

// Two groups of two: sharded inside a group, summed across; the same training as on all four.
struct TwoGroups {
  const int rank = world().rank(), half = world().size() / 2;
  const comm::Comm shard = comm::Comm::split(world(), rank / half, rank, "shard");
  const comm::Comm replicas = comm::Comm::split(world(), rank % half, rank, "replicas");
};

TEST(HybridSharding, EqualsThePlainModel) {
  if (world().size() % 2 != 0) GTEST_SKIP() << "needs an even number of ranks";
  const TwoGroups groups;
  const auto& [rank, half, shard, replicas] = groups;
  const auto spec = model::describe(tiny_shape(Tied::no), model::HeadKind::language);
  zero::ShardedModelOptions options;
  options.compute = config::DType::f32;
  zero::ShardedModel model(spec, shard, replicas.view(), at::kCPU, options);
  model.load(initial_reader(spec));
  auto want = whole_parameters(spec);
  const auto norms = plain_steps(spec, want, world().size(), 2);
  for (int step = 0; step < 2; ++step) {
    const auto batch = tiny_work(spec.shape, rank, step);
    model.forward_backward(batch, loss_of(spec, batch));
    EXPECT_NEAR(model.step(adam()).grad_norm, norms[static_cast<size_t>(step)],
                1e-5 * norms[static_cast<size_t>(step)]);
  }
  expect_trained(model, want);
}

// What replicas send is counted; they end with the same bits.
TEST(HybridSharding, InHalfPrecisionSendsHalfAndKeepsReplicasAlike) {
  if (world().size() % 2 != 0) GTEST_SKIP() << "needs an even number of ranks";
  const TwoGroups groups;
  const auto spec = model::describe(tiny_shape(Tied::no), model::HeadKind::language);
  std::vector<double> norms;
  std::vector<int64_t> bytes;
  for (const auto reduce : {config::DType::f32, config::DType::bf16}) {
    zero::ShardedModelOptions options;
    options.reduce = reduce;
    zero::ShardedModel model(spec, groups.shard, groups.replicas.view(), at::kCPU, options);
    model.load(initial_reader(spec));
    const auto batch = tiny_work(spec.shape, groups.rank, 0);
    model.forward_backward(batch, loss_of(spec, batch));
    const auto sent = [] {
      const auto counts = trace::counts();
      const auto found = counts.find("replica_gradient_bytes");
      return found == counts.end() ? 0 : found->second;
    };
    const int64_t before = sent();
    norms.push_back(model.step(adam()).grad_norm);
    bytes.push_back(sent() - before);
    zero::require_equal_replicas(groups.replicas, groups.rank, "model", model);
  }
  EXPECT_NEAR(norms[1], norms[0], norms[0] / 128);
  EXPECT_NE(norms[1], norms[0]);
  EXPECT_GT(bytes[1], 0);
  EXPECT_EQ(2 * bytes[1], bytes[0]);
}

TEST(Average, FollowsTheWeights) {
  const auto spec = model::describe(tiny_shape(Tied::no), model::HeadKind::language);
  zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, {});
  model.load(initial_reader(spec));
  EXPECT_EQ(model.average(0).host(), nullptr);
  model.enable_average(0.9);
  const int64_t n = model.own(0).elements();
  std::vector<float> want(model.master(0).host(), model.master(0).host() + n);
  for (int step = 0; step < 2; ++step) {
    const auto batch = tiny_work(spec.shape, world().rank(), step);
    model.forward_backward(batch, loss_of(spec, batch));
    model.step(adam());
    for (int64_t i = 0; i < n; ++i) {
      auto& e = want[static_cast<size_t>(i)];
      e = e * 0.9f + model.master(0).host()[i] * 0.1f;
    }
  }
  for (int64_t i = 0; i < n; ++i)
    EXPECT_NEAR(model.average(0).host()[i], want[static_cast<size_t>(i)], 1e-6);
  EXPECT_THROW(model.enable_average(1.0), UserError);
}

// One rank's NaN must reach every rank's decision, and must not reach the weights.
TEST(Step, DoesNotUpdateOnANonFiniteNorm) {
  const auto spec = model::describe(tiny_shape(Tied::no), model::HeadKind::language);
  zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, {});
  model.load(initial_reader(spec));
  const int64_t n = model.own(0).elements();
  const std::vector<float> before(model.master(0).host(), model.master(0).host() + n);
  if (world().rank() == world().size() - 1)
    model.gradient(0).host()[0] = std::numeric_limits<float>::quiet_NaN();
  const auto result = model.step(adam());
  EXPECT_FALSE(result.updated);
  EXPECT_FALSE(std::isfinite(result.grad_norm));
  EXPECT_EQ(model.steps(), 0);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), model.master(0).host()));
  EXPECT_TRUE(std::isfinite(model.step(adam()).grad_norm));  // the gradients were cleared
}

// A part of the ranks then gives its ring to a model of its own: all of them gather anew, not those
// only that lost what they had.
TEST(Step, ThatIsLeftOutKeepsNoGatheredStages) {
  const auto spec = model::describe(tiny_shape(Tied::no), model::HeadKind::language);
  const bool refers = world().rank() == 0;
  const comm::Comm part = comm::Comm::split(world(), refers ? 0 : 1, world().rank(), "reference");
  zero::ShardedModelOptions options;
  options.exchange = comm::ExchangeKind::mpi_ring;
  options.rings = std::make_shared<comm::RingMemory>();
  zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, options);
  model.load(initial_reader(spec));
  zero::ShardedModel reference(model::frozen(spec), part, std::nullopt, at::kCPU, options);
  reference.load(initial_reader(spec));
  const auto batch = tiny_batch(spec.shape, 1, {4});
  const auto hidden_of = [&](zero::ShardedModel& one) {
    at::Tensor hidden;
    one.forward(batch, [&](const at::Tensor& x, const at::Tensor&) { hidden = x.clone(); });
    return hidden;
  };
  const at::Tensor want = hidden_of(reference);
  model.forward_backward(batch, loss_of(spec, batch));
  if (model.own(0).elements() > 0)
    model.gradient(0).host()[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(model.step(adam()).updated);
  if (refers) { EXPECT_TRUE(hidden_of(reference).equal(want)); }
  EXPECT_TRUE(hidden_of(model).equal(want));
}

// After a reader wrote master weights directly (a checkpoint), refresh() makes every rank compute
// with them.
TEST(Refresh, PublishesWrittenMasterWeights) {
  const auto spec = model::describe(tiny_shape(Tied::no), model::HeadKind::language);
  for (const auto exchange : exchanges_here()) {
    zero::ShardedModelOptions options;
    options.exchange = exchange;
    zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, options);
    model.load(initial_reader(spec));
    const size_t head = spec.index_of(model::Role::lm_head);
    for (int64_t i = 0; i < model.own(head).elements(); ++i) model.master(head).host()[i] = 3;
    model.refresh();
    model.forward(tiny_batch(spec.shape, 1, {4}), [](const at::Tensor&, const at::Tensor& weight) {
      EXPECT_EQ(weight.to(at::kFloat).min().item<double>(), 3);
      EXPECT_EQ(weight.to(at::kFloat).max().item<double>(), 3);
    });
  }
}

}  // namespace
}  // namespace trireme::test
