// Each warning alone: one change to a deck without warnings brings it, and nothing else.
#include "trireme/config/deck.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Options quiet() {
  Options o;
  o.model.path = "model";
  o.reward.source.resize(1);
  return o;
}

struct Case {
  void (*change)(Options&);
  const char* warning;
};

void expect_alone(const std::vector<Case>& cases, Command command, const Options& base) {
  EXPECT_THAT(warnings(base, command), IsEmpty());
  for (const Case& one : cases) {
    Options options = base;
    one.change(options);
    EXPECT_THAT(warnings(options, command), ElementsAre(HasSubstr(one.warning)));
  }
}

TEST(Warnings, OfPpoComeOneByOne) {
  const std::vector<Case> cases{
      {[](Options& o) { o.fault.at = {"kill:0:train:1"}; }, "[fault] is set"},
      {[](Options& o) { o.algo.dpo.beta = 0.5; }, "algo.dpo has no effect here"},
      {[](Options& o) { o.algo.rm.loss = PreferenceLoss::logexp; }, "algo.rm has no effect here"},
      {[](Options& o) { o.train.async_depth = 1; }, "nothing corrects for it"},
      {[](Options& o) {
         o.train.async_depth = 1, o.algo.advantage.is_correction_enable = true,
         o.run.threads = "phase";
       },
       "takes the threads of all its cores"},
      {[](Options& o) { o.algo.kl.use_loss = true; }, "algo.kl.use_loss with estimator k1"},
      {[](Options& o) { o.algo.kl.estimator = KlEstimator::k2; }, "k2 or k3 in the reward"},
      {[](Options& o) { o.algo.kl.estimator = KlEstimator::k3; }, "k2 or k3 in the reward"},
      {[](Options& o) { o.reward.normalize_enable = true; },
       "reward.normalize_enable has no effect"},
      {[](Options& o) { o.reward.source[0].weight = 0; }, "weight 0"},
      {[](Options& o) {
         o.eval.steps = 1, o.eval.temperature = 0, o.eval.n_samples_per_prompt = 4;
       },
       "eval.temperature = 0"},
      {[](Options& o) {
         o.algo.advantage.is_correction_enable = true, o.actor.policy_loss_type = PolicyLoss::gspo;
       },
       "\"gspo\""},
  };
  expect_alone(cases, Command::ppo, quiet());
}

TEST(Warnings, AreSilencedByWhatTheyAskFor) {
  const std::vector<void (*)(Options&)> meant{
      [](Options& o) { o.train.async_depth = 1, o.algo.advantage.is_correction_enable = true; },
      [](Options& o) { o.algo.kl.use_loss = true, o.algo.kl.estimator = KlEstimator::k2; },
      [](Options& o) { o.algo.kl.use_loss = true, o.algo.kl.unbiased_gradient = true; },
      [](Options& o) { o.algo.kl.init_coef = 0, o.algo.kl.estimator = KlEstimator::k3; },
      [](Options& o) {
        o.reward.normalize_enable = true, o.reward.source[0].kind = RewardKind::model;
      },
      [](Options& o) { o.eval.steps = 1, o.eval.temperature = 0, o.eval.n_samples_per_prompt = 1; },
      [](Options& o) {
        o.algo.advantage.gamma = 0.9, o.algo.advantage.lambd = 0.9,
        o.algo.advantage.no_std_norm = true;
      },
      [](Options& o) {
        o.algo.advantage.estimator = Estimator::reinforce, o.algo.advantage.gamma = 0.9,
        o.algo.advantage.no_std_norm = true;
      },
      [](Options& o) {
        o.algo.advantage.estimator = Estimator::reinforce_baseline,
        o.algo.advantage.no_std_norm = true;
      },
  };
  for (size_t i = 0; i < meant.size(); ++i) {
    Options options = quiet();
    meant[i](options);
    EXPECT_THAT(warnings(options, Command::ppo), IsEmpty()) << i;
  }
}

TEST(Warnings, OfEstimatorsWithoutACritic) {
  const std::vector<Case> cases{
      {[](Options& o) { o.critic.value_clip = 0.1; }, "[critic] has no effect"},
      {[](Options& o) { o.algo.advantage.lambd = 0.9; }, "algo.advantage.lambd has no effect"},
  };
  const std::vector<Case> undiscounted{
      {[](Options& o) { o.algo.advantage.gamma = 0.9; }, "algo.advantage.gamma counts as 1"}};
  const std::vector<Case> unwhitened{
      {[](Options& o) { o.algo.advantage.no_std_norm = true; }, "does not whiten its advantages"}};
  for (const Estimator estimator :
       {Estimator::reinforce, Estimator::rloo, Estimator::reinforce_baseline, Estimator::group_norm,
        Estimator::dr_grpo, Estimator::flash_reinforce}) {
    Options base = quiet();
    base.algo.advantage.estimator = estimator;
    expect_alone(cases, Command::ppo, base);
    if (estimator != Estimator::reinforce) expect_alone(undiscounted, Command::ppo, base);
    if (estimator != Estimator::reinforce && estimator != Estimator::reinforce_baseline)
      expect_alone(unwhitened, Command::ppo, base);
  }
}

TEST(Warnings, OfTheOtherCommands) {
  Options pairs;
  pairs.model.path = "model";
  for (const Command command : {Command::sft, Command::rm, Command::dpo}) {
    expect_alone(
        {{[](Options& o) { o.reward.source.resize(1); }, "[[reward.source]] has no effect here"}},
        command, pairs);
  }
  expect_alone({{[](Options& o) { o.algo.rm.loss = PreferenceLoss::logexp; }, "ignores margins"},
                {[](Options& o) { o.algo.dpo.ipo = true; }, "algo.dpo has no effect here"}},
               Command::rm, pairs);
  expect_alone(
      {{[](Options& o) { o.algo.rm.loss = PreferenceLoss::logexp; }, "algo.rm has no effect here"}},
      Command::dpo, pairs);
}

}  // namespace
}  // namespace trireme::config
