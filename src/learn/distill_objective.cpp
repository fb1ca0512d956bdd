#include "torch/torch.hpp"

#include "learn/distill_objective.hpp"

#include <ATen/TensorOperators.h>

#include <utility>

#include "learn/preference_objectives.hpp"
#include "trireme/learn/teacher_rows.hpp"
#include "trireme/ppo/losses.hpp"

namespace trireme::learn {
namespace {

using at::Tensor;

class DistillObjective final : public Objective {
 public:
  DistillObjective(const config::DistillOptions& options, int64_t kept_logits,
                   std::unique_ptr<zero::ShardedModel> teacher)
      : options_(options),
        kept_logits_(kept_logits),
        teacher_(std::move(teacher)),
        rows_(options, *teacher_) {}

  model::HeadKind head() const override { return model::HeadKind::language; }
  std::vector<std::string> quantities() const override {
    std::vector<std::string> names{"loss", "distill_loss"};
    if (options_.nll_coef > 0) names.emplace_back("nll_loss");
    return names;
  }

  void prepare(zero::ShardedModel& /*model*/, const ActionBatch& batch) override {
    rows_.prepare(batch);
  }

  Tensor loss(const ObjectiveInput& in, DeviceSums& means) override {
    const ppo::LossColumns columns{at::ones_like(in.batch.columns, at::kByte),
                                   in.batch.segments,
                                   {in.totals.targets, in.totals.sequences, 1}};
    const Tensor of_rows =
        rows_.divergence(in.hidden.index_select(0, in.batch.rows), in.head_weight);
    const Tensor divergence = ppo::aggregate(of_rows, config::LossAggregation::token_mean, columns);
    Tensor loss = divergence * options_.coef;
    std::vector<Tensor> parts{loss, divergence};
    if (options_.nll_coef > 0) {
      const Tensor nll =
          ppo::sft_loss(target_log_probs(in.hidden, in.head_weight, in.batch, kept_logits_),
                        config::LossAggregation::token_mean, columns);
      parts.front() = loss = loss + nll * options_.nll_coef;
      parts.push_back(nll);
    }
    means.add(parts);
    return loss;
  }

 private:
  config::DistillOptions options_;
  int64_t kept_logits_;
  std::unique_ptr<zero::ShardedModel> teacher_;
  TeacherRows rows_;
};

}  // namespace

std::unique_ptr<Objective> make_distill_objective(const config::DistillOptions& options,
                                                  int64_t kept_logits,
                                                  std::unique_ptr<zero::ShardedModel> teacher) {
  return std::make_unique<DistillObjective>(options, kept_logits, std::move(teacher));
}

}  // namespace trireme::learn
