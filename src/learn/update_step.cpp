#include "torch/torch.hpp"

#include "trireme/learn/update_step.hpp"

#include <limits>

#include "trireme/base/fault_point.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/learn/scoring.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::learn {
namespace {

// A micro-batch on the device: its packed sequences and its columns of action tokens.
struct DeviceBatch {
  DeviceBatch(const ppo::Experience& micro, at::Device where) : device(where), actions(make_action_batch(micro.samples, where)) {
    host_columns = actions.columns.to(at::kCPU);
    mask = at::ones_like(actions.columns, at::kByte);
  }
  // The action columns of a host tensor [T]; undefined stays undefined.
  at::Tensor column(const at::Tensor& all) const {
    return all.defined() ? all.index_select(0, host_columns).to(device) : at::Tensor{};
  }

  at::Device device;
  ActionBatch actions;
  at::Tensor host_columns;
  at::Tensor mask;
};

// Its action columns cut where another sequence or another version of the weights begins.
ppo::Segments written_segments(const DeviceBatch& batch, const Samples& samples) {
  const std::vector<int64_t>& sequences = batch.actions.segments.cu_seqlens();
  const auto* column = batch.host_columns.const_data_ptr<int64_t>();
  const auto version = [&](int64_t action) { return samples.version[static_cast<size_t>(column[action])]; };
  std::vector<int64_t> cuts{0};
  for (size_t i = 0; i + 1 < sequences.size(); ++i) {
    for (int64_t action = sequences[i]; action < sequences[i + 1]; ++action) {
      if (action > sequences[i] && version(action) != version(action - 1)) cuts.push_back(action);
    }
    if (sequences[i + 1] > sequences[i]) cuts.push_back(sequences[i + 1]);
  }
  return ppo::Segments(cuts, batch.device);
}

kernels::Entropy entropy_mode(const config::ActorOptions& options) {
  if (!options.entropy_coef) return kernels::Entropy::skip;
  return *options.entropy_coef == 0 ? kernels::Entropy::value : kernels::Entropy::differentiable;
}

at::Tensor actor_loss(const ppo::Experience& micro, const DeviceBatch& batch, const kernels::TokenLogProbs& head,
                      const ppo::Normalizer& normalizer, const config::Options& options, double kl_coefficient,
                      UpdateReport& report) {
  const ppo::PolicyLossOptions how = ppo::policy_loss_options(options);
  ppo::PolicyLossInput input{head.log_probs,
                             batch.column(micro.old_log_probs),
                             batch.column(micro.rollout_log_probs),
                             batch.column(micro.advantages),
                             batch.mask,
                             batch.actions.segments,
                             batch.column(micro.sample_log_probs)};
  if (how.correction.level == config::CorrectionLevel::segment) input.written = written_segments(batch, micro.samples);
  const auto policy = ppo::policy_loss(input, how, normalizer);
  at::Tensor loss = policy.loss;
  report.policy_loss += policy.loss.item<double>();
  report.statistics += policy.statistics;
  if (options.algo.kl.use_loss && micro.ref_log_probs.defined()) {
    const at::Tensor kl = ppo::kl_loss(head.log_probs, batch.column(micro.ref_log_probs), input.old_log_probs, batch.mask,
                                       batch.actions.segments, options.algo.kl, normalizer);
    report.kl_loss += kl.item<double>();
    loss = loss.add(kl, kl_coefficient);
  }
  if (const auto& coefficient = options.actor.entropy_coef) {
    const at::Tensor entropy = ppo::entropy_term(head.entropy, batch.mask, batch.actions.segments, normalizer);
    report.entropy += entropy.item<double>();
    if (*coefficient != 0) loss = loss.sub(entropy, *coefficient);
  }
  if (base::nan_wanted("loss")) loss = loss.mul(std::numeric_limits<double>::quiet_NaN());
  return loss;
}

// The language-model loss on texts (PPO-ptx; Ouyang et al. 2022, eq. 2), token-mean over the step's texts.
void pretraining_gradients(zero::ShardedModel& actor, const UpdateStep& step, double coefficient, at::Device device,
                           UpdateReport& report) {
  for (const RowBatch& part : step.pretraining) {
    const ActionBatch batch = make_action_batch(part.samples, device);
    actor.forward_backward(batch.packed, [&](const at::Tensor& hidden, const at::Tensor& head_weight) {
      const auto head =
          kernels::token_log_probs(hidden.index_select(0, batch.rows), head_weight, batch.targets, 1.0, kernels::Entropy::skip);
      const at::Tensor loss = ppo::sft_loss(head.log_probs, at::ones_like(batch.columns, at::kByte), batch.segments,
                                            config::LossAggregation::token_mean,
                                            {step.pretraining_totals.targets, step.pretraining_totals.sequences, 1});
      report.ptx_loss += loss.item<double>();
      return loss.mul(coefficient);
    });
  }
}

}  // namespace

