// From rollouts to advantages against OpenRLHF (F4, F7-F15), and the balancing of sequences (DYN).
#include "torch/torch.hpp"

#include <ATen/TensorOperators.h>

#include <array>

#include "trireme/ppo/advantages.hpp"
#include "trireme/ppo/balance.hpp"
#include "trireme/ppo/experience.hpp"
#include "trireme/ppo/rewards.hpp"
#include "unit/ppo/parity_table.hpp"

namespace trireme::test {
namespace {

using at::Tensor;
using namespace ppo;

template <class T>
std::vector<T> to_vector(const Tensor& x) {
  std::vector<T> out;
  const Tensor dense = x.to(at::kDouble).reshape({-1});
  for (int64_t i = 0; i < dense.numel(); ++i) out.push_back(static_cast<T>(dense[i].item<double>()));
  return out;
}

std::optional<int64_t> integer(std::optional<double> x) { return x ? std::optional<int64_t>(static_cast<int64_t>(*x)) : std::nullopt; }

config::Estimator estimator(const GoldenCase& c) {
  const auto& words = config::Words<config::Estimator>::list;
  const auto found = std::find(std::begin(words), std::end(words), *c.word("estimator"));
  return static_cast<config::Estimator>(found - std::begin(words));
}

LengthPenalty penalty(const GoldenCase& c) {
  LengthPenalty out;
  out.overlong_buffer = integer(c.number("overlong_buffer_len"));
  out.overlong_factor = c.number("overlong_penalty_factor").value_or(1);
  out.max_new_tokens = static_cast<int64_t>(c.number("max_new_tokens").value_or(c.number("max_len").value_or(0)));
  out.stop_properly_coef = c.number("stop_properly_penalty_coef");
  return out;
}

RewardTable reward_table_of(const GoldenCase& c) {
  return {to_vector<float>(c.input("rewards")), to_vector<int64_t>(c.input("response_length")),
          to_vector<uint8_t>(c.input("truncated"))};
}

TEST(Parity, LengthPenalties) {
  const auto cases = Golden::instance().starting_with("penalty.");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) {
    expect_matches(*c, "rewards", at::tensor(apply_length_penalties(reward_table_of(*c), penalty(*c))));
  }
}

TEST(Parity, Baselines) {
  const auto cases = Golden::instance().starting_with("baseline.");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) {
    const auto rewards = to_vector<float>(c->input("rewards"));
    const auto n = static_cast<int64_t>(*c->number("n_samples_per_prompt"));
    expect_matches(*c, "shaped_rewards", at::tensor(apply_baseline(rewards, estimator(*c), n)));
    expect_matches(*c, "group_reward_std", at::tensor(group_std(rewards, n)));
  }
}

TEST(Parity, TokenRewards) {
  const auto cases = Golden::instance().starting_with("token_reward.");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) {
    const Tensor kl = c->input("kl");
    std::optional<config::Range> clip;
    if (const auto range = c->numbers("clip_range"); range.size() == 2) clip = {range[0], range[1]};
    expect_matches(*c, "token_rewards", token_rewards(to_vector<float>(c->input("r")), flat(kl), flat(c->input("action_mask")),
                                                      segments_of(kl), *c->number("kl_coef"), clip));
  }
}

TEST(Parity, GeneralizedAdvantages) {
  const auto cases = Golden::instance().starting_with("gae.");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) {
    const Tensor values = c->input("values");
    const auto got = generalized_advantages(flat(values), flat(c->input("rewards")), flat(c->input("action_mask")),
                                            segments_of(values), *c->number("gamma"), *c->number("lambda"));
    expect_matches(*c, "advantages", got.advantages);
    expect_matches(*c, "returns", got.returns);
  }
}

TEST(Parity, CumulativeReturns) {
  const auto cases = Golden::instance().starting_with("returns.");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) {
    const Tensor rewards = c->input("rewards");
    expect_matches(*c, "returns", cumulative_returns(flat(rewards), flat(c->input("action_mask")), segments_of(rewards), *c->number("gamma")));
  }
}

