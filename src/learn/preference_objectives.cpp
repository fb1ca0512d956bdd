#include "torch/torch.hpp"

#include "learn/preference_objectives.hpp"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <array>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/kernels/log_sum_exp.hpp"
#include "trireme/kernels/to_device.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/ppo/preference.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::learn {
namespace {

using at::Tensor;

ppo::SequenceLogProbs log_probs_of(const Tensor& hidden, const kernels::HeadWeight& head_weight,
                                   const ActionBatch& batch, int64_t kept) {
  return ppo::sequence_log_probs(target_log_probs(hidden, head_weight, batch, kept),
                                 at::ones_like(batch.columns, at::kByte), batch.segments);
}

// Sums of log-probs by a model that is not differentiated; undefined for an empty batch.
// Collective.
Tensor sums_by(zero::ShardedModel& model, const ActionBatch& batch,
               model::AdapterUse adapter = model::AdapterUse::applied) {
  Tensor sums;
  model.forward(
      batch.packed,
      [&](const Tensor& hidden, const kernels::HeadWeight& head_weight) {
        sums = log_probs_of(hidden, head_weight, batch, 0).sums;
      },
      adapter);
  return sums;
}

// The frozen policy that a loss compares with: a model of its own, or the trained one without its
// adapter.
class Reference {
 public:
  explicit Reference(std::unique_ptr<zero::ShardedModel> own) : own_(std::move(own)) {}
  Tensor sums(zero::ShardedModel& trained, const ActionBatch& batch) const {
    if (own_) return sums_by(*own_, batch);
    EXPECT(trained.spec().adapter.has_value());
    return sums_by(trained, batch, model::AdapterUse::disabled);
  }

 private:
  std::unique_ptr<zero::ShardedModel> own_;
};

template <class T>
Tensor on_device(const std::vector<T>& values, at::ScalarType type, at::Device device) {
  return kernels::to_device(at::tensor(at::ArrayRef<T>(values.data(), values.size()), type),
                            device);
}

std::vector<float> on_host(const Tensor& values) {
  const Tensor host = values.to(at::kCPU, at::kFloat).contiguous();
  return {host.const_data_ptr<float>(), host.const_data_ptr<float>() + host.numel()};
}

template <size_t n>
void sum_over(const comm::CommView& ranks, std::array<double, n>& values) {
  ranks.all_reduce(values.data(), static_cast<int64_t>(n), comm::DType::f64, comm::Op::sum);
}

// A rank's numbers, one for each of its pairs, and the order statistics of all ranks' numbers.
// Memory: a number per pair of the step.
std::vector<float> matched_over(const comm::CommView& ranks, const std::vector<float>& values,
                                const std::vector<float>& others) {
  const auto counts = ranks.all_gather<int64_t>(std::vector<int64_t>{std::ssize(values)});
  int64_t first = 0;
  for (int rank = 0; rank < ranks.rank(); ++rank) first += counts[static_cast<size_t>(rank)];
  const auto all = ppo::matched(ranks.all_gather<float>(values), ranks.all_gather<float>(others));
  return {all.begin() + first, all.begin() + first + std::ssize(values)};
}

class PairObjective final : public Objective {
 public:
  PairObjective(const config::DpoOptions& options, int64_t kept_logits,
                std::unique_ptr<zero::ShardedModel> reference)
      : options_(options),
        facts_(config::traits(options.form())),
        kept_logits_(kept_logits),
        reference_(std::move(reference)) {}

  model::HeadKind head() const override { return model::HeadKind::language; }
  std::vector<std::string> quantities() const override {
    std::vector<std::string> names{"loss", "accuracy", "chosen_reward", "rejected_reward",
                                   "margin"};
    if (nll_weight() > 0) names.emplace_back("nll_loss");
    return names;
  }

  void begin_step(const ObjectiveStep& step) override {
    count_chosen_tokens(step);
    if (facts_.sorts) match(step);
  }

  void prepare(zero::ShardedModel& model, const ActionBatch& batch) override {
    if (!facts_.reference) return;
    const trace::Region region{"reference log-probs", batch.packed.tokens()};
    reference_sums_ = reference_.sums(model, batch);
  }

