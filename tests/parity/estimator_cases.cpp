// Estimators and combinations of verl, TRL and NeMo-RL (F38, F43, F44), and what several turns make
// of advantages and losses (F53-F57).
#include "torch/torch.hpp"

#include <ATen/TensorOperators.h>

#include <map>

#include "parity/cases.hpp"
#include "parity/ranks.hpp"
#include "parity/registry.hpp"
#include "trireme/ppo/advantages.hpp"
#include "trireme/ppo/experience.hpp"
#include "trireme/ppo/kl.hpp"
#include "trireme/ppo/losses.hpp"
#include "trireme/ppo/rewards.hpp"

namespace trireme::test {
namespace {

using at::Tensor;
using namespace ppo;

std::vector<float> floats(const Tensor& x) {
  const Tensor dense = x.to(at::kFloat).contiguous();
  return {dense.const_data_ptr<float>(), dense.const_data_ptr<float>() + dense.numel()};
}

// Places of the members of each group.
std::map<int64_t, std::vector<size_t>> groups_of(const GoldenCase& c) {
  const Tensor groups = c.input("groups");
  std::map<int64_t, std::vector<size_t>> out;
  for (int64_t i = 0; i < groups.numel(); ++i)
    out[groups[i].item<int64_t>()].push_back(static_cast<size_t>(i));
  return out;
}

// What an estimator makes of rewards in groups of any sizes, in any order.
std::vector<float> compared(const GoldenCase& c, std::vector<float> rewards,
                            config::Estimator estimator) {
  for (const auto& [group, members] : groups_of(c)) {
    std::vector<float> of_group;
    for (const size_t i : members) of_group.push_back(rewards[i]);
    compare_group(of_group, estimator);
    for (size_t k = 0; k < members.size(); ++k) rewards[members[k]] = of_group[k];
  }
  return rewards;
}

// Values of sequences on each of their columns.
Tensor on_columns(const std::vector<float>& values, const Tensor& mask) {
  return flat(at::tensor(values).unsqueeze(1).expand_as(mask)).contiguous();
}

config::AdvantageGaps gaps(const GoldenCase& c) {
  return choice(c, "gaps", config::AdvantageGaps::decay);
}

GaeOptions gae_options(const GoldenCase& c) {
  GaeOptions out;
  out.gamma = c.number("gamma").value_or(1);
  out.lambda = c.number("lambda").value_or(c.number("lambda_policy").value_or(1));
  out.lambda_value = c.number("lambda_value");
  out.length_adaptive_alpha = c.number("length_adaptive_alpha").value_or(0);
  out.gaps = gaps(c);
  return out;
}

PolicyLossOptions clips(const GoldenCase& c) {
  PolicyLossOptions out;
  out.clip_low = *c.number("eps_low");
  out.clip_high = *c.number("eps_high");
  out.dual_clip = c.number("dual_clip");
  out.aggregation = choice(c, "loss_agg", config::LossAggregation::token_mean);
  return out;
}

Normalizer totals(const GoldenCase& c) {
  Normalizer out;
  out.sequences = c.number("global_batch_size");
  out.sequence_tokens = c.number("loss_scale_factor").value_or(1);
  return out;
}

void check_loss(const GoldenCase& c, const Tensor& advantages, const Tensor& mask) {
  const PolicyLossInput in{
      leaf(c.input("log_probs")), flat(c.input("old_log_probs")), {}, advantages, flat(mask),
      segments_of(mask)};
  const PolicyLoss got = policy_loss(in, clips(c), totals(c));
  got.loss.backward();
  expect_matches(c, "loss", got.loss);
  expect_matches(c, "grad_log_probs", in.log_probs.grad());
}

void check_dr_grpo(const GoldenCase& c) {
  const auto shaped = compared(c, floats(c.input("rewards")), config::Estimator::dr_grpo);
  const Tensor mask = c.input("action_mask");
  expect_matches(c, "advantages", at::tensor(shaped));
  check_loss(c, on_columns(shaped, mask), mask);
}

void check_dapo(const GoldenCase& c) {
  const Tensor mask = c.input("action_mask"), lengths = c.input("response_length");
  const auto rewards = floats(c.input("rewards"));
  const auto most = static_cast<int64_t>(*c.number("max_new_tokens"));
  RewardTable table;
  table.reward = rewards;
  for (int64_t i = 0; i < lengths.numel(); ++i)
    table.response_length.push_back(std::min(lengths[i].item<int64_t>(), most));
  table.truncated.assign(rewards.size(), 0);
  LengthPenalty penalty;
  penalty.overlong_buffer = static_cast<int64_t>(*c.number("overlong_buffer_len"));
  penalty.overlong_factor = *c.number("overlong_penalty_factor");
  penalty.max_new_tokens = most;
  const auto after = apply_length_penalties(table, penalty);
  const auto shaped = compared(c, after, config::Estimator::group_norm);
  const auto range = c.numbers("dynamic_filtering_range");
  std::vector<float> kept(rewards.size());
  for (const auto& [group, members] : groups_of(c)) {
    std::vector<float> raw;
    for (const size_t i : members) raw.push_back(rewards[i]);
    for (const size_t i : members) kept[i] = keep_group(raw, {range[0], range[1]}) ? 1.f : 0.f;
  }
  expect_matches(c, "kept", at::tensor(kept));
  expect_matches(c, "shaped_rewards", at::tensor(after));
  expect_matches(c, "advantages", at::tensor(shaped));
  check_loss(c, on_columns(shaped, mask), mask * at::tensor(kept).to(at::kLong).unsqueeze(1));
}

void check_vapo_gae(const GoldenCase& c) {
  const Tensor mask = c.input("action_mask");
  const GaeOptions options = gae_options(c);
  const auto got = generalized_advantages(flat(c.input("values")), flat(c.input("token_rewards")),
                                          flat(mask), segments_of(mask), options);
  std::vector<double> lambdas;
  for (int64_t i = 0; i < mask.size(0); ++i)
    lambdas.push_back(policy_lambda(options, mask[i].sum().item<int64_t>()));
  expect_matches(c, "lambda_policy", at::tensor(lambdas));
  expect_matches(c, "advantages", got.advantages);
  expect_matches(c, "returns", got.returns);
}

void check_vapo_loss(const GoldenCase& c) {
  const Tensor rows = c.input("action_mask");
  const Tensor mask = flat(rows);
  const Segments segments = segments_of(rows);
  const PolicyLossInput in{leaf(c.input("log_probs")),
                           flat(c.input("old_log_probs")),
                           {},
                           flat(c.input("advantages")),
                           mask,
                           segments};
  const PolicyLoss policy = policy_loss(in, clips(c), {});
  const Tensor nll = positive_nll(in.log_probs, c.input("rewards") > 0, {mask, segments});
  const Tensor loss = policy.loss + nll * *c.number("positive_nll_coef");
  loss.backward();
  expect_matches(c, "policy_loss", policy.loss);
  expect_matches(c, "nll", nll);
  expect_matches(c, "loss", loss);
  expect_matches(c, "grad_log_probs", in.log_probs.grad());
}

}  // namespace

void check_combination(const GoldenCase& c) {
  if (c.name.starts_with("combos.dr_grpo")) return check_dr_grpo(c);
  if (c.name.starts_with("combos.dapo")) return check_dapo(c);
  if (c.name.starts_with("combos.vapo_gae")) return check_vapo_gae(c);
  if (c.name.starts_with("combos.vapo_loss")) return check_vapo_loss(c);
  ADD_FAILURE() << "there is no check for " << c.name;
}

void check_gdpo(const GoldenCase& c) {
  const bool sequences = c.word("whiten") == "sequences";
  const auto estimator = sequences ? config::Estimator::gdpo_sequences : config::Estimator::gdpo;
  const Tensor rewards = c.input("rewards"), mask = c.input("action_mask");
  const auto weights = c.numbers("reward_weights");
  std::vector<double> sum(static_cast<size_t>(rewards.size(0)));
  for (int64_t k = 0; k < rewards.size(1); ++k) {
    const auto one = compared(c, floats(rewards.select(1, k)), estimator);
    const double weight = weights.empty() ? 1 : weights[static_cast<size_t>(k)];
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += weight * static_cast<double>(one[i]);
  }
  std::vector<float> summed(sum.begin(), sum.end());
  expect_matches(c, "summed", at::tensor(summed));
  if (sequences) {
    whiten_sequences(summed);
    expect_matches(c, "advantages", select(on_columns(summed, mask), flat(mask)));
  } else {
    const Sum alone = [](std::span<double>) {};
    expect_matches(c, "advantages",
                   whiten(on_columns(summed, mask), flat(mask), Whiten::unbiased, alone));
  }
}

// Rewards that are compared already (groups of any sizes), then the program's own pipeline, with
// the rows dealt out to the ranks.
void check_reinforce_plus_plus(const GoldenCase& c) {
  const auto estimator = choice(c, "variant", config::Estimator::reinforce_plus_plus);
  const Tensor mask = c.input("action_mask");
  const int64_t count = mask.size(0);
  const auto shaped = compared(c, floats(c.input("rewards")), estimator);
  const std::vector<int64_t> rows = dealt(count);
  const Tensor index = at::tensor(rows, at::kLong);
  const auto column = [&](const char* field) {
    return c.has_input(field) ? flat(c.input(field).index_select(0, index)) : Tensor{};
  };
  Experience experience;
  experience.segments = segments_of(mask.index_select(0, index));
  experience.mask = flat(mask.index_select(0, index)).to(at::kByte);
  experience.old_log_probs = column("log_probs");
  experience.ref_log_probs = column("ref_log_probs");
  experience.samples.cu_seqlens = experience.segments.cu_seqlens();
  PipelineOptions options;
  options.estimator = estimator;
  options.kl_coef = c.number("kl_coef").value_or(0);
  options.kl_estimator = choice(c, "kl_estimator", config::KlEstimator::k1);
  options.gae.gamma = c.number("gamma").value_or(1);
  options.gae.gaps = choice(c, "gaps", config::AdvantageGaps::skip);
  PipelineReport report;
  for (const int64_t row : rows) report.shaped_reward.push_back(shaped[static_cast<size_t>(row)]);
  spread_rewards(experience, report, options, sum_over_ranks);
  const auto whole = [&](const Tensor& mine) { return rows_of_all(mine, count); };
  if (c.has_output("token_rewards"))
    expect_matches(c, "token_rewards", whole(select(report.token_rewards, experience.mask)));
  if (c.has_output("returns"))
    expect_matches(c, "returns", whole(select(experience.returns, experience.mask)));
  expect_matches(c, "advantages", whole(select(experience.advantages, experience.mask)));
}

namespace {

void check_turn_gae(const GoldenCase& c) {
  const Tensor rows = c.input("action_mask");
  auto got = generalized_advantages(flat(c.input("values")), flat(c.input("token_rewards")),
                                    flat(rows), segments_of(rows), gae_options(c));
  if (const auto how = c.word("whiten")) {
    const Sum alone = [](std::span<double>) {};
    got.advantages = whiten(got.advantages, flat(rows),
                            how == "unbiased" ? Whiten::unbiased : Whiten::standardize, alone);
  }
  expect_matches(c, "advantages", got.advantages);
  expect_matches(c, "returns", got.returns);
}

void check_turn_returns(const GoldenCase& c) {
  const Tensor rows = c.input("action_mask");
  expect_matches(c, "returns",
                 cumulative_returns(flat(c.input("token_rewards")), flat(rows), segments_of(rows),
                                    *c.number("gamma"), gaps(c)));
}

void check_turn_group(const GoldenCase& c) {
  const Tensor mask = c.input("action_mask");
  const auto rewards = floats(c.input("turn_rewards").sum(1));
  const auto estimator = choice(c, "estimator", config::Estimator::group_norm);
  const auto shaped = compared(c, rewards, estimator);
  expect_matches(c, "episode_reward", at::tensor(rewards));
  expect_matches(c, "advantages", at::tensor(shaped));
  const Tensor at_end = token_rewards({shaped}, at::zeros({mask.numel()}), flat(mask),
                                      segments_of(mask), 0, std::nullopt);
  expect_matches(c, "token_advantages",
                 select(cumulative_returns(at_end, flat(mask), segments_of(mask), 1,
                                           config::AdvantageGaps::skip),
                        flat(mask)));
}

void check_turn_kl_loss(const GoldenCase& c) {
  const Tensor rows = c.input("action_mask"), log_probs = leaf(c.input("log_probs"));
  config::KlOptions options;
  options.estimator = choice(c, "kl_estimator", config::KlEstimator::k1);
  const Tensor loss = kl_loss(log_probs, flat(c.input("ref_log_probs")), {}, options,
                              {flat(rows), segments_of(rows)});
  loss.backward();
  expect_matches(c, "loss", loss);
  expect_matches(c, "grad_log_probs", log_probs.grad());
}

// F57: both ways to pass gaps give the same where there are none.
void check_single_turn(const GoldenCase& c) {
  const Tensor rows = c.input("action_mask");
  const Tensor mask = flat(rows);
  const Segments segments = segments_of(rows);
  const Tensor kl = select(approximate_kl(select(flat(c.input("old_log_probs")), mask),
                                          select(flat(c.input("ref_log_probs")), mask),
                                          choice(c, "kl_estimator", config::KlEstimator::k1)),
                           mask);
  const auto of_sequences = floats(c.input("rewards"));
  const Tensor rewards =
      token_rewards({of_sequences}, kl, mask, segments, *c.number("kl_coef"), std::nullopt);
  expect_matches(c, "token_rewards", rewards);
  for (const auto how : {config::AdvantageGaps::skip, config::AdvantageGaps::decay}) {
    GaeOptions options = gae_options(c);
    options.gaps = how;
    const auto got =
        generalized_advantages(flat(c.input("values")), rewards, mask, segments, options);
    expect_matches(c, "advantages", got.advantages);
    expect_matches(c, "returns", got.returns);
    expect_matches(c, "cumulative_returns",
                   cumulative_returns(rewards, mask, segments, options.gamma, how));
  }
}

}  // namespace

void check_turns(const GoldenCase& c) {
  const std::string kind = c.name.substr(6, c.name.find('.', 6) - 6);
  if (kind == "batch") return check_batch_of_episodes(c);
  if (kind == "token_rewards") return check_turn_token_rewards(c);
  if (kind == "gae" || kind == "gae_whitened") return check_turn_gae(c);
  if (kind == "returns") return check_turn_returns(c);
  if (kind == "group") return check_turn_group(c);
  if (kind == "policy") return check_loss(c, flat(c.input("advantages")), c.input("action_mask"));
  if (kind == "kl_loss") return check_turn_kl_loss(c);
  if (kind == "single") return check_single_turn(c);
  ADD_FAILURE() << "there is no check for " << c.name;
}

}  // namespace trireme::test
