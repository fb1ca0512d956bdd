#include "trireme/plan/compute_work.hpp"

#include <algorithm>
#include <cmath>

#include "plan/judge_bytes.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/config/models_of.hpp"

namespace trireme::plan {
namespace {

// Elements of matrices that a product takes: of the blocks for each token, of the head for each
// token that has a target.
struct Matrices {
  double blocks = 0, head = 0;
};

Matrices matrices_of(const ModelLayout& model) {
  Matrices out;
  for (size_t s = 1; s + 1 < model.stages.size(); ++s) {
    for (const size_t p : model.stages[s])
      out.blocks += static_cast<double>(model.tensors[p].elements());
  }
  out.head = static_cast<double>(model.tensors[model.stages.back().back()].elements());
  return out;
}

// PassTokens of an iteration, and those that have a target.
struct PassTokens {
  double all = 0, targets = 0;
};

double forward_operations(const ModelLayout& model, const PassTokens& tokens) {
  const Matrices m = matrices_of(model);
  return 2 * (m.blocks * tokens.all + m.head * tokens.targets);
}

// Forward and backward, which differentiates by inputs from the first trainable stage on and by
// trainable weights; blocks that are computed again go forward twice, the head once.
double training_operations(const Job& job, const ModelLayout& model, const PassTokens& tokens) {
  const BackwardShares backward = backward_shares(model);
  const auto layers = static_cast<double>(model.shape.layers),
             wish = static_cast<double>(job.options.train.recompute);
  const double again = wish < 0 ? 1 : std::min(wish / layers, 1.0);
  return (1 + backward.inputs + backward.weights) * forward_operations(model, tokens) +
         again * backward.inputs * 2 * matrices_of(model).blocks * tokens.all;
}

// A teacher of distributions in a step of ppo: its pass, and the student's head once more, whose
// logits are computed twice, with gradients of rows and weight.
double teaching_operations(const Job& job, const PassTokens& tokens) {
  const ModelLayout& teacher = job.models.reference ? *job.models.reference : job.models.actor;
  return forward_operations(teacher, tokens) +
         4 * 2 * matrices_of(job.models.actor).head * tokens.targets;
}

double per_rank(double operations, size_t ranks) {
  return ranks == 0 ? 0 : operations / static_cast<double>(ranks);
}

void add_rollout(const Job& job, const MeanLengths& lengths, ComputeWork& work) {
  const auto& o = job.options;
  const auto degree = static_cast<double>(o.generate.tensor_parallel);
  const int64_t replicas = std::max<int64_t>(
      static_cast<int64_t>(job.roles.generator.size()) / o.generate.tensor_parallel, 1);
  const int64_t prompts = base::ceil_div(o.prompts_to_write(), replicas),
                sequences = prompts * o.rollout.n_samples_per_prompt;
  const Matrices m = matrices_of(job.models.actor);
  work.decode_rows = std::min(sequences, o.generate.max_batch);
  work.decode_steps =
      static_cast<double>(base::ceil_div(sequences, work.decode_rows)) * lengths.output;
  work.decode_weights = (m.blocks + m.head) / degree;
  work.products += 2 * m.blocks * static_cast<double>(prompts) * lengths.input / degree;
}

// Votes on an answer read its question once; they end together.
void add_judging(const Job& job, const MeanLengths& lengths, ComputeWork& work) {
  const std::vector<config::JudgeModel> judges = config::judge_models(job.options);
  const int64_t answers =
      base::ceil_div<int64_t>(job.options.sequences_per_iteration(),
                              static_cast<int64_t>(std::max<size_t>(job.roles.reward.size(), 1)));
  for (size_t i = 0; i < std::min(judges.size(), job.models.judges.size()); ++i) {
    const Votes votes = votes_on_answer(job.options, judges[i]);
    const Matrices m = matrices_of(job.models.judges[i].model);
    const double sequences = votes.number * static_cast<double>(answers);
    const double batches = std::ceil(sequences / static_cast<double>(judges[i].max_batch));
    work.judging_weights += batches * votes.length * (m.blocks + m.head);
    work.products += 2 * m.blocks * (lengths.input + lengths.output) *
                     static_cast<double>(answers * std::ssize(judges[i].sources));
  }
}

}  // namespace

MeanLengths mean_lengths(const config::Options& options) {
  const auto most = static_cast<double>(options.max_len());
  const auto wish = static_cast<double>(options.rollout.max_new_tokens);
  const double output = wish > 0 ? std::min(wish, most) : most / 2;
  return {std::max(most - output, 1.0), output};
}

ComputeWork compute_work(const Job& job) {
  const auto& o = job.options;
  const auto& models = job.models;
  const size_t trainers = job.roles.trainer.size();
  ComputeWork out;
  if (job.command != config::Command::ppo) {
    const int64_t texts = job.command == config::Command::sft ? 1 : 2;
    const double tokens = static_cast<double>(o.train.batch_size * texts * o.max_len());
    out.products = per_rank(training_operations(job, models.actor, {tokens, tokens}), trainers);
    if (models.reference)
      out.products += per_rank(forward_operations(*models.reference, {tokens, tokens}), trainers);
    return out;
  }
  const MeanLengths lengths = mean_lengths(o);
  const auto sequences = static_cast<double>(o.sequences_per_iteration());
  const PassTokens tokens{sequences * (lengths.input + lengths.output), sequences * lengths.output};
  const auto epochs = static_cast<double>(o.train.max_epochs);
  const auto learn = [&](const ModelLayout& model) {  // log-probs or values, then the passes
    out.products += per_rank(
        forward_operations(model, tokens) + epochs * training_operations(job, model, tokens),
        trainers);
  };
  learn(models.actor);
  if (models.critic) learn(*models.critic);
  const size_t judges = job.roles.reward.size();
  const bool in_steps = config::trainers_have_reference(o, job.command);
  if (in_steps) out.products += per_rank(epochs * teaching_operations(job, tokens), trainers);
  if (models.reference && !in_steps)
    out.products += per_rank(forward_operations(*models.reference, tokens), judges);
  for (const ModelLayout& model : models.reward_models)
    out.products += per_rank(forward_operations(model, tokens), judges);
  add_rollout(job, lengths, out);
  add_judging(job, lengths, out);
  out.at_once = o.train.async_depth > 0 && job.roles.trainer != job.roles.generator;
  return out;
}

double seconds_of(const ComputeWork& work, const ComputeSpeed& speed) {
  const double products = work.products * speed.product,
               decoding =
                   (work.decode_steps * work.decode_weights + work.judging_weights) * speed.decode;
  return work.at_once ? std::max(products, decoding) : products + decoding;
}

}  // namespace trireme::plan