  Tensor loss(const ObjectiveInput& in, DeviceSums& means) override {
    const double pairs = in.totals.rows;
    const auto policy = log_probs_of(in.hidden, in.head_weight, in.batch, kept_logits_);
    ppo::PairInput input;
    const bool by_mean = !facts_.reference && options_.form() != config::DpoLoss::cpo;
    const Tensor& of_policy = by_mean ? policy.means : policy.sums;
    input.policy = {side(of_policy, 0), side(of_policy, 1)};
    if (facts_.reference) input.reference = {side(reference_sums_, 0), side(reference_sums_, 1)};
    const Tensor lengths = in.batch.segments.sums(at::ones_like(in.batch.columns, at::kFloat));
    input.lengths = {side(lengths, 0), side(lengths, 1)};
    if (facts_.sorts) input.matched = matched_[in.number];
    const auto got = ppo::pair_losses(input, options_);
    Tensor loss = got.losses.sum() * (1 / pairs);
    const auto& [chosen, rejected] = got.rewards;
    std::vector<Tensor> parts{loss, sum_of(chosen > rejected) / pairs, sum_of(chosen) / pairs,
                              sum_of(rejected) / pairs, sum_of(chosen - rejected) / pairs};
    if (nll_weight() > 0) {
      const Tensor nll = nll_of(in, policy);
      parts.push_back(nll);
      parts.front() = loss = loss + nll * nll_weight();
    }
    means.add(parts);
    return loss;
  }

 private:
  double nll_weight() const {
    return options_.form() == config::DpoLoss::orpo ? 1 : options_.nll_loss_coef;
  }
  bool whole_sequences() const {
    return options_.form() == config::DpoLoss::orpo &&
           options_.orpo_nll == config::OrpoNll::sequence;
  }

  // Tokens of the chosen answers of all ranks, or of their prompts, too.
  void count_chosen_tokens(const ObjectiveStep& step) {
    std::array<double, 1> tokens{};
    for (const RowBatch& rows : step.batches) {
      for (int64_t i = 0; i < rows.samples.size(); i += 2) {
        for (int64_t t = rows.samples.begin(i) + 1;
             t < rows.samples.begin(i) + rows.samples.length(i); ++t)
          tokens[0] += whole_sequences() || rows.samples.action_mask[static_cast<size_t>(t)] != 0;
      }
    }
    sum_over(step.ranks, tokens);
    chosen_tokens_ = std::max(tokens[0], 1.0);
  }

  // With a reference the mean over pairs of token means (OpenRLHF), without one the mean over all
  // tokens of the step (TRL).
  Tensor nll_of(const ObjectiveInput& in, const ppo::SequenceLogProbs& policy) const {
    if (facts_.reference) return side(policy.means, 0).sum() * (-1 / in.totals.rows);
    if (!whole_sequences()) return side(policy.sums, 0).sum() * (-1 / chosen_tokens_);
    Samples chosen = in.rows.samples;
    for (int64_t i = 0; i < chosen.size(); ++i) {
      std::fill_n(chosen.action_mask.begin() + chosen.begin(i), chosen.length(i),
                  i % 2 == 0 ? uint8_t{1} : uint8_t{0});
      if (i % 2 == 0) chosen.action_mask[static_cast<size_t>(chosen.begin(i))] = 0;
    }
    const ActionBatch all = make_action_batch(chosen, in.hidden.device());
    return target_log_probs(in.hidden, in.head_weight, all, kept_logits_).sum() *
           (-1 / chosen_tokens_);
  }

  // The optimal transport between the policy's and the reference's numbers (aot), or between chosen
  // and rejected ones, of all pairs of the step.
  void match(const ObjectiveStep& step) {
    const trace::Region region{"order statistics"};
    std::vector<float> chosen, rejected;  // aot: of the policy, of the reference
    std::vector<size_t> pairs;
    const bool paired = options_.form() == config::DpoLoss::aot;
    for (const RowBatch& rows : step.batches) {
      const ActionBatch batch = make_action_batch(rows.samples, step.device);
      const Tensor policy = sums_by(step.model, batch), frozen = reference_.sums(step.model, batch);
      pairs.push_back(rows.margins.size());
      if (rows.margins.empty()) continue;
      const auto distance = [](const Tensor& sums) { return side(sums, 0) - side(sums, 1); };
      const auto ratio = [&](int64_t which) { return side(policy, which) - side(frozen, which); };
      const auto a = on_host(paired ? distance(policy) : ratio(0));
      const auto b = on_host(paired ? distance(frozen) : ratio(1));
      chosen.insert(chosen.end(), a.begin(), a.end());
      rejected.insert(rejected.end(), b.begin(), b.end());
    }
    const auto of_chosen = matched_over(step.ranks, chosen, rejected);
    const auto of_rejected = paired ? of_chosen : matched_over(step.ranks, rejected, chosen);
    matched_.clear();
    int64_t first = 0;
    for (const size_t count : pairs) {
      const auto part = [&](const std::vector<float>& values) {
        return on_device(std::vector<float>(values.begin() + first,
                                            values.begin() + first + static_cast<int64_t>(count)),
                         at::kFloat, step.device);
      };
      matched_.push_back({part(of_chosen), part(of_rejected)});
      first += static_cast<int64_t>(count);
    }
  }

