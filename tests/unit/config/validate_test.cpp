#include <filesystem>
#include <fstream>

#include "trireme/config/deck.hpp"
#include "trireme/config/fault.hpp"
#include "trireme/config/importance_correction.hpp"
#include "trireme/config/reward_sources.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::config {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

Options good() {
  Options o;
  o.model.path = "model";
  o.data.prompt_dataset = {"prompts.jsonl"};
  o.reward.source.resize(1);
  return o;
}
constexpr auto no_files = [] {
  ValidateInputs inputs;
  inputs.check_files = false;
  return inputs;
};
std::string refusal(const Options& o, Command command = Command::ppo) {
  return error_of(ExitCode::configuration, [&] { validate(o, command, no_files()); });
}
template <class Change>
std::string refusal_after(Change change) {
  Options o = good();
  change(o);
  return refusal(o);
}

TEST(Validate, GoodDeckPasses) {
  EXPECT_NO_THROW(validate(good(), Command::ppo, no_files()));
  EXPECT_TRUE(warnings(good(), Command::ppo).empty());
}

// For `trireme plan`: what is missing is listed, what is wrong is refused as ever.
TEST(Validate, ShapesSufficeForAPlan) {
  ValidateInputs plan{"deck.toml"};
  plan.shapes_suffice = true;
  Options bare;
  bare.reward.source.resize(2);
  bare.reward.source[0].kind = RewardKind::model;
  bare.reward.source[1].kind = RewardKind::plugin;
  const auto lacking = validate(bare, Command::ppo, plan);
  ASSERT_EQ(lacking.size(), 4u);
  EXPECT_THAT(lacking[0], HasSubstr("model.path is missing"));
  EXPECT_THAT(lacking[1], HasSubstr("data.prompt_dataset is missing"));
  EXPECT_THAT(lacking[2], HasSubstr("reward.source.0.path is missing"));
  EXPECT_THAT(lacking[3], HasSubstr("reward.source.1.command is missing"));
  EXPECT_THAT(refusal(bare), HasSubstr("4 mistakes"));

  Options elsewhere = good();
  elsewhere.model.tokenizer = "no-such-tokenizer";
  const auto missing = validate(elsewhere, Command::ppo, plan);
  ASSERT_EQ(missing.size(), 2u);
  EXPECT_THAT(missing[0], HasSubstr("model.tokenizer = \"no-such-tokenizer\" does not exist"));
  EXPECT_THAT(missing[1], HasSubstr("data.prompt_dataset = \"prompts.jsonl\" does not exist"));

  Options wrong = bare;
  wrong.data.max_len = 8;
  wrong.rollout.max_new_tokens = 8;
  EXPECT_THAT(error_of(ExitCode::configuration, [&] { validate(wrong, Command::ppo, plan); }),
              HasSubstr("leaves no token"));
  EXPECT_EQ(validate(Options{}, Command::sft, plan).size(), 2u) << "model.path and data.dataset";
}

TEST(Validate, FusedKernelsAreForCpus) {
  for (const Device device : {Device::automatic, Device::cpu}) {
    Options o = good();
    o.run.device = device;
    o.generate.backend = GenerateBackend::fused;
    EXPECT_NO_THROW(validate(o, Command::ppo, no_files()));
  }
  EXPECT_THAT(refusal_after([](Options& o) {
                o.run.device = Device::cuda, o.generate.backend = GenerateBackend::fused;
              }),
              HasSubstr("the fused kernels are for CPUs"));
}

TEST(Validate, GuessesNeedTheFusedKernels) {
  Options guessing = good();
  guessing.generate.speculation_tokens = 4;
  EXPECT_NO_THROW(validate(guessing, Command::ppo, no_files()));
  EXPECT_THAT(refusal_after([](Options& o) {
                o.generate.speculation_tokens = 4, o.run.device = Device::cuda;
              }),
              HasSubstr("generate.speculation_tokens = 4 with run.device"));
  EXPECT_THAT(refusal_after([](Options& o) {
                o.generate.speculation_tokens = 4, o.generate.backend = GenerateBackend::torch;
              }),
              HasSubstr("generate.speculation_tokens = 4 with generate.backend"));
}

TEST(Validate, EightBitsNeedTheFusedKernelsAndACorrection) {
  Options o = good();
  o.generate.weights = RolloutWeights::int8;
  EXPECT_NO_THROW(validate(o, Command::ppo, no_files()));
  ASSERT_EQ(warnings(o, Command::ppo).size(), 1u);
  EXPECT_THAT(warnings(o, Command::ppo)[0],
              HasSubstr("generate.weights = \"int8\" without algo.advantage.is_correction_enable"));
  o.algo.advantage.is_correction_enable = true;
  EXPECT_TRUE(warnings(o, Command::ppo).empty());
  EXPECT_THAT(refusal_after([](Options& deck) {
                deck.generate.weights = RolloutWeights::int8, deck.run.device = Device::cuda;
              }),
              HasSubstr("generate.weights = \"int8\" with run.device"));
  EXPECT_THAT(refusal_after([](Options& deck) {
                deck.generate.weights = RolloutWeights::int8,
                deck.generate.backend = GenerateBackend::torch;
              }),
              HasSubstr("generate.weights = \"int8\" with generate.backend"));
}

