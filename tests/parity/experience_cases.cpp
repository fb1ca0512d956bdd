// From rollouts to advantages against OpenRLHF (F4, F7-F15).
#include "torch/torch.hpp"

#include <ATen/TensorOperators.h>

#include <array>

#include "parity/cases.hpp"
#include "parity/ranks.hpp"
#include "parity/registry.hpp"
#include "trireme/ppo/advantages.hpp"
#include "trireme/ppo/experience.hpp"
#include "trireme/ppo/rewards.hpp"

namespace trireme::test {
namespace {

using at::Tensor;
using namespace ppo;

template <class T>
std::vector<T> to_vector(const Tensor& x) {
  std::vector<T> out;
  const Tensor dense = x.to(at::kDouble).reshape({-1});
  for (int64_t i = 0; i < dense.numel(); ++i)
    out.push_back(static_cast<T>(dense[i].item<double>()));
  return out;
}

std::optional<int64_t> integer(std::optional<double> x) {
  return x ? std::optional<int64_t>(static_cast<int64_t>(*x)) : std::nullopt;
}

config::Estimator estimator(const GoldenCase& c) {
  return choice(c, "estimator", config::Estimator::gae);
}

LengthPenalty penalty(const GoldenCase& c) {
  LengthPenalty out;
  out.overlong_buffer = integer(c.number("overlong_buffer_len"));
  out.overlong_factor = c.number("overlong_penalty_factor").value_or(1);
  out.max_new_tokens =
      static_cast<int64_t>(c.number("max_new_tokens").value_or(c.number("max_len").value_or(0)));
  out.stop_properly_coef = c.number("stop_properly_penalty_coef");
  return out;
}

RewardTable reward_table_of(const GoldenCase& c) {
  return {to_vector<float>(c.input("rewards")), to_vector<int64_t>(c.input("response_length")),
          to_vector<uint8_t>(c.input("truncated"))};
}

}  // namespace

void check_penalty(const GoldenCase& c) {
  expect_matches(c, "rewards", at::tensor(apply_length_penalties(reward_table_of(c), penalty(c))));
}

void check_baseline(const GoldenCase& c) {
  const auto rewards = to_vector<float>(c.input("rewards"));
  const auto n = static_cast<int64_t>(*c.number("n_samples_per_prompt"));
  expect_matches(c, "shaped_rewards", at::tensor(apply_baseline(rewards, estimator(c), n)));
  expect_matches(c, "group_reward_std", at::tensor(group_std(rewards, n)));
}

void check_token_rewards(const GoldenCase& c) {
  const Tensor kl = c.input("kl");
  std::optional<config::Range> clip;
  if (const auto range = c.numbers("clip_range"); range.size() == 2) clip = {range[0], range[1]};
  const auto rewards = to_vector<float>(c.input("r"));
  expect_matches(c, "token_rewards",
                 token_rewards({rewards}, flat(kl), flat(c.input("action_mask")), segments_of(kl),
                               *c.number("kl_coef"), clip));
}

void check_gae(const GoldenCase& c) {
  const Tensor values = c.input("values");
  const auto got = generalized_advantages(
      flat(values), flat(c.input("rewards")), flat(c.input("action_mask")), segments_of(values),
      {.gamma = *c.number("gamma"), .lambda = *c.number("lambda")});
  expect_matches(c, "advantages", got.advantages);
  expect_matches(c, "returns", got.returns);
}

void check_returns(const GoldenCase& c) {
  const Tensor rewards = c.input("rewards");
  expect_matches(c, "returns",
                 cumulative_returns(flat(rewards), flat(c.input("action_mask")),
                                    segments_of(rewards), *c.number("gamma")));
}

// The parts are dealt out to the ranks: each whitens the columns of its own with sums over all.
void check_whitening(const GoldenCase& c) {
  const auto parts = static_cast<int64_t>(*c.number("parts"));
  const Whiten how = *c.flag("no_std_norm") ? Whiten::center : Whiten::standardize;
  std::vector<Tensor> columns{at::zeros({0})}, masks{at::zeros({0}, at::kLong)};
  for (const int64_t part : dealt(parts)) {
    columns.push_back(flat(c.input("advantages_" + std::to_string(part))));
    masks.push_back(flat(c.input("action_mask_" + std::to_string(part))));
  }
  const Tensor mine = whiten(at::cat(columns), at::cat(masks), how, sum_over_ranks);
  int64_t next = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const std::string field = "advantages_" + std::to_string(part);
    Tensor got = at::zeros({c.input(field).numel()});
    if (is_mine(part)) {
      got = mine.narrow(0, next, got.numel()).clone();
      next += got.numel();
    }
    expect_matches(c, field, summed(got));
  }
}

