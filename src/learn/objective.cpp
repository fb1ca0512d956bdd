#include "torch/torch.hpp"

#include "trireme/learn/objective.hpp"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "learn/distill_objective.hpp"
#include "learn/preference_objectives.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/to_device.hpp"
#include "trireme/ppo/losses.hpp"
#include "trireme/ppo/preference.hpp"

namespace trireme::learn {
namespace {

using at::Tensor;

class SftObjective final : public Objective {
 public:
  explicit SftObjective(int64_t kept_logits) : kept_logits_(kept_logits) {}
  model::HeadKind head() const override { return model::HeadKind::language; }
  std::vector<std::string> quantities() const override { return {"loss"}; }

  Tensor loss(const ObjectiveInput& in, DeviceSums& means) override {
    const Tensor log_probs = target_log_probs(in.hidden, in.head_weight, in.batch, kept_logits_);
    Tensor loss = ppo::sft_loss(log_probs, config::LossAggregation::token_mean,
                                {at::ones_like(in.batch.columns, at::kByte),
                                 in.batch.segments,
                                 {in.totals.targets, in.totals.sequences, 1}});
    means.add({loss});
    return loss;
  }

 private:
  int64_t kept_logits_;
};

// F28 on scores read where the reward model is read (F5): at the last token.
class RewardModelObjective final : public Objective {
 public:
  explicit RewardModelObjective(config::PreferenceLoss kind) : kind_(kind) {}
  model::HeadKind head() const override { return model::HeadKind::score; }
  std::vector<std::string> quantities() const override {
    return {"loss", "accuracy", "chosen_reward", "rejected_reward", "reward_square"};
  }

  Tensor loss(const ObjectiveInput& in, DeviceSums& means) override {
    const Tensor rewards =
        score_head(in.hidden.index_select(0, last_tokens(in.batch.packed)), in.head_weight);
    const Tensor chosen = side(rewards, 0);
    const Tensor rejected = side(rewards, 1);
    const Tensor margins = kernels::to_device(
        at::tensor(at::ArrayRef<float>(in.rows.margins.data(), in.rows.margins.size()), at::kFloat),
        rewards.device());
    const double pairs = in.totals.rows;
    Tensor loss = ppo::reward_model_loss(chosen, rejected, margins, kind_, pairs);
    means.add({loss, sum_of(chosen > rejected) / pairs, sum_of(chosen) / pairs,
               sum_of(rejected) / pairs, sum_of(rewards.square()) / (2 * pairs)});
    return loss;
  }

  std::vector<std::pair<std::string, double>> metrics(std::span<const double> means,
                                                      const BatchTotals& totals) const override {
    auto out = Objective::metrics(means.first(4), totals);
    const RewardMoments moments = *reward_moments(means, totals);
    out.emplace_back("reward_mean", moments.mean);
    out.emplace_back("reward_std", moments.deviation);
    out.emplace_back("margin", means[2] - means[3]);
    return out;
  }

  std::optional<RewardMoments> reward_moments(std::span<const double> means,
                                              const BatchTotals& totals) const override {
    const double mean = (means[2] + means[3]) / 2;
    const double answers = 2 * totals.rows;
    const double variance =
        std::max(0.0, means[4] - mean * mean) * answers / std::max(1.0, answers - 1);
    return RewardMoments{mean, std::sqrt(variance)};
  }

 private:
  config::PreferenceLoss kind_;
};

}  // namespace

std::vector<std::pair<std::string, double>> Objective::metrics(std::span<const double> means,
                                                               const BatchTotals&) const {
  const auto names = quantities();
  std::vector<std::pair<std::string, double>> out;
  for (size_t i = 0; i < means.size(); ++i) out.emplace_back(names[i], means[i]);
  return out;
}

std::unique_ptr<Objective> make_objective(const config::Options& options, config::Command command,
                                          std::unique_ptr<zero::ShardedModel> reference) {
  switch (command) {
    case config::Command::sft:
      if (reference) {
        return make_distill_objective(options.algo.distill, options.train.logits_memory.count,
                                      std::move(reference));
      }
      return std::make_unique<SftObjective>(options.train.logits_memory.count);
    case config::Command::rm: return std::make_unique<RewardModelObjective>(options.algo.rm.loss);
    case config::Command::dpo:
      return make_preference_objective(options.algo.dpo, options.train.logits_memory.count,
                                       std::move(reference));
    case config::Command::ppo: break;
  }
  throw InternalError("ppo is no supervised training");
}

}  // namespace trireme::learn