// The parts are taken as ranks: each whitens its own columns with sums over all.
TEST(Parity, Whitening) {
  const auto cases = Golden::instance().starting_with("whiten.");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) {
    const auto parts = static_cast<int>(*c->number("parts"));
    const Whiten how = *c->flag("no_std_norm") ? Whiten::center : Whiten::standardize;
    const auto part = [&](const char* name, int i) { return flat(c->input(name + std::to_string(i))); };
    std::vector<std::vector<double>> totals;  // of each collective call
    // First with sums that only record, once per call made so far, until every call's total is known.
    for (size_t calls = 0;; ++calls) {
      std::vector<double> total;
      for (int i = 0; i < parts; ++i) {
        size_t call = 0;
        const Sum sum = [&](std::span<double> x) {
          if (call < totals.size()) std::copy(totals[call].begin(), totals[call].end(), x.begin());
          if (call == totals.size()) {
            total.resize(x.size(), 0.0);
            for (size_t j = 0; j < x.size(); ++j) total[j] += x[j];
          }
          ++call;
        };
        const Tensor got = whiten(part("advantages_", i), part("action_mask_", i), how, sum);
        if (total.empty()) expect_matches(*c, "advantages_" + std::to_string(i), got);
      }
      if (total.empty()) break;
      totals.push_back(total);
    }
  }
}

// Golden rows as an experience: the columns of a row are its tokens.
Experience experience_of(const GoldenCase& c) {
  const Tensor mask = c.input("action_mask");
  Experience out;
  out.segments = segments_of(mask);
  out.mask = flat(mask).to(at::kByte);
  out.old_log_probs = flat(c.input("action_log_probs"));
  out.ref_log_probs = flat(c.input("base_action_log_probs"));
  out.values = flat(c.input("values"));
  out.samples.cu_seqlens = out.segments.cu_seqlens();
  return out;
}

void check_pipeline(const GoldenCase& c) {
  PipelineOptions options;
  options.estimator = estimator(c);
  options.n_samples_per_prompt = static_cast<int64_t>(*c.number("n_samples_per_prompt"));
  options.penalty = penalty(c);
  options.clip_range = config::Range{-10, 10};
  if (const auto range = c.numbers("reward_clip_range"); range.size() == 2) options.clip_range = {range[0], range[1]};
  options.kl_coef = *c.number("kl_coef");
  const std::string kl = c.word("kl_estimator").value_or("k1");
  options.kl_estimator = kl == "k3" ? config::KlEstimator::k3 : kl == "k2" ? config::KlEstimator::k2 : config::KlEstimator::k1;
  options.kl_in_loss = c.flag("kl_use_loss").value_or(false);
  options.gamma = *c.number("gamma");
  options.lambd = *c.number("lambd");
  options.no_std_norm = c.flag("no_std_norm").value_or(false);

  const RewardTable table = reward_table_of(c);
  std::vector<int64_t> rows(table.reward.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int64_t>(i);
  Experience experience = experience_of(c);
  const PipelineReport report = advantages(experience, table, rows, options, no_ranks);
  expect_matches(c, "rewards_after_penalty", at::tensor(apply_length_penalties(table, options.penalty)));
  expect_matches(c, "shaped_rewards", at::tensor(report.shaped_reward));
  expect_matches(c, "token_rewards", report.token_rewards);
  expect_matches(c, "returns", experience.returns);
  expect_matches(c, "advantages", experience.advantages);
  expect_matches(c, "info_return", at::tensor(report.returns));
  expect_matches(c, "info_kl", at::tensor(report.kl));
  expect_matches(c, "group_reward_std", at::tensor(report.group_std));
}

TEST(Parity, Pipeline) {
  const auto cases = Golden::instance().starting_with("pipeline.");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) check_pipeline(*c);
}

RolloutSequence rollout_of(const GoldenCase& c) {
  RolloutSequence out;
  out.ids = to_vector<int32_t>(c.input("observation_tokens"));
  out.log_probs = to_vector<float>(c.input("rollout_log_probs"));
  const auto ranges = to_vector<int64_t>(c.input("action_ranges"));
  for (size_t i = 0; i + 1 < ranges.size(); i += 2) out.action_ranges.emplace_back(ranges[i], ranges[i + 1]);
  return out;
}