TEST(Validate, CombinationsOfTheAlgorithm) {
  for (const Estimator e : {Estimator::rloo, Estimator::reinforce_baseline, Estimator::group_norm,
                            Estimator::dr_grpo, Estimator::max_rl}) {
    EXPECT_THAT(refusal_after([e](Options& o) { o.algo.advantage.estimator = e; }),
                HasSubstr("with rollout.n_samples_per_prompt = 1"));
  }
  Options alone = good();
  alone.algo.advantage.estimator = Estimator::reinforce;
  EXPECT_NO_THROW(validate(alone, Command::ppo, no_files()));
  EXPECT_THAT(refusal_after([](Options& o) { o.algo.kl.unbiased_gradient = true; }),
              HasSubstr("unbiased_gradient without algo.kl.use_loss"));
  EXPECT_THAT(refusal_after([](Options& o) { o.algo.kl.target = 1, o.algo.kl.init_coef = 0; }),
              HasSubstr("would stay 0"));
  EXPECT_THAT(refusal_after([](Options& o) { o.algo.kl.use_loss = true, o.algo.kl.init_coef = 0; }),
              HasSubstr("algo.kl.use_loss"));
  EXPECT_THAT(refusal_after([](Options& o) {
                o.critic.freezing_steps = 3, o.algo.advantage.estimator = Estimator::reinforce;
              }),
              HasSubstr("it has no critic"));
  EXPECT_THAT(refusal_after([](Options& o) {
                o.critic.path = "x", o.algo.advantage.estimator = Estimator::reinforce;
              }),
              HasSubstr("critic.path with"));
  EXPECT_THAT(refusal_after([](Options& o) {
                o.critic.save_value_network = true,
                o.algo.advantage.estimator = Estimator::reinforce;
              }),
              HasSubstr("critic to save"));
}

template <class Change>
std::string correction_refused(Change change) {
  return refusal_after([&](Options& o) {
    o.algo.advantage.is_correction_enable = true;
    change(o.algo.advantage);
  });
}

TEST(Validate, ImportanceCorrections) {
  const auto custom = [](AdvantageOptions& a, CorrectionLevel level, CorrectionMode mode,
                         CorrectionGate gate, double low) {
    a.is_correction_type = CorrectionType::custom;
    a.is_correction_level = level;
    a.is_correction_mode = mode;
    a.is_correction_gating = gate;
    a.is_correction_threshold[0] = low;
  };
  EXPECT_THAT(correction_refused([&](auto& a) {
                custom(a, CorrectionLevel::token, CorrectionMode::clip, CorrectionGate::tv, 0);
              }),
              HasSubstr("nothing to clip): use mode mask"));
  EXPECT_THAT(correction_refused([&](auto& a) {
                custom(a, CorrectionLevel::sequence, CorrectionMode::clip, CorrectionGate::ratio,
                       0.5);
              }),
              HasSubstr("is_correction_level = \"seq\" with mode clip"));
  EXPECT_THAT(correction_refused([&](auto& a) {
                custom(a, CorrectionLevel::segment, CorrectionMode::clip, CorrectionGate::ratio,
                       0.5);
              }),
              HasSubstr("is_correction_level = \"segment\" with mode clip"));
  EXPECT_THAT(correction_refused([&](auto& a) {
                custom(a, CorrectionLevel::token, CorrectionMode::mask, CorrectionGate::tv, 0.5);
              }),
              HasSubstr("let it begin at 0"));
  EXPECT_THAT(correction_refused([](auto& a) {
                a.is_correction_threshold = {2, 5};
              }),
              HasSubstr("leaves out 1"));
  EXPECT_THAT(correction_refused([](auto& a) { a.is_correction_mode = CorrectionMode::mask; }),
              HasSubstr("use type custom"));
  EXPECT_THAT(refusal_after(
                  [](Options& o) { o.algo.advantage.is_correction_type = CorrectionType::icepop; }),
              HasSubstr("set both or none"));
  EXPECT_THAT(refusal_after([](Options& o) {
                o.algo.advantage.is_correction_enable = true;
                o.rollout.logit_bias = {"5=1"};
              }),
              HasSubstr("leave one of the two out"));
  Options meant = good();
  meant.algo.advantage.is_correction_enable = true;
  custom(meant.algo.advantage, CorrectionLevel::sequence, CorrectionMode::mask,
         CorrectionGate::binary_kl, 0);
  EXPECT_NO_THROW(validate(meant, Command::ppo, no_files()));
}

