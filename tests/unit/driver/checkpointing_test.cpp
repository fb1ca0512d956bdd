// What a run saves comes back in the next start, at np 1, 2 and 4.
#include "torch/torch.hpp"

#include "unit/driver/saves.hpp"

#include "trireme/base/text.hpp"
#include "trireme/checkpoint/reader.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::driver {
namespace {

using test::world;

TEST_F(Saves, ModelsAndStateComeBack) {
  const SavedArray arrays[] = {&zero::ShardedModel::master, &zero::ShardedModel::moment1,
                               &zero::ShardedModel::moment2, &zero::ShardedModel::average};
  std::vector<std::vector<float>> saved;
  RunState state;
  {
    Saver first(options_, true);
    StoredParts parts;
    EXPECT_FALSE(first.checkpoints.resume(parts)) << "there is none";
    EXPECT_EQ(first.checkpoints.began_behind(), -1);
    first.actor.learn(1);
    first.actor.learn(2);
    state = first.state_after(2);
    state.rewards = {0.25, 0.5};
    first.checkpoints.save(state, {}, true);
    for (const SavedArray array : arrays) saved.push_back(first.actor.values(array));
  }
  world().barrier();
  Saver second(options_, true);
  StoredParts parts;
  const auto found = second.checkpoints.resume(parts);
  ASSERT_TRUE(found);
  EXPECT_EQ(*found, state);
  EXPECT_EQ(second.checkpoints.committed(), 2);
  EXPECT_EQ(second.checkpoints.began_behind(), 2);
  EXPECT_EQ(second.actor.model->steps(), 2);
  for (size_t i = 0; i < saved.size(); ++i)
    EXPECT_EQ(second.actor.values(arrays[i]), saved[i]) << "array " << i;
}

// A resumed run takes the step that the first one would have taken.
TEST_F(Saves, AResumedModelLearnsOnWithTheSameBits) {
  std::vector<float> undisturbed;
  {
    Saver first(options_);
    first.actor.learn(1);
    first.checkpoints.save(first.state_after(1), {}, true);
    first.actor.learn(2);
    undisturbed = first.actor.values(&zero::ShardedModel::master);
  }
  world().barrier();
  Saver second(options_);
  StoredParts parts;
  ASSERT_TRUE(second.checkpoints.resume(parts));
  second.actor.learn(2);
  EXPECT_EQ(second.actor.values(&zero::ShardedModel::master), undisturbed);
}

// Each rank gives its part, some of them nothing; the next start has all of them on rank 0, in
// order, whatever the other kinds are.
TEST_F(Saves, PartsOfAllRanksAreJoinedOnRankZero) {
  std::string all;
  for (int rank = 0; rank < world().size(); ++rank)
    if (rank != 1) all += base::text("<", rank, ">");
  {
    Saver first(options_);
    const std::string mine = world().rank() == 1 ? "" : base::text("<", world().rank(), ">");
    first.checkpoints.save(first.state_after(1),
                           {.pending = mine, .unfinished = "", .dispatch = mine}, true);
  }
  world().barrier();
  Saver second(options_);
  StoredParts parts;
  const auto state = second.checkpoints.resume(parts);
  ASSERT_TRUE(state);
  EXPECT_EQ(state->pending_bytes, std::ssize(all));
  EXPECT_EQ(state->unfinished_bytes, 0);
  EXPECT_EQ(parts.pending, world().rank() == 0 ? all : "");
  EXPECT_EQ(parts.dispatch, world().rank() == 0 ? all : "");
  EXPECT_EQ(parts.unfinished, "");
}

TEST_F(Saves, NeverMeansNever) {
  {
    Saver first(options_);
    first.checkpoints.save(first.state_after(3), {}, true);
  }
  world().barrier();
  options_.ckpt.resume = "never";
  Saver second(options_);
  StoredParts parts;
  EXPECT_FALSE(second.checkpoints.resume(parts));
  EXPECT_EQ(second.checkpoints.began_behind(), -1);
}

TEST_F(Saves, KeepsTheNewestAndTheBest) {
  options_.ckpt.keep = 2;
  Saver start(options_);
  for (int64_t iteration = 1; iteration <= 5; ++iteration) {
    RunState state = start.state_after(iteration);
    state.best = {"eval_reward", 2, 0.5};
    if (iteration == 1) state.best = {};
    start.checkpoints.save(state, {}, true);
    EXPECT_EQ(start.checkpoints.committed(), iteration);
    EXPECT_EQ(start.checkpoints.saves(), iteration);
  }
  EXPECT_EQ(start.checkpoints.failures(), 0);
  EXPECT_TRUE(start.checkpoints.holds(5));
  EXPECT_FALSE(start.checkpoints.holds(4));
  world().barrier();
  if (world().rank() == 0) {
    EXPECT_EQ(folders(), (std::vector<std::string>{"step-000002", "step-000004", "step-000005"}));
  }
  world().barrier();
}

TEST_F(Saves, IntervalsAreDueByTheDeck) {
  options_.ckpt.interval.iterations = 4;
  Saver start(options_);
  EXPECT_FALSE(start.checkpoints.due(3));
  EXPECT_TRUE(start.checkpoints.due(4));
  EXPECT_EQ(start.checkpoints.until_due(5), 3);
  EXPECT_FALSE(start.checkpoints.time_is_due());
}

TEST_F(Saves, ATimeIsDueWhenItIsOverSinceTheLastSaveBegan) {
  options_.ckpt.interval.iterations = 0;
  options_.ckpt.interval.seconds = 1e-9;
  Saver short_one(options_);
  EXPECT_TRUE(short_one.checkpoints.time_is_due());
  EXPECT_FALSE(short_one.checkpoints.due(10));
  short_one.checkpoints.save(short_one.state_after(1), {}, true);
  EXPECT_TRUE(short_one.checkpoints.time_is_due()) << "again";
}

TEST_F(Saves, AnAutomaticIntervalBeginsWithASaveThatMeasures) {
  options_.ckpt.interval.iterations = 0;
  options_.ckpt.interval.automatic = true;
  Saver start(options_);
  EXPECT_TRUE(start.checkpoints.time_is_due()) << "nothing is known of what one costs";
  start.checkpoints.save(start.state_after(1), {}, true);
  EXPECT_FALSE(start.checkpoints.time_is_due());
  EXPECT_GT(start.checkpoints.last_save_seconds(), 0);
}

// ---- Models ----

TEST_F(Saves, FrozenParametersAreThoseOfTheStart) {
  options_.actor.freeze = {"model.embed_tokens.*", "model.layers.0.*"};
  run_and_save({1});
  const checkpoint::Reader reader(world(), parent_.path() / "ckpt/step-000001");
  int64_t saved = 0;
  for (const auto& dataset : reader.datasets()) {
    EXPECT_EQ(dataset.path.find("layers.0."), std::string::npos) << dataset.path;
    EXPECT_EQ(dataset.path.find("embed_tokens"), std::string::npos) << dataset.path;
    saved += dataset.path.starts_with("/actor/weight/");
  }
  const auto spec = TinyActor::described(options_);
  EXPECT_EQ(saved, std::ssize(spec.trainable_names()));
  EXPECT_EQ(found(), 1);
  options_.actor.freeze = {"model.layers.0.*"};
  EXPECT_THAT(config::error_of(ExitCode::bad_data, [&] { static_cast<void>(found()); }),
              testing::HasSubstr("actor.freeze"));
}

TEST_F(Saves, EachModelHasItsOwnOptimizerSteps) {
  std::vector<float> values;
  const auto with_critic = [this](auto use) {
    TinyActor critic(options_);  // it outlives who saves it
    Saver start(options_);
    start.checkpoints.add(
        {"critic", &critic.spec, critic.model.get(), false, &learn::TrainingState::critic_steps});
    use(start, critic);
    world().barrier();
  };
  with_critic([&](Saver& start, TinyActor& critic) {
    for (uint64_t step = 0; step < 3; ++step) critic.learn(step);
    start.actor.learn(1);
    RunState state = start.state_after(1);
    state.training.critic_steps = critic.model->steps();
    start.checkpoints.save(state, {}, true);
    values = critic.values();
  });
  with_critic([&](Saver& start, TinyActor& critic) {
    StoredParts parts;
    ASSERT_TRUE(start.checkpoints.resume(parts));
    EXPECT_EQ(start.actor.model->steps(), 1);
    EXPECT_EQ(critic.model->steps(), 3);
    EXPECT_EQ(critic.values(), values);
    EXPECT_NE(start.actor.values(), values);
  });
}

}  // namespace
}  // namespace trireme::driver
