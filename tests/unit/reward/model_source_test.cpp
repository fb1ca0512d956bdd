// The reward model as a source against OpenRLHF's scores (F5), on any number of ranks.
#include "torch/torch.hpp"

#include "trireme/reward/model_source.hpp"

#include <gtest/gtest.h>

#include "support/golden.hpp"
#include "support/world.hpp"
#include "unit/reward/support.hpp"

namespace trireme::test {
namespace {

using at::Tensor;

// The attended tokens of each row of a golden batch.
std::vector<reward::Request> requests_of(const GoldenCase& c) {
  const Tensor ids = c.input("sequences"), attended = c.input("attention_mask").to(at::kBool);
  std::vector<reward::Request> out;
  for (int64_t i = 0; i < ids.size(0); ++i) {
    const Tensor row = at::masked_select(ids[i], attended[i]).contiguous();
    reward::Request one;
    one.id = static_cast<uint64_t>(i);
    const int64_t* data = row.const_data_ptr<int64_t>();
    one.ids.assign(data, data + row.numel());
    out.push_back(one);
  }
  return out;
}

std::unique_ptr<reward::Source> reward_model(int64_t batch_tokens, bool normalize,
                                             comm::Progress* progress = nullptr) {
  config::RewardSource options;
  options.kind = config::RewardKind::model;
  options.path = (Golden::folder() / "models" / "reward_model").string();
  options.batch_tokens = batch_tokens;
  reward::ModelEnvironment environment;
  environment.ranks = world();
  environment.dtype = config::DType::f32;
  environment.normalize = normalize;
  environment.progress = progress;
  return reward::make_model(options, "judge", environment);
}

TEST(ModelSource, ScoresEqualTheReference) {
  const auto cases = Golden::instance().starting_with("reward_model.heads");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) {
    const auto source = reward_model(
        40, c->flag("normalize_reward").value_or(false));  // small passes: several rounds
    const auto all = requests_of(*c);
    EXPECT_TRUE(c->matches("reward", at::tensor(source->score(all).values))) << c->name;

    // Ranks with different numbers of requests, one with none.
    const auto rank = static_cast<size_t>(world().rank());
    const std::vector<reward::Request> mine(
        all.begin(), all.begin() + static_cast<std::ptrdiff_t>(rank == 0 ? all.size() : rank - 1));
    const auto scores = source->score(mine);
    ASSERT_EQ(scores.values.size(), mine.size());
    const Tensor want = c->output("reward").reshape({-1});
    for (size_t i = 0; i < mine.size(); ++i)
      EXPECT_NEAR(scores.values[i], want[static_cast<int64_t>(i)].item<float>(), 1e-4);
  }
}

TEST(ModelSource, OthersAreLookedAfterBetweenMicroBatches) {
  const auto all = requests_of(*Golden::instance().starting_with("reward_model.heads").front());
  const auto mine = world().rank() == 0 ? all : std::vector<reward::Request>{};
  int64_t looks = 0;
  comm::Progress progress;
  progress.add([&looks] { return ++looks; });
  reward_model(1 << 20, false, &progress)->score(mine);
  EXPECT_EQ(looks, 1) << "of ranks without sequences, too";
  looks = 0;
  reward_model(1, false, &progress)->score(mine);
  EXPECT_EQ(looks, std::ssize(all)) << "a sequence a micro-batch";
}

// One rank has heard of a stop: all leave the pass after the same micro-batch.
TEST(ModelSource, APassIsLeftByAllRanksTogether) {
  struct Watch : comm::LeaveWatch {
    bool leaves_inside() const override { return true; }
    job::StopReason wish() override {
      return heard ? job::StopReason::stop_file : job::StopReason::none;
    }
    void waited() override {}
    bool heard = false;
  } watch;
  comm::Progress progress(&watch);
  int64_t looks = 0;
  progress.add([&] {
    watch.heard = ++looks >= 2 && world().rank() == world().size() - 1;
    return 0;
  });
  const auto all = requests_of(*Golden::instance().starting_with("reward_model.heads").front());
  ASSERT_GT(all.size(), 2u);
  const auto source = reward_model(1, false, &progress);
  EXPECT_TRUE(source->score(world().rank() == 0 ? all : std::vector<reward::Request>{}).left);
  EXPECT_EQ(looks, 2);
  EXPECT_EQ(progress.reason(), job::StopReason::stop_file);
}

TEST(ModelSource, LanguageModelIsRefused) {
  config::RewardSource options;
  options.path = (Golden::folder() / "models" / "llama_untied").string();
  reward::ModelEnvironment environment;
  environment.ranks = world();
  expect_error(ExitCode::bad_data, "language model",
               [&] { reward::make_model(options, "judge", environment); });
}

}  // namespace
}  // namespace trireme::test
