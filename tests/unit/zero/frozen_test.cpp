// Models that are trained in part: LibTorch's steps with the other parameters left alone, whatever
// is frozen, on all exchanges.
#include "torch/torch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "support/world.hpp"
#include "trireme/base/error.hpp"
#include "trireme/zero/replica_check.hpp"
#include "unit/zero/tiny_model.hpp"

namespace trireme::test {
namespace {

struct Part {
  Tied tied;
  model::HeadKind head;
  std::vector<std::string> frozen;
};

const std::vector<Part> parts{
    {Tied::yes, model::HeadKind::language, {"model.embed_tokens.*"}},
    {Tied::no, model::HeadKind::language, {"model.embed_tokens.weight", "model.layers.{0..1}.*"}},
    {Tied::yes, model::HeadKind::language, {"model.layers.{0..0}.*"}},
    {Tied::no, model::HeadKind::language, {"*norm.weight", "lm_head.weight"}},
    {Tied::no, model::HeadKind::language, {"*.1.*"}},
    {Tied::no, model::HeadKind::language, {"model.layers.*", "model.norm.weight"}},
    {Tied::yes, model::HeadKind::language, {"model.layers.*", "model.norm.weight"}},
    {Tied::no, model::HeadKind::language, {"model.embed*", "model.layers.*", "model.norm.weight"}},
    {Tied::no, model::HeadKind::language, {"*.{0..1}.self_attn.*", "*.{2..9}.mlp.*"}},
    {Tied::no, model::HeadKind::score, {"model.*"}},
    {Tied::no, model::HeadKind::score, {"model.embed_tokens.*", "*q_proj*", "score.weight"}}};

model::ModelSpec spec_of(const Part& part) {
  auto spec = model::describe(tiny_shape(part.tied), part.head);
  model::freeze(spec, part.frozen, "actor.freeze");
  return spec;
}

std::vector<std::byte> compute_bytes(zero::ShardedModel& model, size_t p) {
  const std::byte* first = model.compute_slice(p).host();
  return {first, first + model.own(p).elements() * model.compute_bytes()};
}

class Frozen : public testing::TestWithParam<comm::ExchangeKind> {};

TEST_P(Frozen, StepsAreThoseOfTheOtherParameters) {
  for (const Part& part : parts) {
    const auto spec = spec_of(part);
    SCOPED_TRACE(testing::PrintToString(part.frozen));
    auto want = whole_parameters(spec);
    const auto norms = plain_steps(spec, want, world().size(), 2);
    for (const int64_t recompute : {-1, 1}) {
      zero::ShardedModelOptions options;
      options.compute = config::DType::f32;
      options.exchange = GetParam();
      options.recompute = recompute;
      options.reduce_once = recompute == 1;
      options.track_changes = true;
      zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, options);
      model.load(initial_reader(spec));
      model.enable_average(0.5);
      std::vector<std::vector<std::byte>> before;
      for (size_t p = 0; p < spec.parameters.size(); ++p) before.push_back(compute_bytes(model, p));
      for (int step = 0; step < 2; ++step) {
        const auto batch = tiny_work(spec.shape, world().rank(), step);
        model.forward_backward(batch, loss_of(spec, batch));
        const auto result = model.step(adam());
        EXPECT_TRUE(result.updated);
        EXPECT_NEAR(result.grad_norm, norms[static_cast<size_t>(step)],
                    1e-5 * norms[static_cast<size_t>(step)]);
        EXPECT_EQ(result.elements, spec.trainable_elements());
        EXPECT_LE(result.changed_values, result.elements);
      }
      expect_trained(model, want);
      for (size_t p = 0; p < spec.parameters.size(); ++p) {
        const bool trained = spec.parameters[p].trainable, here = !model.own(p).empty();
        SCOPED_TRACE(spec.parameters[p].spec.name);
        EXPECT_EQ(compute_bytes(model, p) == before[p], !trained || !here);
        for (const bool there : {bool(model.master(p)), bool(model.gradient(p)),
                                 bool(model.moment1(p)), bool(model.average(p))})
          EXPECT_EQ(there, trained && here);
        EXPECT_EQ(model.changed(p) != nullptr, trained);
      }
      EXPECT_LE(model.memory().master, 4 * (spec.trainable_elements() / world().size() +
                                            (64 + 50) * std::ssize(spec.parameters)));
    }
  }
}

// Bytes between ranks, and products, are those of what is trained.
TEST_P(Frozen, GradientsThatNobodyWantsTakeNothing) {
  const auto bytes = [&](const model::ModelSpec& spec) {
    zero::ShardedModelOptions options;
    options.exchange = GetParam();
    zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, options);
    model.load(initial_reader(spec));
    const auto batch = tiny_work(spec.shape, world().rank(), 0);
    model.forward_backward(batch, loss_of(spec, batch));
    model.step(adam());
    return std::pair(world().sum(model.counters().reduced_bytes), model.counters().reductions);
  };
  const auto all = bytes(model::describe(tiny_shape(Tied::no), model::HeadKind::language));
  const auto some = bytes(spec_of(parts[1]));
  EXPECT_EQ(all.second, 5);
  EXPECT_EQ(some.second, 2) << "of the last block and the head";
  EXPECT_TRUE(all.first == 0 || some.first < all.first / 2) << some.first << " " << all.first;
}

