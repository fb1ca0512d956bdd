// What a run saves comes back in the next start, at np 1, 2 and 4.
#include "torch/torch.hpp"

#include "driver/checkpointing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "unit/driver/tiny_actor.hpp"

namespace trireme::driver {
namespace {

using test::SharedFolder;
using test::world;

// A process of a run: its models, its folder, its checkpoints.
struct Start {
  Start(const config::Options& options, bool average = false)
      : actor(options),
        folder(options, world()),
        checkpoints(options, actor.roles, folder, at::kCPU, false) {
    if (average) actor.model->enable_average(0.9);
    checkpoints.add({"actor", &actor.spec, actor.model.get(), average});
  }
  RunState state_after(int64_t iteration) const {
    RunState state;
    state.iteration = iteration;
    state.command = "ppo";
    state.deck = folder.deck();
    state.training.actor_steps = actor.model->steps();
    return state;
  }

  TinyActor actor;
  RunFolder folder;
  Checkpointing checkpoints;
};

std::vector<float> copy_of(zero::ShardedModel& model, SavedArray array) {
  std::vector<float> all;
  for (size_t p = 0; p < model.spec().parameters.size(); ++p) {
    const float* values = (model.*array)(p).host();
    if (values) all.insert(all.end(), values, values + model.own(p).elements());
  }
  return all;
}

class Saves : public testing::Test {
 protected:
  Saves() {
    options_.run.dir = parent_.path().string();
    options_.run.log_level = config::LogLevel::error;
  }
  // The numbers of the checkpoints that there are, on rank 0.
  std::vector<std::string> folders() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(parent_.path() / "ckpt")) {
      const std::string name = entry.path().filename();
      if (name.starts_with("step-")) names.push_back(name);
    }
    std::ranges::sort(names);
    return names;
  }

  const SharedFolder parent_;
  config::Options options_;
};

TEST_F(Saves, ModelsAndStateComeBack) {
  const SavedArray arrays[] = {&zero::ShardedModel::master, &zero::ShardedModel::moment1,
                               &zero::ShardedModel::moment2, &zero::ShardedModel::average};
  std::vector<std::vector<float>> saved;
  RunState state;
  {
    Start first(options_, true);
    StoredParts parts;
    EXPECT_FALSE(first.checkpoints.resume(parts)) << "there is none";
    EXPECT_EQ(first.checkpoints.began_behind(), -1);
    first.actor.learn(1);
    first.actor.learn(2);
    state = first.state_after(2);
    state.rewards = {0.25, 0.5};
    first.checkpoints.save(state, {}, true);
    for (const SavedArray array : arrays) saved.push_back(copy_of(*first.actor.model, array));
  }
  world().barrier();
  Start second(options_, true);
  StoredParts parts;
  const auto found = second.checkpoints.resume(parts);
  ASSERT_TRUE(found);
  EXPECT_EQ(*found, state);
  EXPECT_EQ(second.checkpoints.committed(), 2);
  EXPECT_EQ(second.checkpoints.began_behind(), 2);
  EXPECT_EQ(second.actor.model->steps(), 2);
  for (size_t i = 0; i < saved.size(); ++i)
    EXPECT_EQ(copy_of(*second.actor.model, arrays[i]), saved[i]) << "array " << i;
}

// A resumed run takes the step that the first one would have taken.
TEST_F(Saves, AResumedModelLearnsOnWithTheSameBits) {
  std::vector<float> undisturbed;
  {
    Start first(options_);
    first.actor.learn(1);
    first.checkpoints.save(first.state_after(1), {}, true);
    first.actor.learn(2);
    undisturbed = copy_of(*first.actor.model, &zero::ShardedModel::master);
  }
  world().barrier();
  Start second(options_);
  StoredParts parts;
  ASSERT_TRUE(second.checkpoints.resume(parts));
  second.actor.learn(2);
  EXPECT_EQ(copy_of(*second.actor.model, &zero::ShardedModel::master), undisturbed);
}

// Each rank gives its part, some of them nothing; the next start has all of them on rank 0, in
// order, whatever the other kinds are.
TEST_F(Saves, PartsOfAllRanksAreJoinedOnRankZero) {
  std::string all;
  for (int rank = 0; rank < world().size(); ++rank)
    if (rank != 1) all += base::text("<", rank, ">");
  {
    Start first(options_);
    const std::string mine = world().rank() == 1 ? "" : base::text("<", world().rank(), ">");
    first.checkpoints.save(first.state_after(1),
                           {.pending = mine, .unfinished = "", .dispatch = mine}, true);
  }
  world().barrier();
  Start second(options_);
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
    Start first(options_);
    first.checkpoints.save(first.state_after(3), {}, true);
  }
  world().barrier();
  options_.ckpt.resume = "never";
  Start second(options_);
  StoredParts parts;
  EXPECT_FALSE(second.checkpoints.resume(parts));
  EXPECT_EQ(second.checkpoints.began_behind(), -1);
}

TEST_F(Saves, KeepsTheNewestAndTheBest) {
  options_.ckpt.keep = 2;
  Start start(options_);
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
  Start start(options_);
  EXPECT_FALSE(start.checkpoints.due(3));
  EXPECT_TRUE(start.checkpoints.due(4));
  EXPECT_EQ(start.checkpoints.until_due(5), 3);
  EXPECT_FALSE(start.checkpoints.time_is_due());
}

}  // namespace
}  // namespace trireme::driver