TEST(Validate, PretrainingLoss) {
  EXPECT_THAT(refusal_after([](Options& o) { o.actor.ptx_coef = 0.1; }),
              HasSubstr("without data.pretrain_dataset"));
  EXPECT_THAT(refusal_after([](Options& o) { o.data.pretrain_dataset = {"texts.jsonl"}; }),
              HasSubstr("give the loss a weight"));
  EXPECT_THAT(refusal_after([](Options& o) { o.actor.ptx_batch_size = 4; }),
              HasSubstr("actor.ptx_batch_size without"));
  Options supervised = good();
  supervised.data.dataset = {"examples.jsonl"};
  supervised.actor.ptx_coef = 0.1;
  EXPECT_THAT(refusal(supervised, Command::sft), HasSubstr("are for ppo"));
  Options meant = good();
  meant.actor.ptx_coef = 0.1;
  meant.data.pretrain_dataset = {"texts.jsonl"};
  EXPECT_NO_THROW(validate(meant, Command::ppo, no_files()));
}

TEST(Validate, EvaluationAndBestCheckpoint) {
  EXPECT_THAT(refusal_after([](Options& o) { o.eval.steps = 0; }), HasSubstr("eval.steps = 0"));
  EXPECT_THAT(refusal_after([](Options& o) { o.eval.steps = 5; }),
              HasSubstr("eval.steps without eval.dataset"));
  EXPECT_THAT(refusal_after([](Options& o) { o.eval.dataset = {"x"}; }),
              HasSubstr("eval.dataset without eval.steps"));
  EXPECT_THAT(refusal_after([](Options& o) { o.ckpt.best_metric = "eval_reward"; }),
              HasSubstr("without eval.steps"));
  EXPECT_THAT(refusal_after([](Options& o) {
                o.eval.steps = 1, o.eval.dataset = {"x"}, o.ckpt.best_metric = "eval_loss";
              }),
              HasSubstr("ppo has: eval_reward, eval_pass1, eval_pass4"));
  EXPECT_TRUE(smaller_is_better("eval_loss"));
  EXPECT_FALSE(smaller_is_better("eval_accuracy"));
}

TEST(Validate, Preferences) {
  Options pairs = good();
  pairs.data.dataset = {"pairs.jsonl"};
  for (const Command command : {Command::rm, Command::dpo})
    EXPECT_NO_THROW(validate(pairs, command, no_files()));
  pairs.algo.dpo.ipo = true;
  pairs.algo.dpo.label_smoothing = 0.1;
  pairs.ranks.trainer = "1";
  const std::string text = refusal(pairs, Command::dpo);
  EXPECT_THAT(text, HasSubstr("algo.dpo.ipo with algo.dpo.label_smoothing"));
  EXPECT_THAT(text, HasSubstr("[ranks] is for ppo (every rank trains in dpo)"));
  pairs.algo.dpo = {};
  pairs.data.dataset.clear();
  EXPECT_THAT(refusal(pairs, Command::rm), HasSubstr("data.dataset is missing"));
}

TEST(Validate, PolicyLosses) {
  const auto refused = [](auto change, const char* words) {
    EXPECT_THAT(refusal_after(change), HasSubstr(words));
  };
  refused([](Options& o) { o.actor.loss_scale_factor = 100; },
          "actor.loss_scale_factor is for actor.loss_agg_mode = \"seq-mean-token-sum-norm\"");
  refused([](Options& o) { o.actor.delta = 4, o.actor.dual_clip = 3; },
          "actor.delta and actor.dual_clip are both set");
  refused([](Options& o) { o.actor.delta = 1.1; }, "actor.delta = 1.1 is not above the upper clip");
  refused([](Options& o) { o.actor.delta = 4, o.actor.policy_loss_type = PolicyLoss::sapo; },
          "actor.delta with actor.policy_loss_type = \"sapo\"");
  refused([](Options& o) { o.actor.dual_clip = 3, o.actor.policy_loss_type = PolicyLoss::cispo; },
          "actor.dual_clip with actor.policy_loss_type = \"cispo\"");
  refused([](Options& o) { o.actor.cispo_ratio_max = 2; }, "actor.cispo_ratio_max is for");
  refused(
      [](Options& o) { o.actor.policy_loss_type = PolicyLoss::cispo, o.actor.cispo_ratio_min = 6; },
      "actor.cispo_ratio_min = 6 is not below");
  refused([](Options& o) { o.actor.policy_loss_type = PolicyLoss::gmpo; },
          "actor.policy_loss_type = \"gmpo\" with algo.advantage.estimator = \"gae\"");
  refused(
      [](Options& o) {
        o.algo.advantage.estimator = Estimator::reinforce;
        o.algo.advantage.length_adaptive_alpha = 0.05;
      },
      "only a critic's advantages have a lambda");
  refused([](Options& o) { o.reference.sync_every = 5, o.algo.kl.init_coef = 0; },
          "there is no reference");
  refused([](Options& o) { o.reference.sync_every = 5, o.train.async_depth = 1; },
          "as time has it");
}

