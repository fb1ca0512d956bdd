// Fifty optimizer steps with adapters beside TRL's trainers of SFT, DPO and GRPO, on the batches
// that these had (tests/gold/lora_steps).
#include "torch/torch.hpp"

#include <algorithm>

#include "parity/lora_rows.hpp"
#include "parity/registry.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/learn/update_step.hpp"
#include "trireme/ppo/losses.hpp"

namespace trireme::test {

using at::Tensor;
using model::AdapterUse;

namespace {

size_t exported_index(const model::ModelSpec& spec, const std::string& name) {
  const auto found = std::ranges::find_if(spec.parameters, [&](const model::Parameter& p) {
    return p.trainable && model::exported_adapter_name(p) == name;
  });
  if (found == spec.parameters.end()) throw std::runtime_error("nothing trains " + name);
  return static_cast<size_t>(found - spec.parameters.begin());
}

}  // namespace

void expect_trained(const GoldenCase& c, const std::string& kind, zero::ShardedModel& model,
                    ValuesOf values, double factor) {
  size_t count = 0;
  for (const auto& [field, key] : c.outputs) {
    if (!field.starts_with(kind + "/")) continue;
    const size_t p = exported_index(model.spec(), field.substr(kind.size() + 1));
    expect_matches(c, field, whole_parameter(model, p, (model.*values)(p)).mul(factor));
    ++count;
  }
  const auto trained = std::ranges::count_if(model.spec().parameters, &model::Parameter::trainable);
  EXPECT_EQ(static_cast<size_t>(trained), count) << c.name;
}

PreferenceStep preference_gradients(const GoldenCase& c, zero::ShardedModel& model,
                                    const PairRows& rows) {
  PreferenceStep out;
  config::DpoOptions options;
  options.beta = c.number("beta").value();
  const auto sums = [&](const Tensor& hidden, const kernels::HeadWeight& weight) {
    const auto head = kernels::token_log_probs(hidden.index_select(0, rows.batch.rows), weight,
                                               rows.batch.targets, 1.0, kernels::Entropy::skip);
    return ppo::sequence_log_probs(head.log_probs, at::ones_like(rows.batch.columns, at::kByte),
                                   rows.batch.segments)
        .sums;
  };
  model.forward(
      rows.batch.packed,
      [&](const Tensor& hidden, const kernels::HeadWeight& weight) {
        out.reference = sums(hidden, weight);
      },
      AdapterUse::disabled);
  model.forward_backward(rows.batch.packed, [&](const Tensor& hidden,
                                                const kernels::HeadWeight& weight) {
    const Tensor mine = sums(hidden, weight);
    out.policy = mine.detach();
    ppo::PairInput in;
    in.policy = rows.sides(mine);
    in.reference = rows.sides(out.reference);
    const Tensor value =
        ppo::pair_losses(in, options).losses.sum().div(static_cast<double>(rows.chosen.count()));
    out.loss = value.item<double>();
    return value;
  });
  out.loss = world().sum(out.loss);
  return out;
}

namespace {

// The batches that a trainer of TRL's had, one after the other.
class TrainerSteps {
 public:
  explicit TrainerSteps(const GoldenCase& c) : case_(c), model_(Adapted(c).load()) {
    options_.actor.adam = {.lr = *c.number("lr"),
                           .betas = {c.numbers("betas")[0], c.numbers("betas")[1]},
                           .eps = *c.number("eps"),
                           .weight_decay = *c.number("weight_decay")};
    options_.actor.max_norm = *c.number("clip");
    options_.actor.eps_clip = *c.number("eps_clip");
    options_.algo.kl.use_loss = true;
    options_.algo.kl.init_coef = *c.number("beta");
    options_.algo.kl.estimator = config::KlEstimator::k3;
  }

