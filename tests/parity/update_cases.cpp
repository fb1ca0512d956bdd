// Whole PPO updates of actor and critic against OpenRLHF's trainers: losses and statistics of every
// micro-batch, gradient norms and parameters after all optimizer steps. They go through the
// program's Trainer, sharded over the ranks, which packs and splits the sequences as it likes.
//
// The package averages over the micro-batches of a step, this program adds them up: a micro-batch's
// loss there is `gas` times its part of the step's loss here. What the package logs per micro-batch
// is seen here by an update with that micro-batch alone and learning rate 0, from the weights that
// the step begins with.
#include "torch/torch.hpp"

#include <algorithm>

#include "parity/cases.hpp"
#include "parity/golden_rows.hpp"
#include "parity/ranks.hpp"
#include "parity/registry.hpp"
#include "trireme/learn/step_plan.hpp"
#include "trireme/learn/trainer.hpp"
#include "trireme/model/model_files.hpp"

namespace trireme::test {
namespace {

using at::Tensor;

constexpr int64_t micro_batch_tokens = 40;  // two sequences or so: not the split of the case

bool of_critic(const GoldenCase& c) { return c.name.starts_with("ppo_update.critic."); }

config::OptimizerOptions optimizer_of(const GoldenCase& c, double lr) {
  const auto betas = c.numbers("betas");
  config::OptimizerOptions options;
  options.adam = {.lr = lr,
                  .betas = {betas[0], betas[1]},
                  .eps = *c.number("adam_eps"),
                  .weight_decay = *c.number("wd")};
  options.lr_scheduler = config::LrScheduler::constant_with_warmup;
  options.warmup_ratio = 0;
  options.max_norm = *c.number("clip");
  return options;
}

void set_actor(config::Options& options, const GoldenCase& c) {
  options.rollout.temperature = *c.number("tau");
  const auto clip = c.numbers("eps");
  options.actor.eps_clip_low_high = {clip[0], clip[1]};
  options.actor.dual_clip = c.number("dual");
  options.actor.policy_loss_type = choice(c, "kind", config::PolicyLoss::ppo);
  options.actor.entropy_coef = c.number("entropy_coef");
  options.algo.kl.use_loss = *c.flag("kl_use_loss");
  options.algo.kl.init_coef = *c.number("kl_coef");
  options.algo.kl.estimator = choice(c, "kl_estimator", config::KlEstimator::k1);
  options.algo.kl.unbiased_gradient = *c.flag("unbiased");
  auto& correction = options.algo.advantage;
  correction.is_correction_enable = c.word("is") != "off";
  if (correction.is_correction_enable)
    correction.is_correction_type = choice(c, "is", config::CorrectionType::tis);
  const auto threshold = c.numbers("is_threshold");
  correction.is_correction_threshold = {threshold[0], threshold[1]};
}

config::Options options_of(const GoldenCase& c, double lr) {
  config::Options options;
  options.model.dtype = config::ComputeType::fp32;
  options.train.batch_size = 1'000'000;  // one optimizer step per update
  options.train.micro_batch_tokens = micro_batch_tokens;
  static_cast<config::OptimizerOptions&>(options.actor) = optimizer_of(c, lr);
  static_cast<config::OptimizerOptions&>(options.critic) = optimizer_of(c, lr);
  if (of_critic(c)) {
    options.critic.value_clip = c.number("value_clip");
    options.critic.freezing_steps = 1;  // the actor waits: updates are those of iteration 1
  } else {
    set_actor(options, c);
  }
  return options;
}

// Sequences as a trainer has them after a rollout.
struct Rollout {
  ppo::Experience experience;  // this rank's
  learn::SequenceList listed;  // of all ranks
  double tokens = 0;           // action tokens, of all ranks
  double sequences = 0;        // with any
};

// Rollouts of micro-batches [begin, end) of a case, each of whose rows are dealt out to the ranks.
class RolloutBuilder {
 public:
  explicit RolloutBuilder(const GoldenCase& c) : case_(c) {}