namespace {

// Golden rows as an experience: the columns of a row are its tokens.
Experience experience_of(const GoldenCase& c, const std::vector<int64_t>& rows) {
  const Tensor index = at::tensor(rows, at::kLong);
  const auto column = [&](const char* field) {
    return flat(c.input(field).index_select(0, index));
  };
  const Tensor mask = c.input("action_mask").index_select(0, index);
  Experience out;
  out.segments = segments_of(mask);
  out.mask = flat(mask).to(at::kByte);
  out.old_log_probs = column("action_log_probs");
  out.ref_log_probs = column("base_action_log_probs");
  out.values = column("values");
  out.samples.cu_seqlens = out.segments.cu_seqlens();
  return out;
}

PipelineOptions pipeline_of(const GoldenCase& c) {
  PipelineOptions options;
  options.estimator = estimator(c);
  options.n_samples_per_prompt = static_cast<int64_t>(*c.number("n_samples_per_prompt"));
  options.penalty = penalty(c);
  options.clip_range = config::Range{-10, 10};
  if (const auto range = c.numbers("reward_clip_range"); range.size() == 2)
    options.clip_range = {range[0], range[1]};
  options.kl_coef = *c.number("kl_coef");
  options.kl_estimator = choice(c, "kl_estimator", config::KlEstimator::k1);
  options.kl_in_loss = c.flag("kl_use_loss").value_or(false);
  options.gae = {.gamma = *c.number("gamma"), .lambda = *c.number("lambd")};
  options.no_std_norm = c.flag("no_std_norm").value_or(false);
  return options;
}

}  // namespace

// The rows are dealt out to the ranks.
void check_pipeline(const GoldenCase& c) {
  const PipelineOptions options = pipeline_of(c);
  const RewardTable table = reward_table_of(c);
  const auto count = static_cast<int64_t>(table.reward.size());
  const std::vector<int64_t> rows = dealt(count);
  Experience experience = experience_of(c, rows);
  const PipelineReport report = advantages(experience, table, rows, options, sum_over_ranks);
  const auto whole = [&](const Tensor& mine) { return rows_of_all(mine, count); };
  expect_matches(c, "rewards_after_penalty",
                 at::tensor(apply_length_penalties(table, options.penalty)));
  expect_matches(c, "shaped_rewards", whole(at::tensor(report.shaped_reward)));
  expect_matches(c, "token_rewards", whole(report.token_rewards));
  expect_matches(c, "returns", whole(experience.returns));
  expect_matches(c, "advantages", whole(experience.advantages));
  expect_matches(c, "info_return", whole(at::tensor(report.returns)));
  expect_matches(c, "info_kl", whole(at::tensor(report.kl)));
  expect_matches(c, "group_reward_std", whole(at::tensor(report.group_std)));
}

