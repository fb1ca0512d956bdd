#include "torch/torch.hpp"

#include "learn/distill_objective.hpp"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <utility>

#include "learn/preference_objectives.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/row_losses.hpp"
#include "trireme/ppo/distillation.hpp"
#include "trireme/ppo/losses.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::learn {
namespace {

using at::Tensor;

// A model's own cap of its logits; 0: none.
Tensor capped(const Tensor& logits, double cap) {
  return cap == 0 ? logits : at::tanh(logits / cap) * cap;
}

class DistillObjective final : public Objective {
 public:
  DistillObjective(const config::DistillOptions& options, int64_t kept_logits,
                   std::unique_ptr<zero::ShardedModel> teacher)
      : options_(options), kept_logits_(kept_logits), teacher_(std::move(teacher)) {
    EXPECT(teacher_ != nullptr);
  }

  model::HeadKind head() const override { return model::HeadKind::language; }
  std::vector<std::string> quantities() const override {
    std::vector<std::string> names{"loss", "distill_loss"};
    if (options_.nll_coef > 0) names.emplace_back("nll_loss");
    return names;
  }

  // The teacher's weights are here only within its pass: its logits are kept for loss(), or its
  // most likely tokens.
  void prepare(zero::ShardedModel& /*model*/, const ActionBatch& batch) override {
    const trace::Region region{"teacher", batch.packed.tokens()};
    teacher_->forward(batch.packed,
                      [&](const Tensor& hidden, const kernels::HeadWeight& head_weight) {
                        keep(hidden.index_select(0, batch.rows), head_weight);
                      });
  }

  Tensor loss(const ObjectiveInput& in, DeviceSums& means) override {
    const Tensor mask = at::ones_like(in.batch.columns, at::kByte);
    const ppo::Normalizer totals{in.totals.targets, in.totals.sequences, 1};
    const Tensor of_rows =
        kernels::row_losses(in.hidden.index_select(0, in.batch.rows), in.head_weight,
                            [this, cap = in.logit_cap](const Tensor& logits, int64_t first) {
                              return compare(capped(logits, cap), first);
                            });
    const Tensor divergence = ppo::aggregate(of_rows, mask, in.batch.segments,
                                             config::LossAggregation::token_mean, totals);
    Tensor loss = divergence * options_.coef;
    std::vector<Tensor> parts{loss, divergence};
    if (options_.nll_coef > 0) {
      const Tensor nll = ppo::sft_loss(
          target_log_probs(in.hidden, in.head_weight, in.batch, kept_logits_, in.logit_cap), mask,
          in.batch.segments, config::LossAggregation::token_mean, totals);
      parts.front() = loss = loss + nll * options_.nll_coef;
      parts.push_back(nll);
    }
    means.add(parts);
    return loss;
  }

 private:
  void keep(const Tensor& hidden, const kernels::HeadWeight& head) {
    const int64_t rows = hidden.size(0), vocabulary = head.weight.size(0);
    const int64_t chunk = kernels::rows_of_chunk(vocabulary, hidden.device());
    if (options_.by_teacher()) {
      const int64_t k = std::min(options_.top_k, vocabulary);
      top_ = {at::empty({rows, k}, hidden.options().dtype(at::kLong)),
              at::empty({rows, k}, hidden.options().dtype(at::kFloat))};
    } else {
      logits_ = at::empty({rows, vocabulary}, hidden.options());
    }
    for (int64_t first = 0; first < rows; first += chunk) {
      const int64_t count = std::min(chunk, rows - first);
      const Tensor logits = capped(kernels::row_logits(hidden.narrow(0, first, count), head),
                                   teacher_->spec().shape.logit_cap);
      if (!options_.by_teacher()) {
        logits_.narrow(0, first, count).copy_(logits);
        continue;
      }
      const ppo::TopTokens top = ppo::top_tokens(logits, options_);
      top_.ids.narrow(0, first, count).copy_(top.ids);
      top_.log_probs.narrow(0, first, count).copy_(top.log_probs);
    }
  }

  Tensor compare(const Tensor& logits, int64_t first) const {
    const int64_t count = logits.size(0);
    if (options_.by_teacher()) {
      return ppo::top_tokens_loss(
          logits, {top_.ids.narrow(0, first, count), top_.log_probs.narrow(0, first, count)},
          options_);
    }
    return ppo::distribution_loss(logits, logits_.narrow(0, first, count).to(at::kFloat), options_);
  }

  config::DistillOptions options_;
  int64_t kept_logits_;
  std::unique_ptr<zero::ShardedModel> teacher_;
  Tensor logits_;       // of the teacher [A, V], in the compute type
  ppo::TopTokens top_;  // or [A, K]
};

}  // namespace

std::unique_ptr<Objective> make_distill_objective(const config::DistillOptions& options,
                                                  int64_t kept_logits,
                                                  std::unique_ptr<zero::ShardedModel> teacher) {
  return std::make_unique<DistillObjective>(options, kept_logits, std::move(teacher));
}

}  // namespace trireme::learn