  Rollout build(int64_t begin, int64_t end) const {
    Rollout out;
    Samples samples;
    std::map<std::string, std::vector<Tensor>> columns;
    for (int64_t m = begin; m < end; ++m) add(m, out, samples, columns);
    out.experience = ppo::Experience::from(std::move(samples));
    const auto column = [&](const char* field) {
      return columns.contains(field) ? at::cat(columns.at(field)) : Tensor{};
    };
    out.experience.rollout_log_probs = column("rollout_log_probs");
    if (const Tensor& written = out.experience.rollout_log_probs;
        written.defined()) {  // as the samples of a rollout have them
      const Tensor values = written.to(at::kFloat).contiguous();
      out.experience.samples.log_probs.assign(values.const_data_ptr<float>(),
                                              values.const_data_ptr<float>() + values.numel());
    }
    out.experience.old_log_probs = column("action_log_probs");
    out.experience.ref_log_probs = column("base_action_log_probs");
    out.experience.values = column("values");
    out.experience.advantages = column("advantages");
    out.experience.returns = column("returns");
    return out;
  }

 private:
  void add(int64_t m, Rollout& out, Samples& samples,
           std::map<std::string, std::vector<Tensor>>& columns) const {
    const std::string prefix = "m" + std::to_string(m) + ".";
    GoldenRows rows(case_, prefix);
    const Tensor mask = case_.input(prefix + "action_mask"),
                 lengths = case_.input(prefix + "attention_mask").sum(1);
    rows.set_action_mask(mask);
    const auto id_of = [&](int64_t row) { return static_cast<uint64_t>(1000 * m + row); };
    for (size_t i = 0; i < rows.rows().size(); ++i) {
      rows.samples().id[i] = id_of(rows.rows()[i]);
      samples.append(rows.samples(), static_cast<int64_t>(i));
    }
    for (const char* field : {"rollout_log_probs", "action_log_probs", "base_action_log_probs",
                              "values", "advantages", "returns"}) {
      if (case_.has_input(prefix + field))
        columns[field].push_back(rows.pack(case_.input(prefix + field)));
    }
    for (int64_t row = 0; row < rows.count(); ++row) {
      out.listed.push_back({id_of(row), lengths[row].item<int64_t>()});
    }
    out.tokens += mask.sum().item<double>();
    out.sequences += mask.sum(1).gt(0).sum().item<double>();
  }

  const GoldenCase& case_;
};

// A trainer whose actor or critic is the case's model.
class CaseTrainer {
 public:
  CaseTrainer(const GoldenCase& c, double lr)
      : options_(options_of(c, lr)),
        roles_(comm::make_roles(options_, world())),
        shape_(model::open_model(model_path(c)).shape),
        actor_(model::describe(shape_, model::HeadKind::language)),
        critic_(model::describe(shape_, model::HeadKind::score)),
        trainer_(options_, roles_, {actor_, of_critic(c) ? &critic_ : nullptr}, {at::kCPU},
                 machine::MemoryCheck{}, 1),
        model_(of_critic(c) ? *trainer_.critic() : trainer_.actor()) {
    model_.load(golden_reader(c, model_.spec()));
  }

  zero::ShardedModel& model() { return model_; }

  // Goes on from where another one stands, as a resumed run does.
  void take_over(CaseTrainer& other) {
    for (size_t p = 0; p < model_.spec().parameters.size(); ++p) {
      const int64_t count = model_.own(p).elements();
      copy_values(other.model_.master(p), model_.master(p), count);
      copy_values(other.model_.moment1(p), model_.moment1(p), count);
      copy_values(other.model_.moment2(p), model_.moment2(p), count);
    }
    model_.set_steps(other.model_.steps());
    model_.refresh();
  }

