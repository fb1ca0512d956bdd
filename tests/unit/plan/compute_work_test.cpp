// What an iteration multiplies, by hand and by the decks that are shipped.
#include "trireme/plan/compute_work.hpp"

#include <gtest/gtest.h>

#include "layouts.hpp"
#include "support/source_folder.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/config/reward_sources.hpp"

namespace trireme::test {
namespace {

using plan::ComputeWork;

// One block of 8 x 8 matrices: q, k, v, o, gate, up, down; a vocabulary of 10.
constexpr ShapeNumbers small{1, 8, 1, 1, 8, 10};
constexpr double block = 7 * 64 + 2 * 8, head = 80;  // with two norms, as elements are counted

struct Work {
  Work() {
    options.algo.kl.init_coef = 0;
    options.algo.advantage.estimator = config::Estimator::reinforce;
    options.data.max_len = 10;
    options.rollout.max_new_tokens = 4;
    options.rollout.batch_size = 6;
    options.rollout.n_samples_per_prompt = 2;
    options.train.batch_size = 12;
    options.train.max_epochs = 1;
    options.train.recompute = 0;
    models.actor = layout(model::describe(shape_of(small), model::HeadKind::language));
  }
  ComputeWork of(config::Command command = config::Command::ppo) const {
    return plan::compute_work({.options = options,
                               .roles = roles,
                               .node_of_rank = nodes,
                               .models = models,
                               .machine = {},
                               .command = command});
  }
  config::Options options;
  config::RoleMap roles{{0}, {0}, {0}};
  std::vector<int> nodes{0};
  plan::JobModels models;
};

TEST(ComputeWork, CountsPassesByHand) {
  Work work;
  const double forward = 2 * (block * 120 + head * 48);  // 12 sequences of 10 tokens, 4 of them new
  const double prompts = 2 * block * 6 * 6;              // read once, not for each answer
  EXPECT_DOUBLE_EQ(work.of().products, 4 * forward + prompts);  // log-probs; forward and backward
  EXPECT_EQ(work.of().decode_rows, 12);
  EXPECT_DOUBLE_EQ(work.of().decode_steps, 4);
  EXPECT_DOUBLE_EQ(work.of().decode_weights, block + head);

  work.options.train.recompute = -1;
  EXPECT_DOUBLE_EQ(work.of().products, 4 * forward + prompts + 2 * block * 120);
  work.options.train.max_epochs = 2;
  EXPECT_DOUBLE_EQ(work.of().products, 7 * forward + prompts + 4 * block * 120);
  work.models.reference = work.models.actor;
  EXPECT_DOUBLE_EQ(work.of().products, 8 * forward + prompts + 4 * block * 120);
}

// A teacher of distributions: its pass in each epoch, and the student's head four times more.
TEST(ComputeWork, ATeacherInTheSteps) {
  Work work;
  const double before = work.of().products, forward = 2 * (block * 120 + head * 48);
  work.models.reference = work.models.actor;
  EXPECT_DOUBLE_EQ(work.of().products - before, forward) << "a reference";
  work.options.algo.distill.coef = 1;
  EXPECT_DOUBLE_EQ(work.of().products - before, forward) << "on the drawn tokens";
  work.options.algo.distill.policy = config::DistillPolicy::distribution;
  EXPECT_DOUBLE_EQ(work.of().products - before, forward + 8 * head * 48);
  work.models.reference.reset();  // the actor without its adapter
  EXPECT_DOUBLE_EQ(work.of().products - before, forward + 8 * head * 48);
}

// Two judges of one model on two reward ranks: 6 answers each, whose 3 + 1 votes are of 5 and 2
// tokens on average, in batches of 8; each judge reads 10 tokens of each answer.
TEST(ComputeWork, JudgesWriteAndRead) {
  Work work;
  work.roles = {{0}, {0}, {0, 1}};
  work.nodes = {0, 0};
  const ComputeWork before = work.of();
  config::RewardSource judge;
  judge.kind = config::RewardKind::judge;
  judge.path = "models/judge";
  judge.votes = 3;
  judge.max_new_tokens = 10;
  judge.max_batch = 8;
  config::RewardSource second = judge;
  second.votes = 1;
  second.max_new_tokens = 4;
  work.options.reward.source = {judge, second};
  ASSERT_EQ(config::judge_models(work.options).size(), 1u);
  work.models.judges = {{work.models.actor, {}}};
  const ComputeWork judged = work.of();
  EXPECT_DOUBLE_EQ(judged.judging_weights, 3 * 4.25 * (block + head));
  EXPECT_DOUBLE_EQ(judged.products, before.products + 2 * block * 10 * 6 * 2);
  const plan::ComputeSpeed speed{0, 1};
  EXPECT_DOUBLE_EQ(plan::seconds_of(judged, speed),
                   plan::seconds_of(before, speed) + judged.judging_weights);
}

TEST(ComputeWork, RanksShareIt) {
  Work work;
  const ComputeWork one = work.of();
  work.roles = {{0, 1}, {0, 1}, {0, 1}};
  work.nodes = {0, 0};
  EXPECT_DOUBLE_EQ(work.of().products, one.products / 2);
  EXPECT_EQ(work.of().decode_rows, 6);
  EXPECT_DOUBLE_EQ(work.of().decode_steps, 4);
  work.options.generate.tensor_parallel = 2;
  EXPECT_EQ(work.of().decode_rows, 12);
  EXPECT_DOUBLE_EQ(work.of().decode_weights, one.decode_weights / 2);
  work.options.generate.max_batch = 4;
  EXPECT_DOUBLE_EQ(work.of().decode_steps, 3 * 4) << "three batches one after the other";
}

TEST(ComputeWork, OfPipelinesWithoutGeneration) {
  Work work;
  const double tokens = 12 * 10, forward = 2 * (block + head) * tokens;
  EXPECT_DOUBLE_EQ(work.of(config::Command::sft).products, 3 * forward);
  EXPECT_DOUBLE_EQ(work.of(config::Command::rm).products, 6 * forward);
  work.models.reference = work.models.actor;
  EXPECT_DOUBLE_EQ(work.of(config::Command::dpo).products, 8 * forward);
  EXPECT_EQ(work.of(config::Command::dpo).decode_steps, 0);
}

TEST(ComputeWork, RolesAtOnceTakeTheLongerOne) {
  const plan::ComputeSpeed speed{2, 3};
  ComputeWork work{.products = 5, .decode_steps = 2, .decode_rows = 1, .decode_weights = 4};
  EXPECT_DOUBLE_EQ(plan::seconds_of(work, speed), 10 + 24);
  work.at_once = true;
  EXPECT_DOUBLE_EQ(plan::seconds_of(work, speed), 24);
}

// Answers ten times as long are decode steps ten times as many, and products of longer sequences.
TEST(ComputeWork, LongerAnswersWeighDecodingMore) {
  Work work;
  work.options = config::load_deck(source_folder() / "inputs/tutorial/arithmetic.toml");
  work.models.actor = layout(
      model::describe(config::load_model_shape(source_folder() / "inputs/models/smollm2-135m"),
                      model::HeadKind::language));
  const ComputeWork demo = work.of();
  EXPECT_DOUBLE_EQ(demo.decode_steps, 16);
  EXPECT_EQ(demo.decode_rows, 64);
  work.options.rollout.max_new_tokens = 160;
  work.options.data.max_len = 272;
  const ComputeWork longer = work.of();
  EXPECT_DOUBLE_EQ(longer.decode_steps, 160);
  EXPECT_LT(longer.products, 4 * demo.products);
}

}  // namespace
}  // namespace trireme::test