double scoring_temperature(const config::Options& options) {
  return options.rollout.temperature > 0 ? options.rollout.temperature : 1.0;
}

zero::AdamWOptions adamw_options(const config::OptimizerOptions& options, double lr) {
  return {.lr = lr,
          .beta1 = options.adam.betas[0],
          .beta2 = options.adam.betas[1],
          .eps = options.adam.eps,
          .weight_decay = options.adam.weight_decay,
          .max_norm = options.max_norm};
}

zero::StepResult actor_step(zero::ShardedModel& actor, const UpdateStep& step, const config::Options& options, double kl_coefficient,
                double lr, at::Device device, UpdateReport& report) {
  const trace::Region region{"actor step"};
  for (const ppo::Experience& micro : step.micro_batches) {
    const DeviceBatch batch(micro, device);
    trace::count("actor_positions_trained", batch.actions.packed.ids.numel());
    actor.forward_backward(batch.actions.packed, [&](const at::Tensor& hidden, const at::Tensor& head_weight) {
      const auto head = kernels::token_log_probs(hidden.index_select(0, batch.actions.rows), head_weight, batch.actions.targets,
                                                 scoring_temperature(options), entropy_mode(options.actor));
      return actor_loss(micro, batch, head, step.normalizer, options, kl_coefficient, report);
    });
  }
  pretraining_gradients(actor, step, options.actor.ptx_coef, device, report);
  report.lr = lr;
  const auto result = actor.step(adamw_options(options.actor, lr));
  ++report.actor_steps;
  report.grad_norm += result.grad_norm;
  report.changed_values += result.changed_values;
  report.skipped_steps += !result.updated;
  return result;
}

zero::StepResult critic_step(zero::ShardedModel& critic, const UpdateStep& step, const config::Options& options, double lr, at::Device device,
                 UpdateReport& report) {
  const trace::Region region{"critic step"};
  const ScoreScale scale = critic_scale(options, critic.spec().shape);
  for (const ppo::Experience& micro : step.micro_batches) {
    const DeviceBatch batch(micro, device);
    trace::count("critic_positions_trained", batch.actions.packed.ids.numel());
    critic.forward_backward(batch.actions.packed, [&](const at::Tensor& hidden, const at::Tensor& head_weight) {
      const at::Tensor values = score_head(hidden.index_select(0, batch.actions.rows), head_weight, scale);
      at::Tensor loss =
          ppo::value_loss(values, batch.column(micro.values), batch.column(micro.returns), batch.mask, batch.actions.segments,
                          options.critic.value_clip, config::LossAggregation::token_mean, step.normalizer);
      report.value_loss += loss.item<double>();
      return loss;
    });
  }
  report.critic_lr = lr;
  const auto result = critic.step(adamw_options(options.critic, lr));
  report.critic_grad_norm += result.grad_norm;
  report.skipped_steps += !result.updated;
  return result;
}

}  // namespace trireme::learn