TEST(Parity, ActionMask) {
  const auto cases = Golden::instance().starting_with("action_mask.r");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) {
    Samples samples;
    append_sequence(samples, rollout_of(*c), static_cast<int64_t>(*c->number("max_len")));
    samples.check();
    samples.reward = {0.f};
    const Experience experience = Experience::from(samples);
    const int64_t length = samples.tokens();
    expect_matches(*c, "sequences", at::tensor(samples.ids));
    expect_matches(*c, "attention_mask", at::ones({length}));
    expect_matches(*c, "action_mask", experience.mask.narrow(0, 1, length - 1));
    expect_matches(*c, "rollout_log_probs", experience.rollout_log_probs.narrow(0, 1, length - 1));
    expect_matches(*c, "response_length", static_cast<double>(response_lengths(samples)[0]));
    expect_matches(*c, "total_length", static_cast<double>(length));
    expect_matches(*c, "is_clipped", reward_table(samples).truncated[0]);
  }
}

// What the package pads to [B, L] is packed here: each row of the golden batch, its padding cut off, is one sequence.
TEST(Parity, ActionMaskOfABatch) {
  const GoldenCase& c = Golden::instance().at("action_mask.concat");
  Samples samples;
  for (const std::string& member : c.words("members")) {
    const GoldenCase& one = Golden::instance().at(member);
    append_sequence(samples, rollout_of(one), static_cast<int64_t>(*one.number("max_len")));
  }
  const Tensor ids = c.output("sequences"), mask = c.output("action_mask");
  const Tensor rollout = c.output("rollout_log_probs"), attended = c.output("attention_mask").sum(1);
  const Experience experience = Experience::from(samples);
  for (int64_t i = 0; i < samples.size(); ++i) {
    const int64_t length = samples.length(i), begin = samples.begin(i);
    ASSERT_EQ(length, attended[i].item<int64_t>());
    EXPECT_TRUE(at::equal(at::tensor(samples.ids).narrow(0, begin, length).to(at::kLong), ids[i].narrow(0, 0, length)));
    EXPECT_TRUE(at::equal(experience.mask.narrow(0, begin + 1, length - 1).to(at::kLong), mask[i].narrow(0, 0, length - 1)));
    EXPECT_TRUE(at::equal(experience.rollout_log_probs.narrow(0, begin + 1, length - 1), rollout[i].narrow(0, 0, length - 1)));
  }
  expect_matches(c, "response_length", at::tensor(response_lengths(samples)));
  EXPECT_EQ(experience.select(std::vector<int64_t>{2, 0}).samples, samples.select(std::vector<int64_t>{2, 0}));
}

// Bin and place of each item.
std::pair<Tensor, Tensor> places(const Bins& bins, size_t count) {
  std::vector<int64_t> bin(count, -1), place(count, -1);
  for (size_t b = 0; b < bins.size(); ++b) {
    for (size_t p = 0; p < bins[b].size(); ++p) {
      bin[static_cast<size_t>(bins[b][p])] = static_cast<int64_t>(b);
      place[static_cast<size_t>(bins[b][p])] = static_cast<int64_t>(p);
    }
  }
  return {at::tensor(bin), at::tensor(place)};
}

TEST(Parity, Partition) {
  const auto cases = Golden::instance().starting_with("partition.");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) {
    const auto lengths = to_vector<int64_t>(c->input("lengths"));
    const BinSize size = *c->flag("equal_size") ? BinSize::equal : BinSize::any;
    const auto [part, position] = places(balanced_bins(lengths, static_cast<int64_t>(*c->number("k")), size), lengths.size());
    expect_matches(*c, "part", part);
    expect_matches(*c, "position", position);
    expect_matches(*c, "min_micro_batches", static_cast<double>(first_fit_bins(lengths, static_cast<int64_t>(*c->number("max_tokens")))));
  }
}

TEST(Parity, Balance) {
  const auto cases = Golden::instance().starting_with("balance.");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase* c : cases) {
    const auto lengths = to_vector<int64_t>(c->input("lengths"));
    const auto [rank, position] = places(interleaved_bins(lengths, static_cast<int64_t>(*c->number("dp_size"))), lengths.size());
    expect_matches(*c, "rank", rank);
    expect_matches(*c, "position", position);
  }
}

}  // namespace
}  // namespace trireme::test
