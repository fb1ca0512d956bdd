// Gradients of the sharded model against an ordinary graph of the whole model in one process.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/world.hpp"
#include "trireme/base/error.hpp"
#include "unit/zero/tiny_model.hpp"

namespace trireme::test {
namespace {

struct Setting {
  comm::ExchangeKind exchange;
  config::DType compute;
  Tied tied;
  model::HeadKind head;
  int64_t recompute;
};

void PrintTo(const Setting& s, std::ostream* out) {
  *out << (s.exchange == comm::ExchangeKind::mpi_ring ? "ring" : "window") << " "
       << config::to_string(s.compute) << (s.tied == Tied::yes ? " tied" : "")
       << (s.head == model::HeadKind::score ? " score" : "") << " recompute " << s.recompute;
}

zero::ShardedModelOptions options_of(const Setting& s) {
  zero::ShardedModelOptions options;
  options.compute = s.compute;
  options.recompute = s.recompute;
  options.exchange = s.exchange;
  return options;
}

std::vector<model::PackedBatch> all_work(const config::ModelShape& shape, int ranks, int steps) {
  std::vector<model::PackedBatch> batches;
  for (int step = 0; step < steps; ++step) {
    for (int rank = 0; rank < ranks; ++rank) batches.push_back(tiny_work(shape, rank, step));
  }
  return batches;
}

class Gradients : public testing::TestWithParam<Setting> {};

// Three micro-batches, unequal and partly empty, then again after clearing.
TEST_P(Gradients, EqualThePlainGraph) {
  const auto& setting = GetParam();
  const auto spec = model::describe(tiny_shape(setting.tied), setting.head);
  const int ranks = world().size(), rank = world().rank();
  zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, options_of(setting));
  model.load(initial_reader(spec));
  const auto compute = setting.compute == config::DType::bf16 ? at::kBFloat16 : at::kFloat;
  const auto want =
      plain_gradients(spec, whole_parameters(spec), all_work(spec.shape, ranks, 3), compute);
  // bf16: the plain graph rounds each parameter's gradient to bf16 (2^-9) before adding, the
  // sharded one the same but for the embedding, which it adds in fp32.
  const double bound = setting.compute == config::DType::bf16 ? 1.2e-2 : 2e-6;
  for (int round = 0; round < 2; ++round) {
    for (int step = 0; step < 3; ++step) {
      const auto batch = tiny_work(spec.shape, rank, step);
      model.forward_backward(batch, loss_of(spec, batch));
    }
    for (size_t p = 0; p < spec.parameters.size(); ++p) {
      EXPECT_LE(relative_error(model.gradient(p).host(), model.own(p), want[p]), bound)
          << spec.parameters[p].spec.name;
    }
    model.zero_gradients();
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, Gradients,
                         testing::Values(Setting{comm::ExchangeKind::windows, config::DType::f32,
                                                 Tied::yes, model::HeadKind::language, -1},
                                         Setting{comm::ExchangeKind::windows, config::DType::f32,
                                                 Tied::no, model::HeadKind::language, 1},
                                         Setting{comm::ExchangeKind::windows, config::DType::bf16,
                                                 Tied::yes, model::HeadKind::language, 0},
                                         Setting{comm::ExchangeKind::windows, config::DType::f32,
                                                 Tied::no, model::HeadKind::score, -1},
                                         Setting{comm::ExchangeKind::mpi_ring, config::DType::f32,
                                                 Tied::yes, model::HeadKind::language, -1},
                                         Setting{comm::ExchangeKind::mpi_ring, config::DType::f32,
                                                 Tied::no, model::HeadKind::language, 1},
                                         Setting{comm::ExchangeKind::mpi_ring, config::DType::bf16,
                                                 Tied::no, model::HeadKind::language, 0},
                                         Setting{comm::ExchangeKind::mpi_ring, config::DType::f32,
                                                 Tied::no, model::HeadKind::score, -1}));

// The two exchanges add in the same order: the same bits, whatever the recompute setting.
TEST(GradientBits, DoNotDependOnExchangeOrRecompute) {
  const auto spec = model::describe(tiny_shape(Tied::yes), model::HeadKind::language);
  const auto batch = tiny_work(spec.shape, world().rank(), 0);
  std::vector<std::vector<float>> results;
  for (const auto exchange : exchanges_here()) {
    for (const int64_t recompute : {-1, 0, 2}) {
      const Setting setting{exchange, config::DType::bf16, Tied::yes, model::HeadKind::language,
                            recompute};
      zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, options_of(setting));
      model.load(initial_reader(spec));
      for (int i = 0; i < 2; ++i) model.forward_backward(batch, loss_of(spec, batch));
      auto& all = results.emplace_back();
      for (size_t p = 0; p < spec.parameters.size(); ++p) {
        if (const float* g = model.gradient(p).host())
          all.insert(all.end(), g, g + model.own(p).elements());
      }
    }
  }
  for (size_t i = 1; i < results.size(); ++i)
    EXPECT_TRUE(results[i] == results[0]) << "setting " << i;
}

std::vector<std::vector<float>> copy_of_gradients(zero::ShardedModel& model) {
  std::vector<std::vector<float>> out;
  for (size_t p = 0; p < model.spec().parameters.size(); ++p) {
    auto& values = out.emplace_back();
    if (const float* g = model.gradient(p).host()) values.assign(g, g + model.own(p).elements());
  }
  return out;
}

// Storage keeps the values of earlier passes: no gradient of theirs is met again, also where a pass
// gives a parameter none.
TEST(GradientBits, DoNotDependOnEarlierPasses) {
  for (const auto exchange : exchanges_here()) {
    for (const bool once : {false, true}) {
      for (const Tied tied : {Tied::yes, Tied::no}) {
        const auto spec = model::describe(tiny_shape(tied), model::HeadKind::language);
        zero::ShardedModelOptions options;
        options.exchange = exchange;
        options.reduce_once = once;
        const auto headless = [](const at::Tensor& hidden, const at::Tensor&) {
          return hidden.to(at::kFloat).square().sum();
        };
        const auto first = tiny_work(spec.shape, world().rank(), 0),
                   second = tiny_work(spec.shape, world().rank(), 1);
        const auto gradients = [&](bool used) {
          zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, options);
          model.load(initial_reader(spec));
          for (int pass = 0; used && pass < 2; ++pass)
            model.forward_backward(first, loss_of(spec, first), zero::reduce_before(1 - pass));
          model.zero_gradients();
          for (int pass = 0; pass < 2; ++pass)
            model.forward_backward(second, headless, zero::reduce_before(1 - pass));
          return copy_of_gradients(model);
        };
        const auto fresh = gradients(false);
        EXPECT_TRUE(gradients(true) == fresh) << "once a step: " << once;
        if (tied == Tied::yes) continue;
        const auto& head = fresh[spec.head_parameter()];
        EXPECT_EQ(std::ranges::count(head, 0.f), std::ssize(head));
      }
    }
  }
}

