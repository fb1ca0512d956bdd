// Logits, log-probs, entropies, rewards and values of small models against OpenRLHF on transformers
// (F1, F2, F5, F6). The models are sharded over the ranks and every rank runs its rows, through the
// passes that scoring in the program uses.
#include "torch/torch.hpp"

#include "parity/cases.hpp"
#include "parity/golden_rows.hpp"
#include "parity/ranks.hpp"
#include "parity/registry.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/learn/scoring.hpp"
#include "trireme/reward/model_source.hpp"

namespace trireme::test {
namespace {

using at::Tensor;
using model::HeadKind;

constexpr int64_t pass_tokens = 30;  // several micro-batches where a rank has more than one row

learn::ActionBatch all_rows(GoldenRows& rows) {
  std::vector<int64_t> which;
  for (int64_t i = 0; i < rows.samples().size(); ++i) which.push_back(i);
  return learn::make_action_batch(rows.samples(), which, at::kCPU);
}

// The last A targets [B, A] of [B, T - 1].
Tensor last_columns(const Tensor& targets, int64_t width) {
  return targets.narrow(1, targets.size(1) - width, width);
}

// The scores of the rows by the reward role's model source. Collective.
Tensor scores_by_source(const GoldenCase& c, GoldenRows& rows, bool normalize) {
  config::RewardSource options;
  options.kind = config::RewardKind::model;
  options.path = model_path(c);
  options.batch_tokens = pass_tokens;
  reward::ModelEnvironment environment;
  environment.ranks = world();
  environment.dtype = config::DType::f32;
  environment.normalize = normalize;
  std::vector<reward::Request> requests;
  for (int64_t i = 0; i < rows.samples().size(); ++i) {
    const auto ids = rows.samples().tokens_of(i);
    reward::Request one;
    one.id = static_cast<uint64_t>(rows.rows()[static_cast<size_t>(i)]);
    one.ids.assign(ids.begin(), ids.end());
    requests.push_back(std::move(one));
  }
  const auto scores = reward::make_model(options, "judge", environment)->score(requests);
  return rows_of_all(at::tensor(scores.values), rows.count());
}

// The score head at every token: f64 [B, T]. Collective.
Tensor scores_by_model(zero::ShardedModel& model, GoldenRows& rows) {
  const auto batch = all_rows(rows);
  Tensor scores = at::zeros({batch.packed.tokens()});
  model.forward(batch.packed, [&](const Tensor& hidden, const Tensor& weight) {
    scores = learn::score_head(hidden, weight).clone();
  });
  return rows.unpack(scores);
}

// Of [B, T], the last attended token of each row.
Tensor at_last_token(const GoldenCase& c, const Tensor& scores) {
  const Tensor attended = c.input("attention_mask");
  const Tensor last = at::arange(attended.size(1), at::kLong).mul(attended).argmax(1, true);
  return at::gather(scores, 1, last).squeeze(1);
}

}  // namespace

void check_forward(const GoldenCase& c) {
  auto model = load_golden_model(c, HeadKind::language, {});
  GoldenRows rows(c);
  const double temperature = c.number("temperature").value();
  const auto batch = all_rows(rows);
  const int64_t tokens = batch.packed.tokens();
  Tensor logits = at::zeros({tokens, model.spec().shape.vocab}), entropy = at::zeros({tokens});
  model.forward(batch.packed, [&](const Tensor& hidden, const Tensor& weight) {
    logits = at::linear(hidden, weight);
    const auto head = kernels::token_log_probs(hidden.index_select(0, batch.rows), weight,
                                               batch.targets, temperature, kernels::Entropy::value);
    entropy.index_copy_(0, batch.columns, head.entropy);
  });
  expect_matches(c, "logits", rows.unpack(logits));
  expect_matches(c, "entropy", rows.targets(entropy));
  const auto log_probs = [&] {
    return rows.targets(
        learn::action_log_probs(model, rows.samples(), {world(), pass_tokens}, temperature));
  };
  expect_matches(c, "log_probs", log_probs());
  rows.set_action_mask(c.input("action_mask"));
  expect_matches(c, "action_log_probs", last_columns(log_probs(), c.input("action_mask").size(1)));
}

void check_heads(const GoldenCase& c) {
  const bool in_model = !c.has_input("score.weight");
  auto model =
      load_golden_model(c, HeadKind::score, {}, in_model ? Tensor{} : c.input("score.weight"));
  GoldenRows rows(c);
  const bool normalize = c.flag("normalize_reward").value();
  const Tensor scores = scores_by_model(model, rows), raw = at_last_token(c, scores);
  expect_matches(c, "reward_train_mode", raw);
  expect_matches(c, "reward", in_model ? scores_by_source(c, rows, normalize) : raw);

  config::Options options;
  options.reward.normalize_enable = normalize;
  const learn::ScoreScale scale = learn::critic_scale(options, model.spec().shape);
  expect_matches(c, "values_all",
                 scores.narrow(1, 0, scores.size(1) - 1).sub(scale.mean).div(scale.deviation));
  const Tensor mask = c.input("action_mask");
  rows.set_action_mask(mask);
  const Tensor values =
      rows.targets(learn::action_values(model, rows.samples(), {world(), pass_tokens}, scale));
  expect_matches(c, "values", last_columns(values, mask.size(1)));
}

}  // namespace trireme::test
