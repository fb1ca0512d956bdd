// Passes of learning by the paths of a GPU, on the fake one: how often the host waits for the
// device does not depend on the number of micro-batches, and the numbers of a step are the host's.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "fakegpu/device_lane.hpp"
#include "fakegpu/host_as_device.hpp"
#include "support/samples.hpp"
#include "trireme/learn/objective.hpp"
#include "trireme/learn/update_step.hpp"
#include "unit/zero/tiny_model.hpp"

namespace trireme::test {
namespace {

// Texts whose ids the tiny model knows, with artificial columns of a rollout.
ppo::Experience made_up(const config::ModelShape& shape, const std::vector<uint64_t>& ids) {
  Samples samples = samples_of(ids);
  for (auto& id : samples.ids) id = static_cast<int32_t>(id % shape.vocab);
  for (int64_t i = 0; i < samples.size(); ++i) {
    for (int64_t t = 0; t < samples.length(i); ++t)
      samples.action_mask[static_cast<size_t>(samples.begin(i) + t)] = t > 0;
  }
  ppo::Experience out = ppo::Experience::from(std::move(samples));
  const auto column = [&](double frequency, double shift) {
    return at::arange(out.tokens(), at::TensorOptions().dtype(at::kFloat))
        .mul(frequency)
        .sin()
        .sub(shift);
  };
  out.rollout_log_probs = column(0.3, 4);
  out.old_log_probs = column(0.31, 4);
  out.ref_log_probs = column(0.4, 4);
  out.values = column(0.5, 0);
  out.returns = column(0.7, 0);
  out.advantages = column(0.9, 0);
  return out;
}

config::Options everything_on() {
  config::Options options;
  options.algo.kl.use_loss = true;
  options.actor.entropy_coef = 0.01;
  options.algo.advantage.is_correction_enable = true;
  options.algo.distill.coef = 0.1;
  options.algo.distill.policy = config::DistillPolicy::distribution;
  options.algo.distill.beta = 0.5;
  options.algo.distill.top_k = 5;
  return options;
}

struct Learned {
  learn::UpdateReport report;
  at::Tensor log_probs, values;  // f32 [T]
  std::vector<float> scores;
  int64_t update_waits = 0, scoring_waits = 0;
};

Learned learn_from(int micro_batches) {
  const auto actor_spec = model::describe(tiny_shape(Tied::no), model::HeadKind::language);
  const auto critic_spec = model::describe(tiny_shape(Tied::no), model::HeadKind::score);
  zero::ShardedModelOptions model_options;
  model_options.compute = config::DType::f32;
  zero::ShardedModel actor(actor_spec, world(), std::nullopt, at::kCPU, model_options),
      critic(critic_spec, world(), std::nullopt, at::kCPU, model_options),
      teacher(model::frozen(actor_spec), world(), std::nullopt, at::kCPU, model_options);
  actor.load(initial_reader(actor_spec));
  teacher.load(
      [read = initial_reader(actor_spec)](size_t p, const base::Block& block, float* values) {
        read(p, block, values);
        for (int64_t i = 0; i < block.elements(); i += 2) values[i] *= 1.5f;
      });
  critic.load(initial_reader(critic_spec));

  const ppo::Experience all = made_up(actor_spec.shape, {3, 4, 5, 6, 7, 8});
  learn::UpdateStep step;
  for (int64_t i = 0; i < micro_batches; ++i) {
    std::vector<int64_t> rows;
    for (int64_t row = i; row < all.sequences(); row += micro_batches) rows.push_back(row);
    step.micro_batches.push_back(all.select(rows));
  }
  const double tokens = static_cast<double>(all.mask.sum().item<int64_t>()) * world().size();
  step.normalizer = {tokens, static_cast<double>(all.sequences() * world().size()), 1.0};
  const config::Options options = everything_on();
  learn::TeacherRows teacher_rows(options.algo.distill, teacher);
  step.teacher = &teacher_rows;
  step.kl_coefficient = 0.1;

  Learned out;
  const int64_t longest = all.samples.length(5);
  int64_t before = HostAsDevice::hidden_waits();
  const learn::ScoringPass by{world(), micro_batches == 1 ? all.tokens() : longest};
  out.log_probs = learn::action_log_probs(actor, all.samples, by, 1.0);
  out.values = learn::action_values(critic, all.samples, by, {});
  out.scores =
      learn::sequence_scores(critic, {{1, 2, 3}, {4, 5}, {6, 7, 8, 9}},
                             {world(), micro_batches == 1 ? 64 : 4}, {.mean = 0.5, .deviation = 2})
          .value();
  out.scoring_waits = HostAsDevice::hidden_waits() - before;
  before = HostAsDevice::hidden_waits();
  learn::actor_step(actor, step, options, 1e-3, at::kCPU, out.report);
  learn::critic_step(critic, step, options, 1e-3, at::kCPU, out.report);
  out.update_waits = HostAsDevice::hidden_waits() - before;
  return out;
}

Learned on_device(int micro_batches) {
  own_device();
  fakegpu::set_delays(
      {.seed = static_cast<unsigned>(7 + world().rank()), .legacy_us = 20, .others_us = 20});
  const HostAsDevice device;
  return learn_from(micro_batches);
}

std::vector<double> numbers(const Learned& learned) {
  const learn::UpdateReport& r = learned.report;
  std::vector<double> out{r.policy_loss, r.kl_loss,   r.entropy,         r.distill_loss,
                          r.value_loss,  r.grad_norm, r.critic_grad_norm};
  out.insert(out.end(), r.statistics.sums.begin(), r.statistics.sums.end());
  for (const at::Tensor& column : {learned.log_probs, learned.values}) {
    out.insert(out.end(), column.const_data_ptr<float>(),
               column.const_data_ptr<float>() + column.numel());
  }
  out.insert(out.end(), learned.scores.begin(), learned.scores.end());
  return out;
}

TEST(DeviceLearning, TheHostWaitsByTheStepNotByTheMicroBatch) {
  const Learned one = on_device(1), three = on_device(3);
  EXPECT_EQ(one.scoring_waits, 0) << "but for the copy of all values";
  EXPECT_EQ(three.scoring_waits, 0);
  EXPECT_EQ(three.update_waits, one.update_waits);
  EXPECT_EQ(one.update_waits, 4) << "norm and changed values of two optimizer steps";
}

TEST(DeviceLearning, ItsNumbersAreTheHosts) {
  for (const int micro_batches : {1, 3}) {
    const auto want = numbers(learn_from(micro_batches)), got = numbers(on_device(micro_batches));
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(got[i], want[i], 1e-5 * (1 + std::abs(want[i]))) << "number " << i;
    EXPECT_NE(got[0], 0);
    EXPECT_GT(got[2], 0) << "entropy";
    EXPECT_GT(got[3], 0) << "divergence";
  }
}

}  // namespace
}  // namespace trireme::test
