// From prompts to the samples that an iteration learns from, and rollouts in checkpoints, at np 1,
// 2 and 4.
#include "torch/torch.hpp"

#include "driver/rollout_phase.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "trireme/learn/datasets.hpp"
#include "trireme/learn/same_inputs.hpp"
#include "trireme/reward/reward.hpp"
#include "unit/driver/tiny_runs.hpp"

namespace trireme::driver {
namespace {

using config::Command;
using test::world;

constexpr int64_t prompts_of_an_iteration = 4, answers_to_a_prompt = 2, planned_iterations = 6;

// The roles of a run and its rollouts, with the weights of its start.
struct Rollouts {
  explicit Rollouts(const config::Options& options)
      : run(options, session(), Command::ppo),
        tokenizer(learn::load_same_tokenizer(world(), run.options)),
        prompts(
            reward::load_prompts(run.options, run.options.data.prompt_dataset, tokenizer, world())),
        sampler(learn::make_sampler(run.options, run.options.data.prompt_probs, prompts.counts())),
        roles(run, tokenizer, prompts, std::nullopt, planned_iterations, 1),
        phase(run, roles, tokenizer, prompts, sampler, planned_iterations) {
    roles.load();
    roles.sync_weights(1);
  }
  // Nothing is on its way when the mailboxes go.
  ~Rollouts() { static_cast<void>(phase.stored()); }

  // As the loop does, without learning.
  Samples collect(int64_t iteration) {
    run.policy.begins(iteration);
    metrics = {};
    metrics.iteration = iteration;
    auto samples = phase.collect(state, metrics);
    EXPECT_TRUE(samples);
    return std::move(*samples);
  }
  void go_ahead(int64_t iteration) {
    if (run.options.train.async_depth > 0) phase.work_ahead(iteration);
  }
  // What a checkpoint after this iteration has; parts of all ranks on rank 0.
  std::pair<StoredParts, RunState> saved(int64_t iteration) {
    StoredParts mine = phase.stored(), all;
    for (const auto part : {&StoredParts::pending, &StoredParts::dispatch}) {
      for (const std::string& bytes : world().all_gather(mine.*part)) all.*part += bytes;
    }
    state.iteration = iteration;
    state.sampler = sampler.state();
    state.pending_bytes = std::ssize(all.pending);
    state.dispatch_bytes = std::ssize(all.dispatch);
    phase.remember(state);
    if (world().rank() != 0) all = {};
    return {all, state};
  }
  void restore(const std::pair<StoredParts, RunState>& checkpoint) {
    state = checkpoint.second;
    sampler.restore(state.sampler);
    phase.restore(checkpoint.first, state);
  }