// A frozen pass gives the hidden states of the plain model and leaves nothing behind.
TEST(FrozenModel, ForwardsWithoutGradientsOrMasterWeights) {
  for (const auto exchange : exchanges_here()) {
    const auto spec = model::describe(tiny_shape(Tied::yes), model::HeadKind::language);
    zero::ShardedModelOptions options;
    options.compute = config::DType::f32;
    options.exchange = exchange;
    zero::ShardedModel model(model::frozen(spec), world(), std::nullopt, at::kCPU, options);
    model.load(initial_reader(spec));

    const auto whole = whole_parameters(spec);
    const auto batch = tiny_work(spec.shape, world().rank(), 0);
    int calls = 0;
    at::Tensor hidden;
    model.forward(batch, [&](const at::Tensor& h, const at::Tensor& head_weight) {
      ++calls;
      hidden = h.clone();
      EXPECT_TRUE(head_weight.equal(whole[spec.index_of(model::Role::embedding)]));
    });
    EXPECT_EQ(calls, batch.tokens() > 0 ? 1 : 0);
    if (hidden.defined()) {
      const at::NoGradGuard no_gradients;
      const auto rope = model::make_ropes(spec, 64, at::kCPU);
      model::Strategy plain;
      at::Tensor x;
      for (const auto& stage : spec.stages) {
        std::vector<at::Tensor> weights;
        for (const size_t p : stage.parameters) weights.push_back(whole[p]);
        x = model::run_stage({spec, stage, weights, batch, rope, plain}, x);
      }
      EXPECT_TRUE(hidden.equal(x));
    }
    const auto memory = model.memory();
    EXPECT_EQ(memory.gradients + memory.exchange + memory.moments + memory.master, 0);
    EXPECT_EQ(model.master(0).host(), nullptr);
    EXPECT_THROW(model.step({}), UserError);
    EXPECT_THROW(model.forward_backward(batch, loss_of(spec, batch)), UserError);
  }
}

