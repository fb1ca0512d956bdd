// When the rollout's log-probs stand in for the trainer's: on a small model whose own log-probs are
// the rollout's.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "support/samples.hpp"
#include "trireme/learn/mismatch.hpp"
#include "trireme/learn/scoring.hpp"
#include "trireme/model/model_files.hpp"

namespace trireme::learn {
namespace {

using test::world;

constexpr int64_t version = 4;
constexpr int64_t sequences = 6;  // of each rank but the last of four, which has none

const model::ModelSpec& small_spec() {
  static const auto spec = [] {
    config::ModelShape shape;
    shape.vocab = 40;
    shape.hidden = 16;
    shape.layers = 2;
    shape.heads = 2;
    shape.kv_heads = 1;
    shape.head_dim = 8;
    shape.ffn = 24;
    shape.initializer_range = 0.3;
    return model::describe(shape, model::HeadKind::language);
  }();
  return spec;
}

class OldLogProbsOfARollout : public testing::Test {
 protected:
  OldLogProbsOfARollout()
      : actor_(model::frozen(small_spec()), world(), std::nullopt, at::kCPU,
               {.name = "actor", .compute = config::DType::f32}) {
    actor_.load([](size_t p, const base::Block& block, float* out) {
      model::initial_values(small_spec(), p, block, 3, out);
    });
  }

  // What generators with the trainer's bits would have drawn from weights `drawn`.
  ppo::Experience rollout(int64_t drawn = version) {
    std::vector<uint64_t> ids;
    for (int64_t i = 0; i < (world().rank() == 3 ? 0 : sequences); ++i)
      ids.push_back(static_cast<uint64_t>(5 * i + world().rank()));
    Samples samples = test::samples_of(ids);
    for (auto& id : samples.ids) id %= static_cast<int32_t>(small_spec().shape.vocab);
    for (size_t t = 0; t < samples.ids.size(); ++t)
      samples.version[t] = samples.action_mask[t] ? static_cast<int32_t>(drawn) : -1;
    const at::Tensor log_probs = computed(samples);
    samples.log_probs.assign(log_probs.const_data_ptr<float>(),
                             log_probs.const_data_ptr<float>() + log_probs.numel());
    return ppo::Experience::from(std::move(samples));
  }
  at::Tensor computed(const Samples& samples, int64_t micro_batch_tokens = 1000) {
    return action_log_probs(actor_, samples, {world(), micro_batch_tokens}, 1);
  }
  Mismatch evaluate(OldLogProbs& old, ppo::Experience& experience, int64_t weights = version) {
    return old.evaluate(experience, actor_, world(), weights, 1, at::kCPU);
  }
  static double actions_of_all_ranks(const ppo::Experience& experience) {
    return static_cast<double>(world().sum(experience.mask.sum().item<int64_t>()));
  }
  // Another log-prob for the first action of a sequence, in the samples and in the column.
  static void change(ppo::Experience& experience, int64_t sequence, float by) {
    const int64_t at = experience.samples.begin(sequence) + 2;
    experience.samples.log_probs[static_cast<size_t>(at)] += by;
    experience.rollout_log_probs = at::tensor(at::ArrayRef<float>(experience.samples.log_probs));
  }

  zero::ShardedModel actor_;
};

TEST_F(OldLogProbsOfARollout, TheSameBitsAreTakenOverAndASampleIsCompared) {
  OldLogProbs old({}, {});
  auto experience = rollout();
  const Mismatch mismatch = evaluate(old, experience);
  EXPECT_TRUE(at::equal(experience.old_log_probs, experience.rollout_log_probs));
  EXPECT_EQ(mismatch.max, 0);
  EXPECT_GT(mismatch.tokens, 0);
  EXPECT_LT(mismatch.tokens, actions_of_all_ranks(experience))
      << "the pass over all of them was not made";
  const at::Tensor before = experience.rollout_log_probs.clone();
  experience.old_log_probs.zero_();
  EXPECT_TRUE(at::equal(experience.rollout_log_probs, before)) << "a copy of its own";
}

TEST_F(OldLogProbsOfARollout, ThePassIsMadeWhereBitsMayDiffer) {
  config::Options always;
  always.train.old_log_probs = config::OldLogProbs::always;
  OldLogProbs by_deck(always, {});
  OldLogProbs by_generator({}, {"other kernels"});
  for (OldLogProbs* old : {&by_deck, &by_generator}) {
    auto experience = rollout();
    EXPECT_EQ(evaluate(*old, experience).tokens, actions_of_all_ranks(experience));
    EXPECT_TRUE(at::equal(experience.old_log_probs, computed(experience.samples)));
  }
}

TEST_F(OldLogProbsOfARollout, OtherWeightsOnAnyRankMeanAPassOnAll) {
  OldLogProbs old({}, {});
  auto stale = rollout(world().rank() == 0 ? version - 1 : version);
  EXPECT_EQ(evaluate(old, stale).tokens, actions_of_all_ranks(stale));
  auto unknown = rollout();
  EXPECT_EQ(evaluate(old, unknown, -1).tokens, actions_of_all_ranks(unknown));
  auto fresh = rollout();
  EXPECT_LT(evaluate(old, fresh).tokens, actions_of_all_ranks(fresh))
      << "trusted again: nothing was found to differ";
}

// Two sequences a rank are compared, others in each iteration: a difference is found within three,
// and trust is gone for good.
TEST_F(OldLogProbsOfARollout, ADifferenceIsFoundAndEndsTheTrust) {
  for (const int64_t sequence : {0, 3, 5}) {
    OldLogProbs old({}, {});
    int64_t found = -1;
    for (int64_t weights = 0; weights < sequences / 2; ++weights) {
      auto experience = rollout(weights);
      if (world().rank() == 0) change(experience, sequence, -0.25f);
      testing::internal::CaptureStderr();
      const Mismatch mismatch = evaluate(old, experience, weights);
      const std::string said = testing::internal::GetCapturedStderr();
      EXPECT_EQ(said.find("are not those of the trainer") != std::string::npos,
                world().rank() == 0 && mismatch.max > 0)
          << said;
      if (mismatch.max == 0) continue;
      found = weights;
      EXPECT_NEAR(mismatch.max, 0.25, 1e-6);
      EXPECT_TRUE(at::equal(experience.old_log_probs, computed(experience.samples)))
          << "the trainer's, not the rollout's";
      break;
    }
    EXPECT_EQ(found, sequence / 2) << "sequence " << sequence;
    auto good = rollout();
    EXPECT_EQ(evaluate(old, good).tokens, actions_of_all_ranks(good));
  }
}

TEST_F(OldLogProbsOfARollout, MicroBatchesDoNotMatter) {
  const auto experience = rollout();
  const at::Tensor whole = computed(experience.samples);
  for (const int64_t tokens : {1, 20, 45}) {
    const at::Tensor cut = computed(experience.samples, tokens);
    EXPECT_TRUE(at::allclose(cut, whole, 0, 1e-5)) << tokens;
    EXPECT_TRUE(at::equal(cut.ne(0), experience.mask.ne(0))) << "0 beside the actions";
  }
  EXPECT_EQ(computed(Samples{}).numel(), 0);
}

}  // namespace
}  // namespace trireme::learn