  Run run;
  text::Tokenizer tokenizer;
  data::PromptSet prompts;
  data::PromptSampler sampler;
  PpoRoles roles;
  RolloutPhase phase;
  RunState state;
  report::IterationMetrics metrics;
};

// All ranks' sequences by their ids, each with its tokens, log-probs and rewards.
std::map<uint64_t, std::string> all_of(const Samples& samples) {
  std::vector<std::pair<uint64_t, std::string>> mine;
  for (int64_t i = 0; i < samples.size(); ++i)
    mine.emplace_back(samples.id[static_cast<size_t>(i)],
                      samples.select(std::vector{i}).to_bytes());
  std::map<uint64_t, std::string> all;
  for (const auto& [id, bytes] : world().all_gather<std::pair<uint64_t, std::string>>(mine))
    EXPECT_TRUE(all.emplace(id, bytes).second) << "sequence " << id << " is on two ranks";
  return all;
}

std::multiset<int64_t> rows_of(const Samples& samples) {
  const auto all = world().all_gather<int64_t>(samples.prompt_row);
  return {all.begin(), all.end()};
}

class Phases : public TinyRuns {
 protected:
  config::Options options(const Overrides& overrides) const {
    return deck(Command::ppo, "run", overrides);
  }
  void forget_run() const {
    world().barrier();
    if (world().rank() == 0) std::filesystem::remove_all(in("run"));
    world().barrier();
  }
  const std::vector<Overrides> decks_{
      {},
      {"train.async_depth=1"},
      {"algo.dynamic_filtering_enable=true", "algo.dynamic_filtering_range=[-10, 10]"},
      {"train.async_depth=2", "train.partial_rollout_enable=true", "train.deterministic=true"},
      {"train.async_depth=2", "train.partial_rollout_enable=true"}};
};

// In whatever order batches are written, an iteration learns from the prompts that were drawn for
// it, each answered as often as the deck says, and an epoch has each prompt once.
TEST_F(Phases, AnIterationLearnsFromItsOwnDraw) {
  for (const Overrides& overrides : decks_) {
    {
      Rollouts rollouts(options(overrides));
      std::multiset<int64_t> epoch;
      for (int64_t iteration = 1; iteration <= 2; ++iteration) {
        const Samples samples = rollouts.collect(iteration);
        const auto all = all_of(samples);
        EXPECT_EQ(std::ssize(all), prompts_of_an_iteration * answers_to_a_prompt);
        std::map<uint64_t, int64_t> answers_of;
        for (const auto& [id, bytes] : all) {
          EXPECT_EQ(iteration_of(id), iteration);
          ++answers_of[group_of(id)];
        }
        EXPECT_EQ(std::ssize(answers_of), prompts_of_an_iteration);
        for (const auto& [group, count] : answers_of)
          EXPECT_EQ(count, answers_to_a_prompt) << group;
        EXPECT_EQ(samples.reward.size(), samples.id.size()) << "scored";
        EXPECT_EQ(samples.ref_log_probs.size(), samples.ids.size());
        epoch.merge(rows_of(samples));
        const learn::Rollout learned = rollouts.phase.to_trainers(samples, iteration);
        EXPECT_EQ(all_of(learned.samples), all) << "each goes to one trainer";
        EXPECT_EQ(std::ssize(learned.sequences), std::ssize(all)) << "which knows of all";
        rollouts.go_ahead(iteration);
        rollouts.roles.sync_weights(iteration + 1);
      }
      for (int64_t row = 0; row < rollouts.prompts.size(); ++row)
        EXPECT_EQ(epoch.count(row), size_t{answers_to_a_prompt}) << "prompt " << row;
    }
    EXPECT_EQ(std::ssize(lines("run/samples.jsonl")),
              2 * prompts_of_an_iteration * answers_to_a_prompt);
    forget_run();
  }
}

// What is under way when a run saves is learned from by the next start, as by the run itself.
TEST_F(Phases, RolloutsUnderWayAreInACheckpoint) {
  for (const Overrides& overrides : decks_) {
    if (overrides.size() == 2 && overrides[1].starts_with("train.partial"))
      continue;  // how much is written with which weights depends on time
    std::map<uint64_t, std::string> wanted;
    std::pair<StoredParts, RunState> checkpoint;
    const bool goes_ahead = !overrides.empty() && overrides.front().starts_with("train.async");
    {
      Rollouts first(options(overrides));
      first.phase.to_trainers(first.collect(1), 1);
      first.go_ahead(1);
      EXPECT_EQ(first.phase.waiting(), goes_ahead);
      checkpoint = first.saved(1);
      wanted = all_of(first.collect(2));
    }
    forget_run();
    {
      Rollouts second(options(overrides));
      second.restore(checkpoint);
      EXPECT_EQ(second.phase.waiting(), checkpoint.second.pending_bytes > 0);
      EXPECT_EQ(all_of(second.collect(2)), wanted);
    }
    forget_run();
  }
}

// A stop between the rollout and the first optimizer step: the texts wait, and are scored again.
TEST_F(Phases, SamplesComeBackFromTheTrainers) {
  std::map<uint64_t, std::string> wanted;
  std::pair<StoredParts, RunState> checkpoint;
  {
    Rollouts first(options({}));
    EXPECT_TRUE(first.phase.can_take_from_trainers());
    const Samples samples = first.collect(1);
    wanted = all_of(samples);
    EXPECT_FALSE(first.phase.waiting());
    first.phase.take_from_trainers(samples, 1);
    EXPECT_TRUE(first.phase.waiting());
    checkpoint = first.saved(0);
  }
  forget_run();
  {
    Rollouts second(options({}));
    second.restore(checkpoint);
    EXPECT_EQ(all_of(second.collect(1)), wanted);
    EXPECT_FALSE(second.phase.waiting());
  }
  forget_run();
  const Rollouts picky(options(decks_[2]));
  EXPECT_FALSE(picky.phase.can_take_from_trainers())
      << "it has taken groups out of several rollouts";
}

// Prompts beyond those that an iteration learns from begin again in the next one, also behind a
// restart.
TEST_F(Phases, SurplusPromptsAreCarriedOver) {
  const Overrides overrides{"rollout.over_sampling=2"};
  std::map<uint64_t, std::string> wanted;
  std::pair<StoredParts, RunState> checkpoint;
  {
    Rollouts first(options(overrides));
    const auto learned = all_of(first.collect(1));
    EXPECT_EQ(std::ssize(learned), prompts_of_an_iteration * answers_to_a_prompt);
    EXPECT_EQ(first.metrics.get("carried_groups"), 2);
    checkpoint = first.saved(1);
    ASSERT_EQ(checkpoint.second.carried.size(), 2u);
    for (const rollout::CarriedPrompt& one : checkpoint.second.carried) {
      EXPECT_FALSE(learned.contains(one.group << 20)) << "it is learned from already";
      EXPECT_EQ(iteration_of(one.group << 20), 2) << "the next one's";
    }
    wanted = all_of(first.collect(2));
  }
  forget_run();
  Rollouts second(options(overrides));
  second.restore(checkpoint);
  EXPECT_EQ(all_of(second.collect(2)), wanted);
  world().barrier();
}

// Held-out prompts are answered beside the training prompts of the iteration and change nothing of
// these.
TEST_F(Phases, AnEvaluationChangesNoRollout) {
  std::map<uint64_t, std::string> wanted;
  {
    Rollouts undisturbed(options({}));
    undisturbed.collect(1);
    wanted = all_of(undisturbed.collect(2));
  }
  forget_run();
  Rollouts rollouts(options({"eval.n_samples_per_prompt=3"}));
  rollouts.collect(1);
  const auto held_out = reward::load_prompts(
      rollouts.run.options, rollouts.run.options.data.prompt_dataset, rollouts.tokenizer, world());
  EXPECT_TRUE(rollouts.phase.evaluate(held_out, rollouts.metrics));
  EXPECT_TRUE(std::isfinite(rollouts.metrics.get("eval_reward")));
  EXPECT_FALSE(rollouts.phase.waiting());
  EXPECT_EQ(all_of(rollouts.collect(2)), wanted);
  world().barrier();
}

}  // namespace
}  // namespace trireme::driver
