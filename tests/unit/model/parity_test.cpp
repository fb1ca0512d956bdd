// Against OpenRLHF on transformers: logits, log-probs, entropies, gradients, rewards and values of four small models.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include "support/golden.hpp"
#include "whole_model.hpp"

namespace trireme::test {
namespace {

using model::HeadKind;

WholeModel load_model(const GoldenCase& c, HeadKind head) {
  const auto folder = model::open_model(Golden::folder() / c.word("model").value());
  const auto spec = model::describe(folder.shape, head);
  const auto unexpected = model::check_weights(spec, *folder.weights, model::Missing::score_head);
  EXPECT_TRUE(unexpected.empty());
  return WholeModel(spec, *folder.weights);
}

// The attended tokens of padded rows [B, T] as a packed batch, and where each came from.
struct Packed {
  model::PackedBatch batch;
  at::Tensor where;  // i64 [tokens]: index into B * T
  int64_t rows = 0, width = 0;

  explicit Packed(const GoldenCase& c) {
    const at::Tensor sequences = c.input("sequences"), mask = c.input("attention_mask");
    rows = mask.size(0);
    width = mask.size(1);
    where = at::nonzero(mask.reshape({-1})).squeeze(1);
    const at::Tensor flat = at::index_select(sequences.reshape({-1}), 0, where).to(at::kInt);
    std::vector<std::span<const int32_t>> spans;
    const int32_t* next = flat.const_data_ptr<int32_t>();
    for (int64_t row = 0; row < rows; ++row) {
      const auto length = static_cast<size_t>(mask.select(0, row).sum().item<int64_t>());
      spans.emplace_back(next, length);
      next += length;
    }
    batch = model::pack(spans, at::kCPU);
  }

  // [tokens, ...] back to [B, T, ...], zeros at padding.
  at::Tensor unpack(const at::Tensor& x) const {
    std::vector<int64_t> shape = x.sizes().vec();
    shape[0] = rows * width;
    const at::Tensor flat = at::zeros(shape, x.options()).index_copy(0, where, x);
    shape[0] = width;
    shape.insert(shape.begin(), rows);
    return flat.reshape(shape);
  }
};

at::Tensor logits_of(const WholeModel& m, const Packed& packed) {
  return packed.unpack(at::linear(m.hidden(packed.batch), m.head()));
}

// log pi of token t + 1 at column t. [B, T - 1]
at::Tensor token_log_probs(const at::Tensor& logits, const at::Tensor& sequences, double temperature) {
  const at::Tensor z = at::log_softmax(logits.div(temperature), -1).narrow(1, 0, logits.size(1) - 1);
  const at::Tensor targets = sequences.narrow(1, 1, sequences.size(1) - 1).unsqueeze(-1);
  return at::gather(z, -1, targets).squeeze(-1);
}

at::Tensor action_columns(const at::Tensor& x, const at::Tensor& action_mask) {
  const int64_t width = action_mask.size(1);
  return x.narrow(1, x.size(1) - width, width).mul(action_mask);
}

std::vector<const GoldenCase*> cases_like(std::string_view part) {
  std::vector<const GoldenCase*> out;
  for (const auto& c : Golden::instance().all()) {
    if (c.file.find("cases/model_") == 0 && c.name.find(part) != std::string::npos) out.push_back(&c);
  }
  return out;
}

TEST(ModelParity, logits_log_probs_and_entropy) {
  const auto cases = cases_like(".forward");
  ASSERT_EQ(cases.size(), 9u);
  for (const auto* c : cases) {
    const at::NoGradGuard no_grad;
    const WholeModel m = load_model(*c, HeadKind::language);
    const Packed packed(*c);
    const double temperature = c->number("temperature").value();
    const at::Tensor logits = logits_of(m, packed);
    EXPECT_TRUE(c->matches("logits", logits));
    const at::Tensor log_probs = token_log_probs(logits, c->input("sequences"), temperature);
    EXPECT_TRUE(c->matches("log_probs", log_probs));
    EXPECT_TRUE(c->matches("action_log_probs", action_columns(log_probs, c->input("action_mask"))));
    const at::Tensor z = at::log_softmax(logits.div(temperature), -1);
    const at::Tensor entropy = z.exp().mul(z).sum(-1).neg();
    EXPECT_TRUE(c->matches("entropy", entropy.narrow(1, 0, entropy.size(1) - 1)));
  }
}

TEST(ModelParity, gradients_of_the_mean_log_prob) {
  const auto cases = cases_like(".grad");
  ASSERT_EQ(cases.size(), 3u);
  for (const auto* c : cases) {
    WholeModel m = load_model(*c, HeadKind::language);
    m.require_grad();
    const at::Tensor mask = c->input("action_mask");
    const at::Tensor log_probs = token_log_probs(logits_of(m, Packed(*c)), c->input("sequences"), 1.0);
    const at::Tensor mean = action_columns(log_probs, mask).sum().div(mask.sum());
    mean.backward();
    EXPECT_TRUE(c->matches("mean_logprob", mean));
    double squares = 0;
    size_t compared = 0;
    for (size_t i = 0; i < m.parameters.size(); ++i) {
      ASSERT_TRUE(m.parameters[i].grad().defined()) << m.spec.parameters[i].spec.name;
      squares += m.parameters[i].grad().to(at::kDouble).square().sum().item<double>();
      const std::string field = "grad/" + m.spec.parameters[i].spec.name;
      if (!c->has_output(field)) continue;
      EXPECT_TRUE(c->matches(field, m.parameters[i].grad()));
      ++compared;
    }
    EXPECT_EQ(compared, c->words("parameters").size());
    EXPECT_TRUE(c->matches("grad_norm", at::full({1}, std::sqrt(squares), at::TensorOptions().dtype(at::kDouble))));
  }
}

TEST(ModelParity, rewards_and_values) {
  const auto cases = cases_like(".heads");
  ASSERT_EQ(cases.size(), 5u);
  for (const auto* c : cases) {
    const at::NoGradGuard no_grad;
    WholeModel m = load_model(*c, HeadKind::score);
    if (c->has_input("score.weight")) m.parameters[m.spec.stages.back().parameters[1]] = c->input("score.weight");
    const Packed packed(*c);
    const bool normalise = c->flag("normalize_reward").value();
    const auto normal = [&](const at::Tensor& x) {
      return normalise ? x.sub(*m.spec.shape.score_mean).div(*m.spec.shape.score_std) : x;
    };
    const at::Tensor scores = packed.unpack(at::linear(m.hidden(packed.batch), m.head())).squeeze(-1);  // [B, T]
    const at::Tensor positions = at::arange(packed.width).mul(c->input("attention_mask"));
    const at::Tensor last = positions.argmax(1, true);
    const at::Tensor reward = at::gather(scores, 1, last).squeeze(1);
    EXPECT_TRUE(c->matches("reward_train_mode", reward));
    EXPECT_TRUE(c->matches("reward", normal(reward)));
    const at::Tensor values = normal(scores.narrow(1, 0, packed.width - 1));
    EXPECT_TRUE(c->matches("values_all", values));
    EXPECT_TRUE(c->matches("values", action_columns(values, c->input("action_mask"))));
  }
}

}  // namespace
}  // namespace trireme::test
