// Gradients and three AdamW steps of the golden models, computed by OpenRLHF's actor and torch, on any number of ranks.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <span>

#include "support/golden.hpp"
#include "support/world.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/model/model_files.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::test {
namespace {

struct GoldenBatch {
  model::PackedBatch batch;   // this rank's rows of the padded batch
  at::Tensor positions;       // i64, packed positions whose next token counts
  at::Tensor targets;         // i64, those next tokens
  double count = 0;           // of all ranks
};

// Rows of the batch go to ranks in turn; column t of the action mask is target token t + 1.
GoldenBatch batch_of(const GoldenCase& c) {
  const at::Tensor ids = c.input("sequences"), attention = c.input("attention_mask"), action = c.input("action_mask");
  const int64_t actions = action.size(1), offset = ids.size(1) - 1 - actions;
  std::vector<std::vector<int32_t>> sequences;
  std::vector<int64_t> positions, targets;
  GoldenBatch out;
  int64_t start = 0;
  for (int64_t b = 0; b < ids.size(0); ++b) {
    std::vector<int32_t> tokens;
    std::vector<int64_t> counted;  // token indices whose log-prob counts
    for (int64_t t = 0; t < ids.size(1); ++t) {
      if (attention[b][t].item<int64_t>() == 0) continue;
      const int64_t column = t - 1 - offset;
      if (column >= 0 && action[b][column].item<int64_t>() != 0) counted.push_back(static_cast<int64_t>(tokens.size()));
      tokens.push_back(static_cast<int32_t>(ids[b][t].item<int64_t>()));
    }
    out.count += static_cast<double>(counted.size());
    if (b % world().size() != world().rank()) continue;
    for (const int64_t t : counted) {
      positions.push_back(start + t - 1);
      targets.push_back(tokens[static_cast<size_t>(t)]);
    }
    start += static_cast<int64_t>(tokens.size());
    sequences.push_back(std::move(tokens));
  }
  const std::vector<std::span<const int32_t>> spans(sequences.begin(), sequences.end());
  out.batch = model::pack(spans, at::kCPU);
  out.positions = at::tensor(positions, at::kLong);
  out.targets = at::tensor(targets, at::kLong);
  return out;
}

zero::ShardedModel load(const GoldenCase& c, comm::ExchangeKind exchange) {
  const auto folder = model::open_model(Golden::folder() / c.word("model").value());
  zero::ShardedModelOptions options;
  options.compute = config::DType::fp32;
  options.exchange = exchange;
  const auto spec = model::describe(folder.shape, model::HeadKind::language);
  zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, options);
  model.load([&](size_t p, const base::Block& block, float* out) {
    model::load_parameter(spec, p, block, *folder.weights, 0, out);
  });
  return model;
}

// Masked mean of the log-probabilities, times `sign`; `value` receives this rank's part of it.
zero::Loss mean_log_prob(const GoldenBatch& batch, double sign, double& value) {
  value = 0;
  return [&batch, sign, &value](const at::Tensor& hidden, const at::Tensor& weight) {
    const auto out = kernels::token_log_probs(hidden.index_select(0, batch.positions), weight, batch.targets, 1.0,
                                              kernels::Entropy::skip);
    at::Tensor mean = out.log_probs.sum().mul(sign / batch.count);
    value = mean.item<double>();
    return mean;
  };
}

// A whole parameter from its shards, on every rank.
at::Tensor assemble(zero::ShardedModel& model, size_t p, const float* own) {
  at::Tensor whole = at::zeros(model.spec().parameters[p].spec.shape);
  const auto block = model.own(p);
  if (!block.empty()) {
    std::copy(own, own + block.elements(), whole.data_ptr<float>() + block.row * block.columns);
  }
  world().all_reduce(whole.data_ptr<float>(), whole.numel(), comm::DType::f32, comm::Op::sum);
  return whole;
}

size_t index_of(const model::ModelSpec& spec, const std::string& name) {
  for (size_t p = 0; p < spec.parameters.size(); ++p) {
    if (spec.parameters[p].spec.name == name) return p;
  }
  throw InternalError("no parameter " + name);
}

class GoldenTraining : public testing::TestWithParam<comm::ExchangeKind> {};

TEST_P(GoldenTraining, GradientsOfTheMeanLogProb) {
  int cases = 0;
  for (const std::string name : {"llama_untied", "llama_tied", "llama_rope3"}) {
    const auto& c = Golden::instance().at(name + ".grad");
    auto model = load(c, GetParam());
    const auto batch = batch_of(c);
    double value = 0;
    model.forward_backward(batch.batch, mean_log_prob(batch, 1, value));
    EXPECT_TRUE(c.matches("mean_logprob", at::tensor({world().sum(value)}))) << name;
    for (const auto& parameter : c.words("parameters")) {
      const size_t p = index_of(model.spec(), parameter);
      EXPECT_TRUE(c.matches("grad/" + parameter, assemble(model, p, model.gradient(p)))) << name << " " << parameter;
    }
    EXPECT_TRUE(c.matches("grad_norm", at::tensor({model.step({}).grad_norm}))) << name;
    ++cases;
  }
  EXPECT_EQ(cases, 3);
}

TEST_P(GoldenTraining, ThreeAdamWSteps) {
  for (const std::string name : {"llama_untied", "llama_tied", "llama_rope3"}) {
    const auto& c = Golden::instance().at(name + ".adamw3");
    auto model = load(c, GetParam());
    const auto batch = batch_of(c);
    const auto betas = c.numbers("betas");
    zero::AdamWOptions adam;
    adam.lr = c.number("lr").value();
    adam.beta1 = betas[0];
    adam.beta2 = betas[1];
    adam.eps = c.number("eps").value();
    adam.weight_decay = c.number("weight_decay").value();
    adam.max_norm = c.number("clip").value();
    std::vector<double> losses, norms;
    double value = 0;
    for (int step = 0; step < static_cast<int>(c.number("steps").value()); ++step) {
      model.forward_backward(batch.batch, mean_log_prob(batch, -1, value));
      losses.push_back(world().sum(value));
      norms.push_back(model.step(adam).grad_norm);
    }
    model.forward_backward(batch.batch, mean_log_prob(batch, -1, value));
    EXPECT_TRUE(c.matches("losses", at::tensor(losses))) << name;
    EXPECT_TRUE(c.matches("grad_norms", at::tensor(norms))) << name;
    EXPECT_TRUE(c.matches("final_loss", at::tensor({world().sum(value)}))) << name;
    for (const auto& parameter : c.words("parameters")) {
      const size_t p = index_of(model.spec(), parameter);
      EXPECT_TRUE(c.matches("param/" + parameter, assemble(model, p, model.master(p)))) << name << " " << parameter;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, GoldenTraining, testing::Values(comm::ExchangeKind::shared_window, comm::ExchangeKind::mpi_ring),
                         [](const auto& value) { return value.param == comm::ExchangeKind::mpi_ring ? "ring" : "window"; });

}  // namespace
}  // namespace trireme::test
