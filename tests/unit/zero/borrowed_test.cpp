// Adapters of several models on one base in memory: every number is that of models with a base of
// their own.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "support/world.hpp"
#include "unit/zero/tiny_model.hpp"

namespace trireme::test {
namespace {

model::Adapter adapter_of(std::vector<std::string> targets, int64_t rank) {
  model::Adapter out;
  out.rank = rank;
  out.alpha = 4;
  out.targets = std::move(targets);
  return out;
}

model::ModelSpec actor_of(Tied tied) {
  return model::with_adapter(model::describe(tiny_shape(tied), model::HeadKind::language),
                             adapter_of({"all-linear"}, 2), "actor.lora");
}

// Its second block has no parameter of its own, nor has its embedding.
model::ModelSpec critic_of(Tied tied) {
  auto adapter = adapter_of({"q_proj", "down_proj"}, 3);
  adapter.layers = {0, 2};
  adapter.modules_to_save = {"score"};
  return model::with_adapter(model::describe(tiny_shape(tied), model::HeadKind::score), adapter,
                             "critic.lora");
}

// An adapter begins with zeros: other values, so that it counts.
zero::ReadRows reader_of(const model::ModelSpec& spec) {
  return [&spec](size_t p, const base::Block& block, float* out) {
    initial_rows(spec, p, block, out);
    if (!spec.parameters[p].trainable) return;
    for (int64_t i = 0; i < block.elements(); ++i)
      out[i] += 0.01f * static_cast<float>((block.row * 5 + i) % 11 - 5);
  };
}

std::vector<float> scores_of(zero::ShardedModel& model, model::AdapterUse use) {
  std::vector<float> out;
  const auto batch = tiny_work(model.spec().shape, world().rank(), 0);
  model.forward(
      batch,
      [&](const at::Tensor& hidden, const kernels::HeadWeight& weight) {
        const at::Tensor all =
            at::linear(hidden, static_cast<const at::Tensor&>(weight)).to(at::kFloat).contiguous();
        out.assign(all.const_data_ptr<float>(), all.const_data_ptr<float>() + all.numel());
      },
      use);
  return out;
}

struct Numbers {
  std::vector<float> values;
  std::vector<double> norms;
  bool operator==(const Numbers&) const = default;
};

enum class Base : uint8_t { own, shared };

// Actor, critic and a frozen judge in turn.
Numbers run(Tied tied, comm::ExchangeKind exchange, config::DType compute, Base base) {
  const auto actor_spec = actor_of(tied), critic_spec = critic_of(tied),
             judge_spec = model::frozen(critic_of(tied));
  zero::ShardedModelOptions options;
  options.exchange = exchange;
  options.compute = compute;
  options.rings = std::make_shared<comm::RingMemory>();
  zero::ShardedModel actor(actor_spec, world(), std::nullopt, at::kCPU, options);
  if (base == Base::shared) options.base = &actor;
  zero::ShardedModel critic(critic_spec, world(), std::nullopt, at::kCPU, options),
      judge(judge_spec, world(), std::nullopt, at::kCPU, options);
  critic.load(reader_of(critic_spec));  // in any order
  judge.load(reader_of(judge_spec));
  actor.load(reader_of(actor_spec));
  Numbers out;
  for (int step = 0; step < 3; ++step) {
    for (zero::ShardedModel* model : {&actor, &critic}) {
      const auto batch = tiny_work(model->spec().shape, world().rank(), step);
      model->forward_backward(batch, loss_of(model->spec(), batch));
      out.norms.push_back(model->step(adam()).grad_norm);
    }
    for (zero::ShardedModel* model : {&judge, &critic, &actor}) {
      for (const auto use : {model::AdapterUse::applied, model::AdapterUse::disabled}) {
        const auto more = scores_of(*model, use);
        out.values.insert(out.values.end(), more.begin(), more.end());
      }
    }
  }
  for (zero::ShardedModel* model : {&actor, &critic}) {
    for (const size_t p : model->spec().trainable_parameters()) {
      const int64_t count = model->own(p).elements();
      if (count > 0)
        out.values.insert(out.values.end(), model->master(p).host(),
                          model->master(p).host() + count);
    }
  }
  return out;
}

TEST(BorrowedBase, GivesTheBitsOfABaseOfItsOwn) {
  for (const Tied tied : {Tied::no, Tied::yes}) {
    for (const auto exchange : exchanges_here()) {
      for (const auto compute : {config::DType::f32, config::DType::bf16}) {
        SCOPED_TRACE(testing::Message() << "exchange " << static_cast<int>(exchange));
        EXPECT_TRUE(run(tied, exchange, compute, Base::own) ==
                    run(tied, exchange, compute, Base::shared));
      }
    }
  }
}

// Trained parameters are not lent: a model that is trained whole has nothing in common.
TEST(BorrowedBase, LendsWhatIsFrozenInBoth) {
  const auto whole = model::describe(tiny_shape(Tied::no), model::HeadKind::language);
  const auto actor = actor_of(Tied::no), critic = critic_of(Tied::no);
  for (const auto& alike : model::frozen_alike(critic, whole)) EXPECT_FALSE(alike);
  const auto lent = model::frozen_alike(critic, actor);
  for (size_t p = 0; p < critic.parameters.size(); ++p) {
    const model::Parameter& parameter = critic.parameters[p];
    const bool base =
        model::part_of(parameter.role) == model::Part::base && parameter.role != model::Role::score;
    ASSERT_EQ(lent[p].has_value(), base) << parameter.spec.name;
    if (!base) continue;
    EXPECT_EQ(actor.parameters[*lent[p]].spec.name, parameter.spec.name);
  }
}

}  // namespace
}  // namespace trireme::test
