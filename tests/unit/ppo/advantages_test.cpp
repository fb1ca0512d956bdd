// The whole pipeline from rewards to advantages against its definition, written out sequence by
// sequence in double: explicit sums instead of scans, one prompt's rewards at a time. Rollouts have
// empty sequences, gaps in the mask, sequences without actions.
#include "torch/torch.hpp"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "support/one_rank.hpp"
#include "trireme/ppo/advantages.hpp"
#include "trireme/ppo/experience.hpp"

namespace trireme::test {
namespace {

using at::Tensor;
using namespace ppo;
using config::Estimator;
using Numbers = std::vector<double>;

constexpr Estimator estimators[] = {Estimator::gae,
                                    Estimator::reinforce,
                                    Estimator::rloo,
                                    Estimator::reinforce_baseline,
                                    Estimator::group_norm,
                                    Estimator::dr_grpo,
                                    Estimator::flash_reinforce};

Numbers numbers(const Tensor& x) {
  const Tensor wide = x.to(at::kDouble).contiguous();
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

// A rollout of `prompts` groups of n; masked columns hold NaN where nothing may read them.
struct Rollout {
  Experience experience;
  RewardTable table;

  Rollout(uint64_t seed, int64_t prompts, int64_t n) : random_(seed) {
    Samples samples;
    for (int64_t i = 0; i < prompts * n; ++i) add(samples, static_cast<uint64_t>(i));
    experience = Experience::from(samples);
    experience.old_log_probs = column(-2, 0);
    experience.ref_log_probs = experience.old_log_probs + column(-0.4, 0.4);
    experience.values = column(-1, 1);
    table = reward_table(samples);
  }

 private:
  double draw(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  void add(Samples& samples, uint64_t id) {
    const auto length = static_cast<int64_t>(random_() % 9);
    SequenceRecord sequence{id,
                            0,
                            std::vector<int32_t>(static_cast<size_t>(length), 7),
                            {},
                            std::vector<float>(static_cast<size_t>(length), -1.f)};
    for (int64_t t = std::min<int64_t>(1, length); t < length; t += 2) {
      if (random_() % 3 != 0)
        sequence.action_ranges.emplace_back(
            t, std::min(t + 1 + static_cast<int64_t>(random_() % 2), length));
    }
    sequence.finish_reason = random_() % 3 == 0 ? FinishReason::length : FinishReason::stop;
    samples.add(sequence, 100);
    samples.reward.push_back(static_cast<float>(draw(-3, 3)));
  }
  Tensor column(double low, double high) {
    std::vector<float> out(static_cast<size_t>(experience.tokens()));
    for (size_t t = 0; t < out.size(); ++t) {
      const bool is_action = experience.samples.action_mask[t] != 0;
      out[t] =
          is_action ? static_cast<float>(draw(low, high)) : std::numeric_limits<float>::quiet_NaN();
    }
    return at::tensor(out);
  }
  std::mt19937_64 random_;
};

PipelineOptions options_for(Estimator estimator, int64_t n) {
  PipelineOptions out;
  out.estimator = estimator;
  out.n_samples_per_prompt = n;
  out.penalty = {
      .overlong_buffer = 3, .overlong_factor = 0.5, .max_new_tokens = 6, .stop_properly_coef = 0.5};
  out.clip_range = config::Range{-1.5, 1.2};
  out.kl_coef = 0.1;
  out.gae.gamma = 0.9;
  out.gae.lambda = 0.8;
  return out;
}

// The definition.
struct Expected {
  Numbers advantages, returns, token_rewards;
};

double shaped_reward(const RewardTable& table, const PipelineOptions& o, size_t sample) {
  const auto penalised = [&](size_t i) {
    const double over = static_cast<double>(
        table.response_length[i] - (o.penalty.max_new_tokens - *o.penalty.overlong_buffer));
    const double buffer = static_cast<double>(*o.penalty.overlong_buffer);
    const double reward =
        table.reward[i] - std::clamp(over / buffer, 0.0, 1.0) * o.penalty.overlong_factor;
    return table.truncated[i] != 0 ? reward * *o.penalty.stop_properly_coef : reward;
  };
  const bool whole = o.estimator == Estimator::flash_reinforce;
  const auto n = whole ? table.reward.size() : static_cast<size_t>(o.n_samples_per_prompt);
  const size_t first = sample / n * n;
  Numbers group;
  for (size_t i = first; i < first + n; ++i) group.push_back(penalised(i));
  const double own = penalised(sample);
  const double mean = std::accumulate(group.begin(), group.end(), 0.0) / static_cast<double>(n);
  double squares = 0;
  for (const double reward : group) squares += (reward - mean) * (reward - mean);
  switch (o.estimator) {
    case Estimator::gae:
    case Estimator::reinforce: return own;
    case Estimator::rloo:
      return own - (mean * static_cast<double>(n) - own) / static_cast<double>(n - 1);
    case Estimator::group_norm:
      return (own - mean) / (std::sqrt(squares / static_cast<double>(n - 1)) + 1e-9);
    default: return own - mean;
  }
}

Numbers token_rewards_of(const Rollout& r, const PipelineOptions& o, size_t sample) {
  const auto& s = r.experience.samples;
  const auto begin = static_cast<size_t>(s.begin(static_cast<int64_t>(sample)));
  const auto length = static_cast<size_t>(s.length(static_cast<int64_t>(sample)));
  const Numbers old = numbers(r.experience.old_log_probs),
                reference = numbers(r.experience.ref_log_probs);
  Numbers out(length, 0.0);
  size_t last = length;
  for (size_t t = 0; t < length; ++t) {
    if (s.action_mask[begin + t] == 0) continue;
    out[t] = -o.kl_coef * (old[begin + t] - reference[begin + t]);
    last = t;
  }
  if (length > 0)
    out[last == length ? length - 1 : last] +=
        std::clamp(shaped_reward(r.table, o, sample), (*o.clip_range)[0], (*o.clip_range)[1]);
  return out;
}

Expected expected(const Rollout& r, const PipelineOptions& o) {
  const auto& s = r.experience.samples;
  const Numbers values = numbers(r.experience.values);
  const bool gae = o.estimator == Estimator::gae;
  const double gamma = gae || o.estimator == Estimator::reinforce ? o.gae.gamma : 1;
  Expected out;
  for (size_t i = 0; i < static_cast<size_t>(s.size()); ++i) {
    const Numbers rewards = token_rewards_of(r, o, i);
    const auto begin = static_cast<size_t>(s.begin(static_cast<int64_t>(i)));
    const auto action = [&](size_t t) {
      return t < rewards.size() && s.action_mask[begin + t] != 0;
    };
    const auto value = [&](size_t t) { return action(t) ? values[begin + t] : 0.0; };
    const auto reward = [&](size_t t) { return action(t) ? rewards[t] : 0.0; };
    for (size_t t = 0; t < rewards.size(); ++t) {
      double sum = 0;
      for (size_t k = t; k < rewards.size(); ++k) {
        const double steps = static_cast<double>(k - t);
        const double delta = reward(k) + gamma * value(k + 1) - value(k);
        sum += gae ? std::pow(gamma * o.gae.lambda, steps) * delta
                   : std::pow(gamma, steps) * reward(k);
      }
      out.advantages.push_back(sum);
      out.returns.push_back(gae ? sum + value(t) : sum);
    }
    out.token_rewards.insert(out.token_rewards.end(), rewards.begin(), rewards.end());
  }
  if (gae || o.estimator == Estimator::reinforce || o.estimator == Estimator::reinforce_baseline) {
    double count = 0, sum = 0, squares = 0;
    for (size_t t = 0; t < out.advantages.size(); ++t) {
      if (s.action_mask[t] != 0) count += 1, sum += out.advantages[t];
    }
    for (size_t t = 0; t < out.advantages.size(); ++t) {
      if (s.action_mask[t] != 0) squares += std::pow(out.advantages[t] - sum / count, 2);
    }
    for (double& a : out.advantages) a = (a - sum / count) / std::sqrt(squares / count);
  }
  return out;
}

// On action columns; what others hold is of no use.
void expect_near(const Tensor& got, const Numbers& want, const std::vector<uint8_t>& mask,
                 const char* what) {
  const Numbers values = numbers(got);
  ASSERT_EQ(values.size(), want.size());
  for (size_t t = 0; t < want.size(); ++t) {
    if (mask[t] == 0) continue;
    EXPECT_NEAR(values[t], want[t], 2e-5 * (1 + std::abs(want[t]))) << what << ", column " << t;
  }
}

std::vector<int64_t> rows_of(const Experience& experience) {
  std::vector<int64_t> rows(static_cast<size_t>(experience.sequences()));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  return rows;
}

TEST(Advantages, FollowTheirDefinition) {
  for (const Estimator estimator : estimators) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      SCOPED_TRACE(testing::Message() << config::to_string(estimator) << ", seed " << seed);
      const PipelineOptions options = options_for(estimator, 4);
      Rollout rollout(seed, 5, 4);
      const Expected want = expected(rollout, options);
      const PipelineReport report = advantages(rollout.experience, rollout.table,
                                               rows_of(rollout.experience), options, no_ranks);
      const auto& mask = rollout.experience.samples.action_mask;
      const std::vector<uint8_t> everywhere(mask.size(),
                                            1);  // a sequence without actions has its reward, too
      expect_near(report.token_rewards, want.token_rewards, everywhere, "token rewards");
      expect_near(rollout.experience.returns, want.returns, mask, "returns");
      expect_near(rollout.experience.advantages, want.advantages, mask, "advantages");
      for (size_t i = 0; i < report.shaped_reward.size(); ++i)
        EXPECT_NEAR(report.shaped_reward[i], shaped_reward(rollout.table, options, i), 1e-5);
    }
  }
}

// Which rank has a sequence, and in which order, changes nothing about it.
TEST(Advantages, DoNotDependOnTheOrderOfSequences) {
  for (const Estimator estimator : estimators) {
    const PipelineOptions options = options_for(estimator, 3);
    Rollout rollout(17, 6, 3);
    std::vector<int64_t> shuffled = rows_of(rollout.experience);
    std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937_64(5));
    Experience other = rollout.experience.select(shuffled);
    advantages(rollout.experience, rollout.table, rows_of(rollout.experience), options, no_ranks);
    advantages(other, rollout.table, shuffled, options, no_ranks);
    const Experience want = rollout.experience.select(shuffled);
    expect_near(other.advantages, numbers(want.advantages), other.samples.action_mask,
                config::to_string(estimator).data());
    expect_near(other.returns, numbers(want.returns), other.samples.action_mask, "returns");
  }
}

TEST(Advantages, OfOneSampleAndOfNone) {
  for (const Estimator estimator :
       {Estimator::gae, Estimator::reinforce, Estimator::flash_reinforce}) {
    Rollout one(3, 1, 1);
    advantages(one.experience, one.table, rows_of(one.experience), options_for(estimator, 1),
               no_ranks);
    EXPECT_EQ(one.experience.advantages.numel(), one.experience.tokens());
    Rollout none(3, 0, 1);
    const PipelineReport report =
        advantages(none.experience, none.table, {}, options_for(estimator, 1), no_ranks);
    EXPECT_TRUE(report.returns.empty());
    EXPECT_EQ(none.experience.advantages.numel(), 0);
  }
}

TEST(Whiten, EqualAdvantagesBecomeZero) {
  for (const float value : {0.f, 0.1f, -3.3f, 1e6f}) {
    for (const int64_t count : {1, 2, 3, 7, 1000}) {
      const Tensor white = whiten(at::full({count}, value), at::ones({count}, at::kByte),
                                  Whiten::standardize, no_ranks);
      EXPECT_EQ(white.abs().max().item<float>(), 0.f) << count << " x " << value;
    }
  }
  EXPECT_EQ(
      whiten(at::zeros({0}), at::zeros({0}, at::kByte), Whiten::standardize, no_ranks).numel(), 0);
  const Tensor masked =
      whiten(at::full({4}, 0.25), at::zeros({4}, at::kByte), Whiten::standardize, no_ranks);
  EXPECT_TRUE(at::isfinite(masked).all().item<bool>()) << "nothing to take a mean of";
}

// Far from 0 the variance must not be the difference of two large numbers.
TEST(Whiten, KeepsItsDigitsFarFromZero) {
  const Tensor small = at::arange(64, at::kFloat) * 0.25;
  const Tensor mask = at::ones({64}, at::kByte);
  const Tensor near_zero = whiten(small, mask, Whiten::standardize, no_ranks);
  const Tensor far = whiten(small + 1e6, mask, Whiten::standardize, no_ranks);
  EXPECT_LT((far - near_zero).abs().max().item<float>(), 1e-5);
}

}  // namespace
}  // namespace trireme::test