TEST(Validate, PreferenceLosses) {
  const auto refused = [](auto change, const char* words) {
    Options o = good();
    o.data.dataset = {"pairs.jsonl"};
    change(o);
    EXPECT_THAT(refusal(o, Command::dpo), HasSubstr(words));
  };
  refused([](Options& o) { o.algo.dpo.loss = DpoLoss::hinge, o.algo.dpo.ipo = true; },
          "they name two losses");
  refused([](Options& o) { o.algo.dpo.loss = DpoLoss::hinge, o.algo.dpo.label_smoothing = 0.1; },
          "algo.dpo.loss = \"hinge\" with algo.dpo.label_smoothing");
  refused([](Options& o) { o.algo.dpo.simpo_gamma = 1; }, "algo.dpo.simpo_gamma is for");
  refused([](Options& o) { o.algo.dpo.desirable_weight = 2; }, "desirable_weight");
  refused([](Options& o) { o.algo.dpo.loss = DpoLoss::kto, o.algo.dpo.nll_loss_coef = 1; },
          "it has no chosen answers");
  refused([](Options& o) { o.algo.dpo.loss = DpoLoss::orpo, o.algo.dpo.nll_loss_coef = 1; },
          "its language-model loss has weight 1");
  refused([](Options& o) { o.algo.dpo.loss = DpoLoss::simpo, o.reference.path = "x"; },
          "it compares with no reference");
  refused([](Options& o) { o.algo.dpo.loss = DpoLoss::kto, o.train.batch_size = 1; },
          "train.batch_size = 1");
  Options labelled = good();
  labelled.algo.dpo.loss = DpoLoss::kto;
  EXPECT_THAT(selection_metrics(labelled, Command::dpo), ElementsAre("eval_loss", "eval_margin"));
}

TEST(Validate, Teachers) {
  const auto refused = [](Command command, auto change, const char* words) {
    Options o = good();
    o.data.dataset = {"texts.jsonl"};
    o.reference.path = "teacher";
    o.algo.distill.coef = 1;
    o.algo.kl.init_coef = 0;
    change(o);
    EXPECT_THAT(refusal(o, command), HasSubstr(words));
  };
  for (const Command command : {Command::sft, Command::ppo}) {
    refused(
        command, [](Options& o) { o.reference.path.clear(); }, "without reference.path");
    refused(
        command, [](Options& o) { o.algo.distill.coef = 0, o.algo.distill.top_k = 3; },
        "algo.distill without algo.distill.coef");
  }
  refused(
      Command::dpo, [](Options&) {}, "algo.distill.coef with dpo");
  refused(
      Command::sft, [](Options& o) { o.algo.distill.coef = 0; }, "reference.path with sft");
  refused(
      Command::sft, [](Options& o) { o.algo.distill.policy = DistillPolicy::k3; }, "are for ppo");
  refused(
      Command::sft, [](Options& o) { o.algo.distill.rest = DistillRest::none; },
      "are for algo.distill.top_k");
  refused(
      Command::sft, [](Options& o) { o.algo.distill.top_k = 3, o.algo.distill.loss_max = 1; },
      "are for algo.distill.rest");
  refused(
      Command::sft,
      [](Options& o) {
        o.algo.distill.top_k = 3, o.algo.distill.rest = DistillRest::none;
        o.algo.distill.beta = 0.5;
      },
      "forward KL alone");
  refused(
      Command::ppo, [](Options& o) { o.algo.distill.beta = 0.5; }, "are for sft");
  refused(
      Command::ppo, [](Options& o) { o.algo.kl.init_coef = 0.01; }, "set algo.kl.init_coef = 0");
  refused(
      Command::ppo, [](Options& o) { o.reference.sync_every = 1; }, "the teacher stays");
  refused(
      Command::ppo,
      [](Options& o) { o.algo.distill.policy = DistillPolicy::k2, o.algo.distill.discount = 0.5; },
      "algo.distill.discount is for");
  refused(
      Command::ppo, [](Options& o) { o.algo.distill.loss_max = 1; }, "algo.distill.loss_max");
}

