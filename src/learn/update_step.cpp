#include "torch/torch.hpp"

#include "trireme/learn/update_step.hpp"

#include <ATen/TensorOperators.h>

#include <limits>

#include "trireme/base/fault_point.hpp"
#include "trireme/kernels/log_sum_exp.hpp"
#include "trireme/kernels/to_device.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/learn/device_sums.hpp"
#include "trireme/learn/scoring.hpp"
#include "trireme/ppo/distillation.hpp"
#include "trireme/ppo/entropy_filter.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::learn {
namespace {

// A micro-batch on the device: its packed sequences and its columns of action tokens.
struct DeviceBatch {
  DeviceBatch(const ppo::Experience& experience, at::Device where)
      : device(where),
        actions(make_action_batch(experience.samples, where)),
        mask(at::ones_like(actions.columns, at::kByte)) {}
  // The action columns of a host tensor [T]; undefined stays undefined.
  at::Tensor column(const at::Tensor& all) const {
    return all.defined() ? kernels::to_device(all.index_select(0, actions.host_columns), device)
                         : at::Tensor{};
  }

  at::Device device;
  ActionBatch actions;
  at::Tensor mask;
};

// Its action columns cut where another sequence or another version of the weights begins.
ppo::Segments written_segments(const DeviceBatch& batch, const Samples& samples) {
  const std::vector<int64_t>& sequences = batch.actions.segments.cu_seqlens();
  const auto* column = batch.actions.host_columns.const_data_ptr<int64_t>();
  const auto version = [&](int64_t action) {
    return samples.version[static_cast<size_t>(column[action])];
  };
  std::vector<int64_t> cuts{0};
  for (size_t i = 0; i + 1 < sequences.size(); ++i) {
    for (int64_t action = sequences[i]; action < sequences[i + 1]; ++action) {
      if (action > sequences[i] && version(action) != version(action - 1)) cuts.push_back(action);
    }
    if (sequences[i + 1] > sequences[i]) cuts.push_back(sequences[i + 1]);
  }
  return ppo::Segments(cuts, batch.device);
}

// Sums of a policy loss over the micro-batches of a step: the loss, its KL and entropy, the
// loss of sequences with a reward, the divergence from a teacher, then ppo::PolicyStatistics.
constexpr size_t first_statistic = 5;

void add_to(UpdateReport& report, const std::vector<double>& sums) {
  report.policy_loss += sums[0];
  report.kl_loss += sums[1];
  report.entropy += sums[2];
  report.positive_nll += sums[3];
  report.distill_loss += sums[4];
  for (size_t i = 0; i < ppo::PolicyStatistics::count; ++i)
    report.statistics.sums[i] += sums[first_statistic + i];
}

void help_others(const UpdateStep& step) {
  if (step.progress) step.progress->some("sequences_received_while_training");
}

kernels::Entropy entropy_mode(const config::ActorOptions& options) {
  if (!options.entropy_coef) return kernels::Entropy::skip;
  return *options.entropy_coef == 0 ? kernels::Entropy::value : kernels::Entropy::differentiable;
}

// F37: which action columns of each micro-batch have the highest entropies of the step, under the
// weights before it. Empty without actor.top_entropy_quantile. Collective over the trainers.
std::vector<at::Tensor> kept_columns(zero::ShardedModel& actor, const UpdateStep& step,
                                     const config::Options& options, at::Device device) {
  std::vector<at::Tensor> entropies;
  if (!options.actor.top_entropy_quantile) return entropies;
  const trace::Region region{"entropies"};
  for (const ppo::Experience& experience : step.micro_batches) {
    const ActionBatch batch = make_action_batch(experience.samples, device);
    entropies.emplace_back(at::empty({0}, at::TensorOptions().device(device)));
    actor.forward(
        batch.packed, [&](const at::Tensor& hidden, const kernels::HeadWeight& head_weight) {
          entropies.back() = kernels::token_log_probs(
                                 hidden.index_select(0, batch.rows), head_weight, batch.targets,
                                 scoring_temperature(options), kernels::Entropy::value)
                                 .entropy;
        });
    help_others(step);
  }
  const at::Tensor mine =
      entropies.empty() ? at::empty({0}) : at::cat(entropies).to(at::kCPU, at::kFloat).contiguous();
  const double least =
      ppo::top_entropy_threshold({mine.const_data_ptr<float>(), static_cast<size_t>(mine.numel())},
                                 *options.actor.top_entropy_quantile, step.sum);
  for (at::Tensor& of_batch : entropies) of_batch = of_batch.to(at::kDouble) >= least;
  return entropies;
}

// bool [B]: the sequences whose reward is above 0.
at::Tensor positive_sequences(const Samples& samples, at::Device device) {
  at::Tensor out = at::empty({samples.size()}, at::kBool);
  for (int64_t i = 0; i < samples.size(); ++i)
    out.mutable_data_ptr<bool>()[i] = samples.reward[static_cast<size_t>(i)] > 0;
  return kernels::to_device(out, device);
}

// Of the action columns of a micro-batch.
struct ActorRows {
  kernels::TokenLogProbs head;  // of the drawn tokens
  at::Tensor divergence;        // f32 [A], from a teacher; undefined: there is none
  at::Tensor keep;              // bool [A], columns that count (F37); undefined: all
};

ActorRows actor_rows(const at::Tensor& hidden, const kernels::HeadWeight& head_weight,
                     const ActionBatch& actions, const config::Options& options,
                     TeacherRows* teacher) {
  const at::Tensor rows = hidden.index_select(0, actions.rows);
  return {kernels::token_log_probs(rows, head_weight, actions.targets, scoring_temperature(options),
                                   entropy_mode(options.actor),
                                   {.kept_bytes = options.train.logits_memory.count}),
          teacher ? teacher->divergence(rows, head_weight) : at::Tensor{}, at::Tensor{}};
}

at::Tensor actor_loss(const ppo::Experience& experience, const DeviceBatch& batch,
                      const ActorRows& rows, const UpdateStep& step, const config::Options& options,
                      DeviceSums& sums) {
  const ppo::PolicyLossOptions how = ppo::policy_loss_options(options);
  const kernels::TokenLogProbs& head = rows.head;
  const ppo::LossColumns columns{batch.mask, batch.actions.segments, step.normalizer};
  ppo::PolicyLossInput input{head.log_probs,
                             batch.column(experience.old_log_probs),
                             batch.column(experience.rollout_log_probs),
                             batch.column(experience.advantages),
                             batch.mask,
                             batch.actions.segments,
                             batch.column(experience.sample_log_probs)};
  input.keep = rows.keep;
  const config::DistillOptions& distill = options.algo.distill;
  const at::Tensor teacher =
      distill.coef > 0 ? batch.column(experience.ref_log_probs) : at::Tensor{};
  if (teacher.defined() && distill.policy == config::DistillPolicy::policy_gradient) {
    input.advantages =
        input.advantages + ppo::clipped_teacher_advantages(head.log_probs, teacher, distill);
  }
  if (how.correction.level == config::CorrectionLevel::segment)
    input.written = written_segments(batch, experience.samples);
  const auto policy = ppo::policy_loss(input, how, step.normalizer);
  at::Tensor loss = policy.loss;
  at::Tensor kl = at::zeros({}, policy.sums.options()), entropy = kl, nll = kl, distilled = kl;
  if (options.algo.kl.use_loss && experience.ref_log_probs.defined()) {
    kl = ppo::kl_loss(head.log_probs, batch.column(experience.ref_log_probs), input.old_log_probs,
                      options.algo.kl, columns);
    loss = loss.add(kl, step.kl_coefficient);
  }
  if (teacher.defined() && (distill.policy == config::DistillPolicy::k2 ||
                            distill.policy == config::DistillPolicy::k3)) {
    kl = ppo::aggregate(ppo::teacher_divergence(head.log_probs, teacher, distill), how.aggregation,
                        columns);
    loss = loss.add(kl, distill.coef);
  }
  if (rows.divergence.defined()) {
    distilled = ppo::aggregate(
        rows.keep.defined() ? ppo::select(rows.divergence, rows.keep) : rows.divergence,
        how.aggregation, columns);
    loss = loss.add(distilled, distill.coef);
  }
  if (const auto& coefficient = options.actor.entropy_coef) {
    entropy = ppo::entropy_term(head.entropy, columns);
    if (*coefficient != 0) loss = loss.sub(entropy, *coefficient);
  }
  if (const double coefficient = options.actor.positive_nll_coef; coefficient > 0) {
    nll = ppo::positive_nll(head.log_probs, positive_sequences(experience.samples, batch.device),
                            columns);
    loss = loss.add(nll, coefficient);
  }
  sums.add({policy.loss, kl, entropy, nll, distilled, policy.sums});
  if (base::nan_wanted("loss")) loss = loss.mul(std::numeric_limits<double>::quiet_NaN());
  return loss;
}

// The language-model loss on texts (PPO-ptx; Ouyang et al. 2022, eq. 2), token-mean over the step's
// texts.
void pretraining_gradients(zero::ShardedModel& actor, const UpdateStep& step,
                           const config::Options& options, at::Device device, DeviceSums& sums) {
  int64_t left = std::ssize(step.pretraining);
  for (const RowBatch& part : step.pretraining) {
    const ActionBatch batch = make_action_batch(part.samples, device);
    actor.forward_backward(
        batch.packed,
        [&](const at::Tensor& hidden, const kernels::HeadWeight& head_weight) {
          const auto head = kernels::token_log_probs(
              hidden.index_select(0, batch.rows), head_weight, batch.targets, 1.0,
              kernels::Entropy::skip, {.kept_bytes = options.train.logits_memory.count});
          const at::Tensor loss = ppo::sft_loss(
              head.log_probs, config::LossAggregation::token_mean,
              {at::ones_like(batch.columns, at::kByte),
               batch.segments,
               {step.pretraining_totals.targets, step.pretraining_totals.sequences, 1}});
          sums.add({loss});
          return loss.mul(options.actor.ptx_coef);
        },
        zero::reduce_before(--left));
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

zero::StepResult actor_step(zero::ShardedModel& actor, const UpdateStep& step,
                            const config::Options& options, double lr, at::Device device,
                            UpdateReport& report) {
  const trace::Region region{"actor step"};
  DeviceSums sums(first_statistic + ppo::PolicyStatistics::count), of_texts(1);
  const std::vector<at::Tensor> kept = kept_columns(actor, step, options, device);
  int64_t left = std::ssize(step.micro_batches) + std::ssize(step.pretraining);
  for (size_t number = 0; number < step.micro_batches.size(); ++number) {
    const ppo::Experience& experience = step.micro_batches[number];
    const DeviceBatch batch(experience, device);
    if (step.teacher) step.teacher->prepare(batch.actions);
    trace::count("actor_positions_trained", batch.actions.packed.ids.numel());
    actor.forward_backward(
        batch.actions.packed,
        [&](const at::Tensor& hidden, const kernels::HeadWeight& head_weight) {
          ActorRows rows = actor_rows(hidden, head_weight, batch.actions, options, step.teacher);
          if (!kept.empty()) rows.keep = kept[number];
          return actor_loss(experience, batch, rows, step, options, sums);
        },
        zero::reduce_before(--left));
    help_others(step);
  }
  pretraining_gradients(actor, step, options, device, of_texts);
  report.lr = lr;
  const auto result = actor.step(adamw_options(options.actor, lr));
  add_to(report, sums.read());
  report.ptx_loss += of_texts.read().front();
  ++report.actor_steps;
  report.grad_norm += result.grad_norm;
  report.changed_values += result.changed_values;
  report.skipped_steps += !result.updated;
  return result;
}

zero::StepResult critic_step(zero::ShardedModel& critic, const UpdateStep& step,
                             const config::Options& options, double lr, at::Device device,
                             UpdateReport& report) {
  const trace::Region region{"critic step"};
  const ScoreScale scale = critic_scale(options, critic.spec().shape);
  DeviceSums sums(1);
  int64_t left = std::ssize(step.micro_batches);
  for (const ppo::Experience& experience : step.micro_batches) {
    const DeviceBatch batch(experience, device);
    trace::count("critic_positions_trained", batch.actions.packed.ids.numel());
    critic.forward_backward(
        batch.actions.packed,
        [&](const at::Tensor& hidden, const at::Tensor& head_weight) {
          const at::Tensor values =
              score_head(hidden.index_select(0, batch.actions.rows), head_weight, scale);
          at::Tensor loss = ppo::value_loss(
              values, batch.column(experience.values), batch.column(experience.returns),
              options.critic.value_clip, config::LossAggregation::token_mean,
              {batch.mask, batch.actions.segments, step.normalizer});
          sums.add({loss});
          return loss;
        },
        zero::reduce_before(--left));
    help_others(step);
  }
  report.critic_lr = lr;
  const auto result = critic.step(adamw_options(options.critic, lr));
  report.value_loss += sums.read().front();
  report.critic_grad_norm += result.grad_norm;
  report.skipped_steps += !result.updated;
  return result;
}

}  // namespace trireme::learn