TEST(Counters, WindowMovesNothingAndRingGathersEachStageOnce) {
  const auto spec = model::describe(tiny_shape(Tied::yes), model::HeadKind::language);
  const auto stages = static_cast<int64_t>(spec.stages.size());
  const auto batch = tiny_work(spec.shape, world().rank(), 0);
  const Setting setting{comm::ExchangeKind::windows, config::DType::f32, Tied::yes,
                        model::HeadKind::language, -1};

  zero::ShardedModel window(spec, world(), std::nullopt, at::kCPU, options_of(setting));
  window.load(initial_reader(spec));
  window.forward_backward(batch, loss_of(spec, batch));
  EXPECT_EQ(window.counters().gathered_bytes, 0);
  EXPECT_EQ(window.counters().reductions, stages);

  auto ring_options = options_of(setting);
  ring_options.exchange = comm::ExchangeKind::mpi_ring;
  zero::ShardedModel ring(spec, world(), std::nullopt, at::kCPU, ring_options);
  ring.load(initial_reader(spec));
  ring.forward_backward(batch, loss_of(spec, batch));
  // Forward gathers every stage, backward all but the last two, which still lie in the ring.
  EXPECT_EQ(ring.counters().gathers, 2 * stages - 2);
  EXPECT_EQ(ring.counters().gathered_bytes > 0, world().size() > 1);
}

// No rank holds more than its rows of the fp32 state (rounded up to whole rows and words of the
// change bitmap).
TEST(Memory, IsSharded) {
  const auto spec = model::describe(tiny_shape(Tied::no), model::HeadKind::language);
  zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, {});
  int64_t bound = 0, total = 0;
  for (const auto& parameter : spec.parameters) {
    const auto& t = parameter.spec;
    bound += (base::ShardLayout::rows_per_rank(t, world().size()) * t.columns() + 63) / 64 * 64;
    total += t.elements();
  }
  EXPECT_EQ(model.memory().master, 4 * bound);
  EXPECT_EQ(model.memory().moments, 8 * bound);
  EXPECT_EQ(model.memory().gradients, 4 * bound);
  if (world().size() == 4) { EXPECT_LT(model.memory().master, 4 * total / 3); }
}

TEST(Options, RecomputeBeyondTheBlocksIsRefused) {
  const auto spec = model::describe(tiny_shape(Tied::no), model::HeadKind::language);
  zero::ShardedModelOptions options;
  options.recompute = 4;
  try {
    zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, options);
    FAIL() << "recompute = 4 of 3 blocks was accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::configuration);
    EXPECT_NE(std::string(error.what()).find("train.recompute"), std::string::npos);
  }
}

// The rank's rows are empty where a parameter has fewer rows than there are ranks: a score head.
TEST(EmptyShards, AreHarmless) {
  const auto spec = model::describe(tiny_shape(Tied::no), model::HeadKind::score);
  zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, {});
  model.load(initial_reader(spec));
  const size_t score = spec.index_of(model::Role::score);
  EXPECT_EQ(model.master(score).host() == nullptr, world().rank() > 0);
  EXPECT_EQ(model.own(score).rows, world().rank() == 0 ? 1 : 0);
}

}  // namespace
}  // namespace trireme::test