// policy = "distribution" has the keys of sft's divergence, under the same rules.
TEST(Validate, TeacherOfDistributions) {
  const auto words = [](auto change) {
    Options o = good();
    o.reference.path = "teacher";
    o.algo.distill.coef = 1;
    o.algo.distill.policy = DistillPolicy::distribution;
    o.algo.kl.init_coef = 0;
    change(o.algo.distill);
    try {
      validate(o, Command::ppo, no_files());
    } catch (const UserError& error) { return std::string(error.what()); }
    return std::string();
  };
  EXPECT_EQ(words([](DistillOptions&) {}), "");
  EXPECT_EQ(words([](DistillOptions& d) { d.beta = 0.5, d.temperature = 2; }), "");
  EXPECT_EQ(words([](DistillOptions& d) {
              d.top_k = 3, d.support = DistillSupport::student, d.rest = DistillRest::renormalise;
            }),
            "");
  EXPECT_EQ(words([](DistillOptions& d) {
              d.top_k = 3, d.rest = DistillRest::none, d.log_prob_min = -4, d.loss_max = 2;
            }),
            "");
  EXPECT_THAT(words([](DistillOptions& d) { d.nll_coef = 1; }), HasSubstr("is for sft"));
  EXPECT_THAT(words([](DistillOptions& d) { d.discount = 0.5; }),
              HasSubstr("discount is for algo.distill.policy = \"advantage\", and it is "
                        "\"distribution\""));
  EXPECT_THAT(words([](DistillOptions& d) { d.support = DistillSupport::student; }),
              HasSubstr("are for algo.distill.top_k"));
  EXPECT_THAT(words([](DistillOptions& d) { d.loss_max = 2; }),
              HasSubstr("are for algo.distill.rest"));
  EXPECT_THAT(words([](DistillOptions& d) { d.top_k = 3, d.rest = DistillRest::none, d.beta = 1; }),
              HasSubstr("forward KL alone"));
  EXPECT_THAT(words([](DistillOptions& d) { d.policy = DistillPolicy::k3, d.top_k = 3; }),
              HasSubstr("policy = \"distribution\", and it is \"k3\""));
}

TEST(Validate, Batches) {
  EXPECT_THAT(refusal_after([](Options& o) { o.train.batch_size = 100; }),
              HasSubstr("train.batch_size 100 does not divide the 1024 sequences"));
  EXPECT_THAT(refusal_after([](Options& o) { o.rollout.max_new_tokens = 2048; }),
              HasSubstr("leaves no token"));
  EXPECT_THAT(refusal_after([](Options& o) { o.rollout.temperature = 0; }),
              HasSubstr("rollout.temperature 0"));
  EXPECT_THAT(refusal_after([](Options& o) { o.algo.dynamic_filtering_enable = true; }),
              HasSubstr("dynamic_filtering_enable"));
  EXPECT_THAT(refusal_after([](Options& o) {
                o.train.partial_rollout_order = PartialRolloutOrder::finished;
              }),
              HasSubstr("partial_rollout_order"));
  EXPECT_THAT(
      refusal_after([](Options& o) { o.train.partial_rollout_kv = PartialRolloutKv::keep; }),
      HasSubstr("partial_rollout_kv"));
}

// Of a draw ahead some is learned from one iteration later than the rest.
TEST(Validate, DynamicFilteringAhead) {
  const auto ahead = [](Options& o) {
    o.rollout.n_samples_per_prompt = 2;
    o.algo.dynamic_filtering_enable = true;
    o.train.async_depth = 1;
    o.train.partial_rollout_enable = true;
  };
  Options options = good();
  ahead(options);
  options.algo.advantage.mask_older_than = 1;
  EXPECT_NO_THROW(validate(options, Command::ppo, no_files()));
  options.algo.advantage.mask_older_than = 2;
  EXPECT_THAT(
      error_of(ExitCode::configuration, [&] { validate(options, Command::ppo, no_files()); }),
      HasSubstr("algo.advantage.mask_older_than = 2"));
  options.algo.advantage.mask_older_than.reset();
  options.train.partial_rollout_order = PartialRolloutOrder::finished;
  EXPECT_NO_THROW(validate(options, Command::ppo, no_files()));
}

TEST(Validate, OverSampling) {
  Options beside = good();
  beside.rollout.over_sampling = beside.rollout.batch_size;
  EXPECT_NO_THROW(validate(beside, Command::ppo, no_files()));
  EXPECT_THAT(refusal_after([](Options& o) { o.rollout.over_sampling = o.rollout.batch_size + 1; }),
              HasSubstr("is more than rollout.batch_size"));
  EXPECT_THAT(
      refusal_after([](Options& o) { o.rollout.over_sampling = 1, o.train.async_depth = 1; }),
      HasSubstr("train.partial_rollout_order = \"finished\" instead"));
  beside.rollout.n_samples_per_prompt = 2;
  beside.algo.dynamic_filtering_enable = true;
  EXPECT_NO_THROW(validate(beside, Command::ppo, no_files()));
}