  learn::UpdateReport update(Rollout& rollout) {
    learn::UpdateReport report;
    const learn::EpochPlan plan = learn::plan_epoch(options_, rollout.listed, world().size(), 2,
                                                    0);  // the iteration behind number 1
    const ppo::Experience mine =
        learn::hand_over(rollout.experience, rollout.listed, plan.owner, world());
    trainer_.take_steps(mine, rollout.listed,
                        {.iteration = 1, .kl_coefficient = options_.algo.kl.init_coef}, report);
    trainer_.average(report);
    return report;
  }

  // The mean of the values at the action tokens, as the trainer evaluates them. Collective.
  double mean_value(const Rollout& rollout) {
    ppo::Experience experience = rollout.experience;
    trainer_.score(experience);
    return world().sum(
               experience.values.to(at::kDouble).mul(experience.mask).sum().item<double>()) /
           rollout.tokens;
  }

 private:
  config::Options options_;
  comm::Roles roles_;
  config::ModelShape shape_;
  model::ModelSpec actor_, critic_;
  learn::Trainer trainer_;
  zero::ShardedModel& model_;
};

// What the package logs of each micro-batch, in the order of the case.
struct Metrics {
  std::map<std::string, std::vector<double>> values;

  void add(const GoldenCase& c, const learn::UpdateReport& report, const Rollout& micro,
           const Rollout& step, double gas) {
    const double by_tokens = gas * micro.tokens / step.tokens,
                 by_sequences = gas * micro.sequences / step.sequences;
    if (of_critic(c)) {
      values["critic_loss"].push_back(report.value_loss * by_tokens);
      return;
    }
    values["policy_loss"].push_back(report.policy_loss *
                                    (c.word("kind") == "gspo" ? by_sequences : by_tokens));
    values["ppo_kl"].push_back(report.statistics.ppo_kl());
    values["ppo_clip_ratio"].push_back(report.statistics.clip_ratio());
    if (c.has_output("entropy_loss")) values["entropy_loss"].push_back(report.entropy * by_tokens);
    if (c.has_output("kl")) values["kl"].push_back(report.kl_loss * by_tokens);
    if (c.has_output("vllm_kl")) values["vllm_kl"].push_back(report.statistics.rollout_kl());
    if (c.has_output("is_filter_ratio"))
      values["is_filter_ratio"].push_back(report.statistics.filter_ratio());
  }
};

}  // namespace

void check_ppo_update(const GoldenCase& c) {
  const auto lrs = c.numbers("lrs");
  const auto gas = static_cast<int64_t>(*c.number("gas"));
  ASSERT_EQ(static_cast<int64_t>(lrs.size()) * gas, static_cast<int64_t>(*c.number("n_mb")))
      << c.name;
  const RolloutBuilder builder(c);
  Metrics metrics;
  std::unique_ptr<CaseTrainer> trainer;
  for (size_t step = 0; step < lrs.size(); ++step) {
    auto next = std::make_unique<CaseTrainer>(c, lrs[step]);
    if (trainer) next->take_over(*trainer);
    trainer = std::move(next);
    const int64_t first = static_cast<int64_t>(step) * gas;
    Rollout whole = builder.build(first, first + gas);
    for (int64_t m = first; m < first + gas; ++m) {
      CaseTrainer still(c, 0);
      still.take_over(*trainer);
      Rollout micro = builder.build(m, m + 1);
      if (of_critic(c)) metrics.values["mean_value"].push_back(still.mean_value(micro));
      metrics.add(c, still.update(micro), micro, whole, static_cast<double>(gas));
    }
    const auto report = trainer->update(whole);
    EXPECT_EQ(report.steps, 1);
    metrics.values["grad_norms"].push_back(of_critic(c) ? report.critic_grad_norm
                                                        : report.grad_norm);
  }
  for (const auto& [field, values] : metrics.values) expect_matches(c, field, at::tensor(values));
  for (const auto& name : c.words("parameters")) {
    const size_t p = parameter_index(trainer->model().spec(), name);
    expect_matches(c, "param/" + name,
                   whole_parameter(trainer->model(), p, trainer->model().master(p)));
  }
}

}  // namespace trireme::test