INSTANTIATE_TEST_SUITE_P(Kinds, Frozen,
                         testing::Values(comm::ExchangeKind::windows, comm::ExchangeKind::mpi_ring),
                         [](const auto& value) {
                           return value.param == comm::ExchangeKind::mpi_ring ? "ring" : "windows";
                         });

TEST(FrozenInBf16, IsWhatWasLoaded) {
  const auto spec = spec_of(parts[1]);
  zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, {});
  model.load(initial_reader(spec));
  for (size_t p = 0; p < spec.parameters.size(); ++p) {
    if (model.own(p).empty()) continue;
    std::vector<float> rows(static_cast<size_t>(model.own(p).elements()));
    initial_rows(spec, p, model.own(p), rows.data());
    const at::Tensor want =
        at::from_blob(rows.data(), {std::ssize(rows)}, at::kFloat).to(at::kBFloat16);
    EXPECT_EQ(std::memcmp(model.compute_slice(p).host(), want.const_data_ptr(),
                          static_cast<size_t>(want.nbytes())),
              0);
  }
}

// Bits of frozen weights that differ between copies are found, too.
TEST(FrozenReplicas, AreCompared) {
  if (world().size() % 2 != 0) GTEST_SKIP() << "needs an even number of ranks";
  const int rank = world().rank(), half = world().size() / 2;
  const comm::Comm shard = comm::Comm::split(world(), rank / half, rank, "shard");
  const comm::Comm replicas = comm::Comm::split(world(), rank % half, rank, "replicas");
  const auto spec = spec_of(parts[1]);
  for (const bool wrong : {false, true}) {
    zero::ShardedModel model(spec, shard, replicas.view(), at::kCPU, {});
    model.load([&](size_t p, const base::Block& block, float* out) {
      initial_rows(spec, p, block, out);
      if (wrong && rank / half == 1 && p == 0) out[0] += 1;
    });
    const auto compare = [&] { zero::require_equal_replicas(replicas, rank, "model", model); };
    if (wrong) {
      EXPECT_THROW(compare(), UserError);
    } else {
      EXPECT_NO_THROW(compare());
    }
  }
}

std::string refusal(Tied tied, const std::vector<std::string>& patterns) {
  auto spec = model::describe(tiny_shape(tied), model::HeadKind::language);
  try {
    model::freeze(spec, patterns, "actor.freeze");
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::configuration);
    return error.what();
  }
  return "";
}

TEST(Freeze, RefusesByName) {
  using testing::HasSubstr;
  EXPECT_THAT(refusal(Tied::no, {"model.layers.{0..1}.*", "model.layer.*"}),
              HasSubstr("actor.freeze: \"model.layer.*\" fits no parameter"));
  EXPECT_THAT(refusal(Tied::no, {"model.layers.{3..9}.*"}), HasSubstr("fits no parameter"));
  EXPECT_THAT(refusal(Tied::no, {""}), HasSubstr("fits no parameter"));
  EXPECT_THAT(refusal(Tied::yes, {"lm_head.*"}), HasSubstr("its head is the embedding"));
  EXPECT_THAT(refusal(Tied::no, {"*"}), HasSubstr("nothing is left to train"));
  EXPECT_THAT(refusal(Tied::no, {"model.*", "lm_head.weight"}),
              HasSubstr("nothing is left to train"));
  for (const char* wrong : {"model.layers.{0-3}.*", "model.layers.{3..0}.*", "model.layers.{..2}.*",
                            "model.layers.{1..*", "a}", "model.layers.{0..1x}.*"})
    EXPECT_THAT(refusal(Tied::no, {wrong}), HasSubstr("is not a pattern")) << wrong;
  EXPECT_EQ(refusal(Tied::no, {}), "");
  EXPECT_EQ(refusal(Tied::no, {"lm_head.*"}), "");
}

// Ranges are numbers, not texts: 1 is not 10, and 10 lies between 9 and 11.
TEST(Freeze, RangesCountNumbers) {
  auto shape = tiny_shape(Tied::no);
  shape.layers = 13;
  auto spec = model::describe(shape, model::HeadKind::language);
  model::freeze(spec, {"model.layers.{1..1}.*", "*.{9..11}.*"}, "actor.freeze");
  for (const auto& parameter : spec.parameters) {
    const auto& name = parameter.spec.name;
    bool frozen = false;
    for (const char* layer : {".1.", ".9.", ".10.", ".11."})
      frozen |= name.starts_with("model.layers.") && name.find(layer) != std::string::npos;
    EXPECT_EQ(parameter.trainable, !frozen) << name;
  }
}

}  // namespace
}  // namespace trireme::test