TEST(Validate, Environment) {
  const auto refusal_with = [](auto change) {
    return refusal_after([&](Options& o) {
      o.environment.command = {"game"};
      change(o);
    });
  };
  EXPECT_THAT(refusal_after([](Options& o) { o.environment.max_turns = 3; }),
              HasSubstr("environment.command is missing"));
  EXPECT_THAT(refusal_with([](Options& o) { o.environment.command.push_back("--token=abc"); }),
              HasSubstr("environment.command has a key or password"));
  EXPECT_THAT(refusal_with([](Options& o) { o.environment.tool_calls = ToolCalls::regex; }),
              HasSubstr("environment.tool_pattern is missing"));
  EXPECT_THAT(refusal_with([](Options& o) { o.environment.tool_pattern = "x"; }),
              HasSubstr("environment.tool_pattern with tool_calls = \"none\""));
  EXPECT_THAT(refusal_with([](Options& o) { o.environment.tools = {"add"}; }),
              HasSubstr("environment.tools with environment.tool_calls = \"none\""));
  for (const auto& [tools, words] :
       {std::pair{Strings{"add", "mul", "add"}, "environment.tools.2 = \"add\" is there twice"},
        {Strings{""}, "environment.tools.0 = \"\" is not a possible name"},
        {Strings{"a b"}, "is not a possible name"},
        {Strings{"a/b"}, "is not a possible name"},
        {Strings{std::string(65, 'a')}, "is not a possible name"},
        {Strings{"other"}, "give the tool another name"},
        {Strings(65, "add"), "environment.tools has 65 names"}}) {
    EXPECT_THAT(refusal_with([&tools = tools](Options& o) {
                  o.environment.tool_calls = ToolCalls::hermes;
                  o.environment.tools = tools;
                }),
                HasSubstr(words));
  }
  EXPECT_THAT(refusal_with([](Options& o) { o.environment.max_tokens = o.data.max_len + 1; }),
              HasSubstr("is more than data.max_len"));
  EXPECT_THAT(refusal_with([](Options& o) {
                o.environment.max_tokens = 64;
                o.rollout.max_new_tokens = 64;
              }),
              HasSubstr("leaves no token of environment.max_tokens 64"));
  EXPECT_THAT(refusal_with([](Options& o) {
                o.environment.max_time.seconds = 1;
                o.train.deterministic = true;
              }),
              HasSubstr("environment.max_time with train.deterministic"));
  EXPECT_THAT(refusal_with([](Options& o) { o.environment.broken_reward = -1; }),
              HasSubstr("environment.broken_reward = -1"));
  EXPECT_THAT(refusal_with([](Options& o) { o.rollout.ignore_eos = true; }),
              HasSubstr("rollout.ignore_eos with environment.command"));
  EXPECT_THAT(refusal_with([](Options& o) { o.algo.advantage.estimator = Estimator::gdpo; }),
              HasSubstr("with environment.command (it compares each"));
}

TEST(Validate, Judges) {
  const auto judge = [](auto change) {
    return [change](Options& o) {
      RewardSource& source = o.reward.source[0] = RewardSource{};
      source.kind = RewardKind::judge;
      source.path = "models/judge";
      source.prompt_template = "{{ response }}";
      change(source);
    };
  };
  Options fine = good();
  judge([](RewardSource& source) {
    source.votes = 256;
    source.temperature = 0.5;
    source.vote_rule = VoteRule::majority;
    source.score_words = {"very good=1", "a=b=0.5", "bad=-1e-3"};
  })(fine);
  EXPECT_NO_THROW(validate(fine, Command::ppo, no_files()));
  EXPECT_EQ(score_word("a=b=0.5")->word, "a=b");
  const auto refused = [&](auto change, const char* part) {
    EXPECT_THAT(refusal_after(judge(change)), HasSubstr(part));
  };
  refused([](RewardSource& s) { s.path.clear(); }, "path is missing");
  refused([](RewardSource& s) { s.prompt_template.clear(); }, "prompt_template is missing");
  refused([](RewardSource& s) { s.score_pattern.clear(); }, "score_pattern is empty");
  refused([](RewardSource& s) { s.votes = 3; }, "all votes would be the same");
  refused([](RewardSource& s) { s.vote_rule = VoteRule::median; }, "with votes = 1");
  refused([](RewardSource& s) { s.max_len = 256; }, "leaves no room");
  refused([](RewardSource& s) { s.score_range = Range{2, 2}; }, "equal ends");
  for (const char* word : {"yes", "=1", "yes=", "yes=one", "yes=inf", "yes=1 "})
    refused([word](RewardSource& s) { s.score_words = {word}; }, "write \"WORD=NUMBER\"");
  refused([](RewardSource& s) { s.score_words = {"yes=1", "yes=2"}; }, "twice");
  refused([](RewardSource& s) { s.batch_tokens = 4; }, "batch_tokens is for kind = \"model\"");
  refused([](RewardSource& s) { s.whole_groups = true; }, "whole_groups is for kind = \"plugin\"");
  EXPECT_THAT(refusal_after([](Options& o) { o.reward.source[0].votes = 2; }),
              HasSubstr("votes is for kind = \"judge\""));
  EXPECT_THAT(refusal_after([&](Options& o) {
                o.reward.source.resize(2);
                judge([](RewardSource& s) { s.votes = 200, s.temperature = 1; })(o);
                o.reward.source[1] = o.reward.source[0];
                o.reward.source[1].name = "second";
              }),
              HasSubstr("have 400 votes on an answer, the most is 256"));
}

