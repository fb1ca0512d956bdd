#include "torch/torch.hpp"

#include "trireme/kernels/adamw.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "support/instruction_sets.hpp"
#include "support/tensor_meter.hpp"
#include "support/world.hpp"
#include "tiny_model.hpp"
#include "trireme/comm/shard_exchange.hpp"
#include "trireme/plan/model_bytes.hpp"
#include "zero/optimizer.hpp"

namespace trireme::test {
namespace {

// The path of devices, on a tensor of the host: a shard must not be converted to double as a whole.
TEST(GradientNorm, OfADeviceTakesMemoryForOneChunk) {
  at::manual_seed(4);
  for (const int64_t n : {int64_t{0}, int64_t{1}, plan::norm_chunk, 5 * plan::norm_chunk + 3}) {
    const at::Tensor gradient = at::randn({n}).mul_(1e-3);
    double squares = 0;
    const int64_t peak =
        peak_tensor_bytes([&] { squares = zero::squared_norm_in_chunks(gradient); });
    double expected = 0;
    for (int64_t i = 0; i < n; ++i)
      expected += std::pow(static_cast<double>(gradient.const_data_ptr<float>()[i]), 2);
    EXPECT_NEAR(squares, expected, 1e-10 * expected) << n;
    EXPECT_LE(peak, plan::norm_chunk * int64_t{sizeof(double)} + 4096) << n << " values";
    EXPECT_GT(peak, 0) << "the meter sees tensors";
  }
  const float large = 1e30f, nothing = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NEAR(zero::squared_norm_in_chunks(at::full({3}, large)) / 3e60, 1, 1e-6) << "beyond fp32";
  EXPECT_TRUE(std::isnan(zero::squared_norm_in_chunks(at::full({3}, nothing))));
}

// The path of devices, on tensors of the host: state that stays in host memory and passes by in
// pieces ends with the bits of state that is there, and nothing is skipped or done twice.
TEST(OptimizerOffload, GivesTheSameBitsInPieces) {
  const auto spec = model::describe(tiny_shape(Tied::no), model::HeadKind::language);
  const zero::ShardMap map(spec, world().size(), world().rank());
  const zero::AdamWOptions options{.lr = 1e-3, .weight_decay = 0.1};
  struct Trained {
    zero::OptimizerState state;
    std::unique_ptr<comm::ShardExchange> exchange;
    int64_t changed = 0;
  };
  const auto train = [&](bool offload, int64_t piece) {
    Trained out;
    comm::ExchangeOptions exchange;
    exchange.kind = comm::ExchangeKind::mpi_ring;
    out.exchange =
        comm::make_shard_exchange(world(), zero::slot_geometry(spec, world().size()), exchange);
    at::manual_seed(7);
    for (at::Tensor* flat :
         {&out.state.master, &out.state.gradient, &out.state.moment1, &out.state.moment2}) {
      *flat = at::randn({map.elements()}).abs_().mul_(1e-2);
    }
    if (offload) out.state.host.resize(1);
    for (int step = 0; step < 3; ++step) {
      out.exchange->begin_update();
      out.changed += zero::update_by_operations(
          {out.state, map, *out.exchange, at::kBFloat16, options, 1}, piece);
      out.exchange->end_update();
      ++out.state.steps;
    }
    return out;
  };
  const Trained whole = train(false, std::numeric_limits<int64_t>::max());
  EXPECT_GT(whole.changed, 0);
  for (const int64_t piece : {int64_t{64}, int64_t{1024}, int64_t{1} << 30}) {
    const Trained pieces = train(true, piece);
    EXPECT_EQ(pieces.changed, whole.changed) << piece;
    EXPECT_TRUE(at::equal(pieces.state.master, whole.state.master)) << piece;
    EXPECT_TRUE(at::equal(pieces.state.moment1, whole.state.moment1)) << piece;
    EXPECT_TRUE(at::equal(pieces.state.moment2, whole.state.moment2)) << piece;
    for (size_t p = 0; p < map.parameters(); ++p) {
      const auto bytes = static_cast<size_t>(map.own(p).elements()) * 2;
      EXPECT_EQ(std::memcmp(pieces.exchange->own_slice(p), whole.exchange->own_slice(p), bytes), 0)
          << piece << " " << spec.parameters[p].spec.name;
    }
  }
}

kernels::AdamWShard shard_of(at::Tensor& p, at::Tensor& m, at::Tensor& v, const at::Tensor& g) {
  kernels::AdamWShard shard;
  shard.master = p.data_ptr<float>();
  shard.moment1 = m.data_ptr<float>();
  shard.moment2 = v.data_ptr<float>();
  shard.gradient = g.data_ptr<float>();
  shard.elements = p.numel();
  return shard;
}

struct State {
  explicit State(int64_t n, uint64_t seed) {
    at::manual_seed(seed);
    p = at::randn({n});
    m = at::randn({n}).mul_(0.1);
    v = at::rand({n}).mul_(0.01);
    g = at::randn({n});
    compute = p.to(at::kBFloat16);
    changed.assign(static_cast<size_t>((n + 63) / 64), ~uint64_t{0});
  }
  kernels::AdamWShard shard() {
    auto s = shard_of(p, m, v, g);
    s.compute_bf16 = static_cast<uint16_t*>(compute.data_ptr());
    s.changed = changed.data();
    return s;
  }
  at::Tensor p, m, v, g, compute;
  std::vector<uint64_t> changed;
};

kernels::AdamWStep some_step() {
  kernels::AdamWStep step;
  step.lr = 1e-3;
  step.weight_decay = 0.1;
  step.clip_factor = 0.37;
  step.step = 5;
  return step;
}

// Lengths around a vector, a bitmap word and a task; tests/unit/kernels/isa_test.cpp has the edges.
TEST(AdamW, InstructionSetsAgreeBitwise) {
  for (const int64_t n : {1, 15, 16, 63, 64, 65, 1000, 70001}) {
    State a(n, 3), b(n, 3);
    const int64_t changed_a = kernels::adamw(a.shard(), some_step());
    const UnderInstructionSet portable(base::Isa::portable);
    const int64_t changed_b = kernels::adamw(b.shard(), some_step());
    EXPECT_EQ(changed_a, changed_b);
    EXPECT_TRUE(a.p.equal(b.p) && a.m.equal(b.m) && a.v.equal(b.v) && a.compute.equal(b.compute))
        << n;
    EXPECT_EQ(a.changed, b.changed);
  }
}

TEST(AdamW, BitsDoNotDependOnTheNumberOfThreads) {
  State a(200001, 9), b(200001, 9);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const int64_t changed = kernels::adamw(a.shard(), some_step());
  const double norm = kernels::squared_norm(a.g.data_ptr<float>(), a.g.numel());
  at::set_num_threads(3);
  EXPECT_EQ(kernels::adamw(b.shard(), some_step()), changed);
  EXPECT_EQ(kernels::squared_norm(b.g.data_ptr<float>(), b.g.numel()), norm);
  at::set_num_threads(before);
  EXPECT_TRUE(a.p.equal(b.p) && a.compute.equal(b.compute));
  EXPECT_EQ(a.changed, b.changed);
}

TEST(AdamW, EqualsLibTorchsFusedKernel) {
  State ours(5000, 11), theirs(5000, 11);
  const auto step = some_step();
  kernels::adamw(ours.shard(), step);
  const at::Tensor gradient = theirs.g.mul(step.clip_factor);
  const at::Tensor count = at::full({}, static_cast<double>(step.step));
  at::_fused_adamw_({theirs.p}, {gradient}, {theirs.m}, {theirs.v}, {}, {count}, step.lr,
                    step.beta1, step.beta2, step.weight_decay, step.eps, false, false);
  EXPECT_LE(ours.p.sub(theirs.p).abs().max().item<double>(), 5e-7);
  EXPECT_LE(ours.v.sub(theirs.v).abs().max().item<double>(), 1e-7);
}

// The bitmap and the count say exactly which bf16 values differ from before.
TEST(AdamW, KnowsWhichComputeValuesChanged) {
  State s(1000, 5);
  const at::Tensor before = s.compute.clone();
  auto step = some_step();
  step.lr =
      2e-4;  // about the distance of neighbouring bf16 values near 0.05: some change, some do not
  const int64_t count = kernels::adamw(s.shard(), step);
  const at::Tensor want = s.p.to(at::kBFloat16).ne(before);
  EXPECT_TRUE(s.compute.equal(s.p.to(at::kBFloat16)));
  EXPECT_EQ(count, want.sum().item<int64_t>());
  EXPECT_GT(count, 0);
  EXPECT_LT(count, 1000);
  for (int64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ((s.changed[static_cast<size_t>(i / 64)] >> (i % 64) & 1u) != 0, want[i].item<bool>())
        << i;
  }
  step.lr = 0;
  EXPECT_EQ(kernels::adamw(s.shard(), step), 0);
}

TEST(CastToBf16, RoundsAsLibTorch) {
  at::manual_seed(1);
  at::Tensor x = at::randn({100001}).mul_(100);
  const float specials[] = {0.f,
                            -0.f,
                            1e-40f,
                            3.3895314e38f,
                            -3.4028235e38f,
                            std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(),
                            1.00390625f,
                            1.01171875f};
  std::memcpy(x.data_ptr<float>(), specials, sizeof specials);
  at::Tensor got = at::empty(x.sizes(), at::kBFloat16);
  kernels::cast_to_bf16(x.data_ptr<float>(), static_cast<uint16_t*>(got.data_ptr()), x.numel());
  EXPECT_TRUE(std::isnan(got[6].item<float>()));  // with LibTorch's payload or another
  got[6] = x[6] = 0;
  EXPECT_TRUE(got.view(at::kShort).equal(x.to(at::kBFloat16).view(at::kShort)));
}

TEST(SquaredNorm, EqualsAnFp64Sum) {
  at::manual_seed(2);
  for (const int64_t n : {0, 1, 17, 4096, 100003}) {
    const at::Tensor x = at::randn({n});
    const double want = x.to(at::kDouble).pow(2).sum().item<double>();
    EXPECT_NEAR(kernels::squared_norm(x.data_ptr<float>(), n), want, 1e-12 * (1 + want));
  }
}

TEST(ClipFactor, FollowsTorch) {
  EXPECT_EQ(kernels::clip_factor(0.5, 1), 1);
  EXPECT_DOUBLE_EQ(kernels::clip_factor(4, 1), 1 / (4 + 1e-6));
  EXPECT_EQ(kernels::clip_factor(1e9, 0), 1);
}

}  // namespace
}  // namespace trireme::test