  using Step = std::pair<double, double> (TrainerSteps::*)(int64_t number);  // loss, norm
  void compare(Step step) {
    std::vector<double> losses, norms;
    for (int64_t i = 0; i < static_cast<int64_t>(*case_.number("steps")); ++i) {
      const auto [loss, norm] = (this->*step)(i);
      losses.push_back(loss);
      norms.push_back(norm);
    }
    expect_matches(case_, "losses", at::tensor(losses));
    expect_matches(case_, "grad_norms", at::tensor(norms));
    expect_trained(case_, "param", model_, &zero::ShardedModel::master);
  }

  std::pair<double, double> supervised(int64_t number) {
    GoldenRows mine = rows(number, 0, 1);
    const auto batch = learn::make_action_batch(mine.samples(), at::kCPU);
    const double count = world().sum(static_cast<double>(batch.columns.numel()));
    double loss = 0;
    model_.forward_backward(
        batch.packed, [&](const Tensor& hidden, const kernels::HeadWeight& weight) {
          const auto out = kernels::token_log_probs(hidden.index_select(0, batch.rows), weight,
                                                    batch.targets, 1.0, kernels::Entropy::skip);
          const Tensor value = ppo::sft_loss(
              out.log_probs, config::LossAggregation::token_mean,
              {at::ones_like(batch.columns, at::kByte), batch.segments, {count, std::nullopt, 1}});
          loss = value.item<double>();
          return value;
        });
    return {world().sum(loss), take_step()};
  }
  std::pair<double, double> preference(int64_t number) {
    const PairRows pairs(rows(number, 0, 2), rows(number, 1, 2));
    const double loss = preference_gradients(case_, model_, pairs).loss;
    return {loss, take_step()};
  }
  std::pair<double, double> policy(int64_t number) {
    GoldenRows mine = rows(number, 0, 1);
    learn::UpdateStep step;
    step.sum = sum_over_ranks;
    auto& experience = step.micro_batches.emplace_back(ppo::Experience::from(mine.samples()));
    const auto log_probs = [&](AdapterUse use) {
      return learn::action_log_probs(model_, mine.samples(), {world(), few_tokens}, 1, use);
    };
    experience.old_log_probs = log_probs(AdapterUse::applied);
    experience.ref_log_probs = log_probs(AdapterUse::disabled);
    const Tensor advantages = case_.input("advantages").select(0, number).unsqueeze(1);
    experience.advantages = mine.pack(
        advantages.expand({advantages.size(0), case_.input("sequences").size(2)}).contiguous());
    step.normalizer =
        ppo::step_normalizer(ppo::counted_sequences(experience.samples), options_, step.sum);
    learn::UpdateReport report;
    const double coefficient = step.kl_coefficient = options_.algo.kl.init_coef;
    learn::actor_step(model_, step, options_, options_.actor.adam.lr, at::kCPU, report);
    return {world().sum(report.policy_loss) + coefficient * world().sum(report.kl_loss),
            report.grad_norm};
  }

 private:
  // Part `part` of the batch's rows.
  GoldenRows rows(int64_t number, int64_t part, int64_t parts) const {
    const auto of = [&](const char* field) {
      const Tensor all = case_.input(field).select(0, number);
      return all.narrow(0, part * (all.size(0) / parts), all.size(0) / parts);
    };
    GoldenRows out(of("sequences"), of("attention_mask"));
    out.set_action_mask(of("action_mask"));
    return out;
  }
  double take_step() {
    return model_.step(learn::adamw_options(options_.actor, options_.actor.adam.lr)).grad_norm;
  }

  const GoldenCase& case_;
  zero::ShardedModel model_;
  config::Options options_;
};

}  // namespace

void check_trainer_steps(const GoldenCase& c) {
  TrainerSteps steps(c);
  const std::string kind = c.name.substr(c.name.rfind('.') + 1);
  if (kind == "sft50") return steps.compare(&TrainerSteps::supervised);
  if (kind == "dpo50") return steps.compare(&TrainerSteps::preference);
  if (kind == "grpo50") return steps.compare(&TrainerSteps::policy);
  FAIL() << "there is no check for cases like " << c.name;
}

}  // namespace trireme::test