TEST(Validate, RewardSources) {
  EXPECT_THAT(refusal_after([](Options& o) { o.reward.source.clear(); }),
              HasSubstr("no [[reward.source]]"));
  EXPECT_THAT(refusal_after([](Options& o) { o.reward.source[0].kind = RewardKind::model; }),
              HasSubstr("reward.source.0.path is missing"));
  EXPECT_THAT(refusal_after([](Options& o) { o.reward.source[0].kind = RewardKind::plugin; }),
              HasSubstr("reward.source.0.command is missing"));
  for (const char* argument :
       {"--api-key=abc", "--API_KEY", "-password", "token=1", "sk-0123456789abcdefghij"}) {
    EXPECT_THAT(refusal_after([&](Options& o) {
                  o.reward.source[0].kind = RewardKind::plugin;
                  o.reward.source[0].command = {"judge", argument};
                }),
                HasSubstr("command has a key or password"))
        << argument;
  }
  Options plugin = good();
  plugin.reward.source[0].kind = RewardKind::plugin;
  plugin.reward.source[0].command = {"judge", "--max-tokens=5", "--api-key-from=JUDGE_KEY",
                                     "tokenizer", "sk-1"};
  EXPECT_NO_THROW(validate(plugin, Command::ppo, no_files()));
  EXPECT_THAT(refusal_after([](Options& o) { o.reward.source[0].path = "x"; }),
              HasSubstr("path is for kind = \"model\""));
  EXPECT_THAT(refusal_after([](Options& o) { o.reward.source[0].processes = 2; }),
              HasSubstr("processes is for kind = \"plugin\""));
  EXPECT_THAT(refusal_after([](Options& o) { o.reward.outage = PluginOutage::skip; }),
              HasSubstr("always answer"));
  EXPECT_THAT(refusal_after([](Options& o) { o.algo.advantage.mask_older_than = 0; }),
              HasSubstr("no token is older than that"));
  EXPECT_THAT(refusal_after([](Options& o) { o.reward.source[0].rule = Rule::regex; }),
              HasSubstr("pattern is missing"));
  EXPECT_THAT(refusal_after([](Options& o) { o.reward.source[0].rule = Rule::none; }),
              HasSubstr("would always be 0"));
  EXPECT_THAT(refusal_after([](Options& o) { o.reward.source[0].length_weight = 1; }),
              HasSubstr("length_target"));
  EXPECT_THAT(refusal_after([](Options& o) {
                o.reward.source.resize(2);
                o.reward.source[0].name = o.reward.source[1].name = "same";
              }),
              HasSubstr("two sources are called \"same\""));
  EXPECT_THAT(refusal_after([](Options& o) {
                o.reward.source.resize(2);
                o.reward.source[1].name = "rule0";
              }),
              HasSubstr("two sources are called \"rule0\""))
      << "the first one has no name of its own";
  EXPECT_THAT(refusal_after([](Options& o) { o.reward.source[0].name = "math/verify"; }),
              HasSubstr("reward.source.0.name = \"math/verify\" is not a possible name"));
  EXPECT_THAT(refusal_after([](Options& o) { o.reward.source[0].label_key = "prompt"; }),
              HasSubstr("label_key = \"prompt\" is the column of the prompt"));
  EXPECT_THAT(refusal_after([](Options& o) { o.reward.overlong_buffer_len = 10; }),
              HasSubstr("without rollout.max_new_tokens"));
}

TEST(Validate, ModelAndData) {
  EXPECT_THAT(refusal_after([](Options& o) { o.model.path = ""; }),
              HasSubstr("model.path is missing"));
  EXPECT_THAT(refusal_after([](Options& o) { o.model.shape = "x"; }), HasSubstr("keep one"));
  EXPECT_THAT(refusal_after([](Options& o) { o.data.prompt_dataset.clear(); }),
              HasSubstr("data.prompt_dataset is missing"));
  EXPECT_THAT(refusal_after([](Options& o) {
                o.data.prompt_probs = {1, 2};
              }),
              HasSubstr("2 weights for 1 files"));
  EXPECT_THAT(refusal_after([](Options& o) { o.data.prompt_probs = {0}; }), HasSubstr("all 0"));
  EXPECT_THAT(refusal_after([](Options& o) { o.run.threads = "many"; }), HasSubstr("run.threads"));
  EXPECT_THAT(
      refusal(good(), Command::sft),
      HasSubstr(
          "data.dataset is missing (the JSONL files to train on): data.prompt_dataset is for ppo"));
}

TEST(Validate, AllMistakesAtOnce) {
  const std::string text = refusal(Options{});
  EXPECT_THAT(text, HasSubstr("the deck has 3 mistakes"));
  EXPECT_THAT(text, HasSubstr("model.path"));
  EXPECT_THAT(text, HasSubstr("reward.source"));
}