namespace {

SequenceRecord rollout_of(const GoldenCase& c) {
  SequenceRecord out;
  out.ids = to_vector<int32_t>(c.input("observation_tokens"));
  out.log_probs = to_vector<float>(c.input("rollout_log_probs"));
  const auto ranges = to_vector<int64_t>(c.input("action_ranges"));
  for (size_t i = 0; i + 1 < ranges.size(); i += 2)
    out.action_ranges.emplace_back(ranges[i], ranges[i + 1]);
  return out;
}

void check_one_action_mask(const GoldenCase& c) {
  Samples samples;
  samples.add(rollout_of(c), static_cast<int64_t>(*c.number("max_len")));
  samples.check();
  samples.reward = {0.f};
  const Experience experience = Experience::from(samples);
  const int64_t length = samples.tokens();
  expect_matches(c, "sequences", at::tensor(samples.ids));
  expect_matches(c, "attention_mask", at::ones({length}));
  expect_matches(c, "action_mask", experience.mask.narrow(0, 1, length - 1));
  expect_matches(c, "rollout_log_probs", experience.rollout_log_probs.narrow(0, 1, length - 1));
  expect_matches(c, "response_length", static_cast<double>(response_lengths(samples)[0]));
  expect_matches(c, "total_length", static_cast<double>(length));
  expect_matches(c, "is_clipped", clipped(samples, static_cast<int64_t>(*c.number("max_len")))[0]);
}

// Packed columns of `experience` as rows [B, width], without the first `skip` tokens of each
// sequence, `pad` behind its end.
Tensor padded(const Experience& experience, const Tensor& columns, int64_t skip, int64_t width,
              double pad) {
  Tensor out = at::full({experience.sequences(), width}, pad, at::kDouble);
  for (int64_t i = 0; i < experience.sequences(); ++i) {
    const int64_t begin = experience.samples.begin(i) + skip,
                  length = experience.samples.length(i) - skip;
    out[i].narrow(0, 0, length).copy_(columns.narrow(0, begin, length));
  }
  return out;
}

// What the package pads is packed here. Rewards and the flag of truncation belong to the sequences
// from the start: here they are seen to stay with them on the way through the wire form, a
// selection and back.
void check_batch_of_action_masks(const GoldenCase& c) {
  Samples samples;
  for (const std::string& member : c.words("members")) {
    const GoldenCase& one = Golden::instance().at(member);
    samples.add(rollout_of(one), static_cast<int64_t>(*one.number("max_len")));
  }
  samples.reward = to_vector<float>(c.output("rewards"));
  const auto truncated = to_vector<int64_t>(c.output("truncated"));
  for (size_t i = 0; i < truncated.size(); ++i)
    samples.finish_reason[i] = truncated[i] ? FinishReason::length : FinishReason::stop;
  std::vector<int64_t> backwards;
  for (int64_t i = samples.size(); i-- > 0;) backwards.push_back(i);
  const Samples moved = Samples::from_bytes(samples.to_bytes()).select(backwards);
  const Experience experience = Experience::from(moved).select(backwards);

  const int64_t width = c.output("sequences").size(1);
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < experience.sequences(); ++i)
    lengths.push_back(experience.samples.length(i));
  expect_matches(
      c, "sequences",
      padded(experience, at::tensor(experience.samples.ids), 0, width, *c.number("pad_token_id")));
  expect_matches(c, "attention_mask",
                 padded(experience, at::ones({experience.tokens()}), 0, width, 0));
  expect_matches(c, "action_mask", padded(experience, experience.mask, 1, width - 1, 0));
  expect_matches(c, "rollout_log_probs",
                 padded(experience, experience.rollout_log_probs, 1, width - 1, 0));
  expect_matches(c, "response_length", at::tensor(response_lengths(experience.samples)));
  expect_matches(c, "total_length", at::tensor(lengths));
  const RewardTable table = reward_table(experience.samples);
  expect_matches(c, "rewards", at::tensor(table.reward));
  expect_matches(c, "truncated",
                 at::tensor(std::vector<int64_t>(table.truncated.begin(), table.truncated.end())));
}

}  // namespace

void check_action_mask(const GoldenCase& c) {
  if (c.words("members").empty()) {
    check_one_action_mask(c);
  } else {
    check_batch_of_action_masks(c);
  }
}

}  // namespace trireme::test