  config::DpoOptions options_;
  const config::DpoLossTraits& facts_;
  int64_t kept_logits_;
  Reference reference_;
  Tensor reference_sums_;            // [2 P] of the micro-batch that prepare() saw
  std::vector<ppo::Pairs> matched_;  // of each micro-batch of the step
  double chosen_tokens_ = 1;         // of the step
};

class LabelledObjective final : public Objective {
 public:
  LabelledObjective(const config::DpoOptions& options, int64_t kept_logits,
                    std::unique_ptr<zero::ShardedModel> reference)
      : options_(options), kept_logits_(kept_logits), reference_(std::move(reference)) {}

  model::HeadKind head() const override { return model::HeadKind::language; }
  std::vector<std::string> quantities() const override {
    return {"loss", "chosen_reward", "rejected_reward"};
  }

  void begin_step(const ObjectiveStep& step) override {
    std::array<double, 4> sums{};  // KL, rows, wanted, unwanted
    for (const RowBatch& rows : step.batches) {
      for (const uint8_t wanted : rows.wanted) sums[wanted ? 2 : 3] += 1;
      sums[1] += static_cast<double>(rows.wanted.size());
      if (options_.form() != config::DpoLoss::kto) continue;
      const trace::Region region{"mismatched log-probs"};
      const ActionBatch batch = make_action_batch(rows.mismatched, step.device);
      const Tensor policy = sums_by(step.model, batch), frozen = reference_.sums(step.model, batch);
      if (!rows.wanted.empty()) sums[0] += sum_of(policy - frozen).item<double>();
    }
    sum_over(step.ranks, sums);
    kl_ = std::max(0.0, sums[0] / std::max(sums[1], 1.0));
    wanted_ = std::max(sums[2], 1.0);
    unwanted_ = std::max(sums[3], 1.0);
  }

  void prepare(zero::ShardedModel& model, const ActionBatch& batch) override {
    const trace::Region region{"reference log-probs", batch.packed.tokens()};
    reference_sums_ = reference_.sums(model, batch);
  }

  Tensor loss(const ObjectiveInput& in, DeviceSums& means) override {
    const auto policy = log_probs_of(in.hidden, in.head_weight, in.batch, kept_logits_);
    const Tensor wanted = on_device(in.rows.wanted, at::kByte, policy.sums.device()).to(at::kBool);
    const auto got = ppo::labelled_losses({policy.sums, reference_sums_, wanted}, kl_, options_);
    Tensor loss = got.losses.sum() * (1 / in.totals.rows);
    means.add({loss, sum_of(ppo::select(got.rewards, wanted)) / wanted_,
               sum_of(ppo::select(got.rewards, at::logical_not(wanted))) / unwanted_});
    return loss;
  }

  std::vector<std::pair<std::string, double>> metrics(std::span<const double> means,
                                                      const BatchTotals& totals) const override {
    auto out = Objective::metrics(means, totals);
    out.emplace_back("margin", means[1] - means[2]);
    if (options_.form() == config::DpoLoss::kto) out.emplace_back("kl", kl_);
    return out;
  }

 private:
  config::DpoOptions options_;
  int64_t kept_logits_;
  Reference reference_;
  Tensor reference_sums_;  // [B] of the micro-batch that prepare() saw
  double kl_ = 0;          // of the step, at least 0
  double wanted_ = 1, unwanted_ = 1;
};

}  // namespace

Tensor target_log_probs(const Tensor& hidden, const kernels::HeadWeight& head_weight,
                        const ActionBatch& batch, int64_t kept) {
  return kernels::token_log_probs(hidden.index_select(0, batch.rows), head_weight, batch.targets,
                                  1.0, kernels::Entropy::skip, {.kept_bytes = kept})
      .log_probs;
}

std::unique_ptr<Objective> make_preference_objective(
    const config::DpoOptions& options, int64_t kept_logits,
    std::unique_ptr<zero::ShardedModel> reference) {
  if (config::traits(options.form()).rows == config::DpoRows::labelled)
    return std::make_unique<LabelledObjective>(options, kept_logits, std::move(reference));
  return std::make_unique<PairObjective>(options, kept_logits, std::move(reference));
}

}  // namespace trireme::learn