TEST(Validate, MissingFilesAndThoseBesideTheDeck) {
  const auto folder = std::filesystem::temp_directory_path() / "trireme_validate_test";
  std::filesystem::create_directories(folder / "model_beside_deck");
  Options o = good();
  o.model.path = "model_beside_deck";
  ValidateInputs inputs;
  inputs.deck = folder / "deck.toml";
  const std::string text =
      error_of(ExitCode::input_missing, [&] { validate(o, Command::ppo, inputs); });
  EXPECT_THAT(text, HasSubstr("it lies beside the deck): write " +
                              (folder / "model_beside_deck").string()));
  EXPECT_THAT(text,
              HasSubstr("data.prompt_dataset = \"prompts.jsonl\" does not exist (seen from "));
  o.model.path = (folder / "model_beside_deck").string();
  std::ofstream(folder / "prompts.jsonl") << "{}\n";
  o.data.prompt_dataset = {(folder / "prompts.jsonl").string()};
  EXPECT_NO_THROW(validate(o, Command::ppo, inputs));
  std::filesystem::remove_all(folder);
}

TEST(Validate, Faults) {
  EXPECT_THAT(
      refusal_after([](Options& o) { o.fault.at = {"kill:1:train:2"}, o.run.production = true; }),
      HasSubstr("run.production"));
  EXPECT_THAT(
      refusal_after([](Options& o) { o.fault.at = {"kill:one:train:2"}; }),
      HasSubstr("fault.at = \"kill:one:train:2\" is malformed: write \"kill:rank:place:pass\""));
  EXPECT_THAT(refusal_after([](Options& o) { o.fault.at = {"nan:1:bias:2"}; }),
              HasSubstr("nan:rank:loss|grad|weight|generator|bucket:pass"));
  EXPECT_THAT(refusal_after([](Options& o) {
                o.fault.at = {"kill:*:train:*", "exit:1:train:2"};
              }),
              HasSubstr("exit:rank:place:pass:code"));
  EXPECT_THAT(refusal_after([](Options& o) { o.fault.at = {"melt:1:train:2"}; }),
              HasSubstr("kill|segv|hang|suspend"));
  EXPECT_THAT(refusal_after([](Options& o) { o.fault.io_fail = "read:1:28"; }),
              HasSubstr("fault.io_fail"));
  EXPECT_THAT(refusal_after([](Options& o) { o.fault.plugin_fault = "bang"; }),
              HasSubstr("crash|hang|nan|short|slow"));
  const Fault delay = parse_fault("delay:*:checkpoint write:3:1500");
  EXPECT_TRUE(delay.is_for(5));
  EXPECT_EQ(delay.pass, 3);
  EXPECT_EQ(delay.place, "checkpoint write");
  EXPECT_EQ(delay.value, 1500);
  EXPECT_EQ(parse_fault("gate:1:generate step:16:2").value, 2);
  EXPECT_THAT(refusal_after([](Options& o) { o.fault.at = {"open:1:train:2"}; }),
              HasSubstr("open:rank:place:pass:gate"));
  EXPECT_EQ(parse_fault("hang:0:train:*").pass, 0);
  EXPECT_FALSE(parse_fault("hang:0:train:*").is_for(1));
  EXPECT_EQ(parse_fault_io("fsync:3:5")->call, 3);
  EXPECT_EQ(parse_fault_io("fsync:3:5")->rank, -1);
  EXPECT_EQ(parse_fault_io("fsync:3:5:1")->rank, 1);
  EXPECT_FALSE(parse_fault_io("").has_value());
}

TEST(Validate, Warnings) {
  Options o = good();
  o.train.async_depth = 1;
  o.algo.kl.use_loss = true;
  o.reward.normalize_enable = true;
  const auto list = warnings(o, Command::ppo);
  EXPECT_THAT(list, Contains(HasSubstr("nothing corrects for it")));
  EXPECT_THAT(list, Contains(HasSubstr("estimator k1")));
  EXPECT_THAT(list, Contains(HasSubstr("normalize_enable has no effect")));
  o.algo.advantage.estimator = Estimator::flash_reinforce;
  o.algo.advantage.lambd = 0.9;
  o.algo.dpo.ipo = true;
  const auto others = warnings(o, Command::ppo);
  EXPECT_THAT(others, Contains(HasSubstr("lambd has no effect")));
  EXPECT_THAT(others, Contains(HasSubstr("algo.dpo has no effect here")));
}

TEST(Correction, Presets) {
  AdvantageOptions o;
  EXPECT_FALSE(importance_correction(o).enabled);
  o.is_correction_enable = true;
  EXPECT_EQ(importance_correction(o),
            (ImportanceCorrection{true, CorrectionLevel::token, CorrectionMode::clip,
                                  CorrectionGate::ratio, 0.5, 5}));
  o.is_correction_type = CorrectionType::icepop;
  EXPECT_EQ(importance_correction(o).mode, CorrectionMode::mask);
  o.is_correction_type = CorrectionType::seq_mask_tis;
  EXPECT_EQ(importance_correction(o),
            (ImportanceCorrection{true, CorrectionLevel::sequence, CorrectionMode::mask,
                                  CorrectionGate::ratio, 0.5, 5}));
}

}  // namespace
}  // namespace trireme::config
