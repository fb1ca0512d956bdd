#include "torch/torch.hpp"

#include "unit/zero/tiny_model.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>

#include "trireme/base/philox.hpp"
#include "trireme/kernels/token_log_probs.hpp"

namespace trireme::test {

config::ModelShape tiny_shape(Tied tied) {
  config::ModelShape shape;
  shape.vocab = 37;
  shape.hidden = 24;
  shape.layers = 3;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 6;
  shape.ffn = 50;
  shape.norm_eps = 1e-5;
  shape.tied = tied == Tied::yes;
  shape.initializer_range = 0.2;  // large enough for gradients that differ
  return shape;
}

model::PackedBatch tiny_batch(const config::ModelShape& shape, uint64_t seed,
                              const std::vector<int64_t>& lengths) {
  std::vector<std::vector<int32_t>> sequences;
  uint64_t state = seed * 2654435761u + 12345;
  for (const int64_t length : lengths) {
    auto& sequence = sequences.emplace_back();
    for (int64_t i = 0; i < length; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      sequence.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(shape.vocab)));
    }
  }
  const std::vector<std::span<const int32_t>> spans(sequences.begin(), sequences.end());
  return model::pack(spans, at::kCPU);
}

model::PackedBatch tiny_work(const config::ModelShape& shape, int rank, int step) {
  if ((rank + step) % 3 == 2) return tiny_batch(shape, 0, {});
  const auto seed = static_cast<uint64_t>(100 * step + rank);
  return tiny_batch(shape, seed, {5 + rank, 2 + 3 * step});
}

at::Tensor next_token_loss(const at::Tensor& hidden, const at::Tensor& head_weight,
                           const model::PackedBatch& batch) {
  std::vector<int64_t> rows;
  for (size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
    for (int64_t t = batch.cu_seqlens[s]; t + 1 < batch.cu_seqlens[s + 1]; ++t) rows.push_back(t);
  }
  const at::Tensor index = at::tensor(rows, at::kLong);
  const at::Tensor targets = batch.ids.index_select(0, index.add(1));
  if (hidden.scalar_type() == at::kDouble) {
    const at::Tensor log_probs =
        at::log_softmax(at::linear(hidden.index_select(0, index), head_weight), -1);
    return log_probs.gather(-1, targets.to(at::kLong).unsqueeze(-1)).sum().div(-100);
  }
  const auto out = kernels::token_log_probs(hidden.index_select(0, index), head_weight, targets,
                                            1.0, kernels::Entropy::skip);
  return out.log_probs.sum().div(-100);
}

at::Tensor score_loss(const at::Tensor& hidden, const at::Tensor& head_weight) {
  const at::Tensor scores = at::linear(hidden, head_weight);
  return (scores.scalar_type() == at::kDouble ? scores : scores.to(at::kFloat))
      .pow(2)
      .sum()
      .div(100);
}

zero::Loss loss_of(const model::ModelSpec& spec, const model::PackedBatch& batch) {
  if (spec.head == model::HeadKind::score) return score_loss;
  return [&batch](const at::Tensor& hidden, const at::Tensor& weight) {
    return next_token_loss(hidden, weight, batch);
  };
}

void initial_rows(const model::ModelSpec& spec, size_t parameter, const base::Block& block,
                  float* out) {
  model::initial_values(spec, parameter, block, 7, out);
  if (spec.parameters[parameter].spec.shape.size() > 1) return;
  // Norm weights of exactly 1 would hide a mix-up.
  for (int64_t i = 0; i < block.elements(); ++i)
    out[i] += 0.01f * static_cast<float>((block.row + i) % 7);
}

zero::ReadRows initial_reader(const model::ModelSpec& spec) {
  return [&spec](size_t p, const base::Block& block, float* out) {
    initial_rows(spec, p, block, out);
  };
}

std::vector<at::Tensor> whole_parameters(const model::ModelSpec& spec) {
  std::vector<at::Tensor> whole;
  for (size_t p = 0; p < spec.parameters.size(); ++p) {
    const auto& tensor = spec.parameters[p].spec;
    whole.push_back(at::zeros(tensor.shape, at::kFloat));
    initial_rows(spec, p, {0, tensor.rows(), 0, tensor.columns()}, whole.back().data_ptr<float>());
  }
  return whole;
}

namespace {

// Attention as it is written in textbooks, for the types that the kernels do not have.
class Textbook : public model::Strategy {
 public:
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const model::Scores& its_scores, const model::PackedBatch& part, int) override {
    std::vector<at::Tensor> out;
    for (int64_t s = 0; s < part.sequences(); ++s) {
      const int64_t first = part.cu_seqlens[static_cast<size_t>(s)],
                    length = part.cu_seqlens[static_cast<size_t>(s) + 1] - first;
      const auto heads_first = [&](const at::Tensor& x) {  // [H, length, hd]
        return x.narrow(0, first, length)
            .transpose(0, 1)
            .repeat_interleave(q.size(1) / x.size(1), 0);
      };
      const at::Tensor scores =
          heads_first(q).matmul(heads_first(k).transpose(1, 2)).mul(its_scores.scale);
      const at::Tensor later = at::ones({length, length}, at::kBool).triu(1);
      const at::Tensor shares =
          scores.masked_fill(later, -std::numeric_limits<double>::infinity()).softmax(-1);
      out.push_back(shares.matmul(heads_first(v)).transpose(0, 1));
    }
    return at::cat(out);
  }
};

}  // namespace

std::vector<at::Tensor> plain_gradients(const model::ModelSpec& spec,
                                        const std::vector<at::Tensor>& parameters,
                                        const std::vector<model::PackedBatch>& batches,
                                        at::ScalarType compute) {
  std::vector<at::Tensor> sums;
  for (const auto& parameter : parameters)
    sums.push_back(at::zeros(parameter.sizes(), compute == at::kDouble ? at::kDouble : at::kFloat));
  const auto rope = model::make_ropes(spec, 256, at::kCPU);
  for (const auto& batch : batches) {
    if (batch.tokens() == 0) continue;
    const at::AutoGradMode mode(true);
    std::vector<at::Tensor> leaves;
    for (const auto& parameter : parameters)
      leaves.push_back(parameter.detach().to(compute).clone().set_requires_grad(true));
    model::Strategy plain;
    Textbook textbook;
    model::Strategy& strategy = compute == at::kDouble ? textbook : plain;
    at::Tensor x;
    std::vector<at::Tensor> weights;
    for (const auto& stage : spec.stages) {
      weights.clear();
      for (const size_t p : stage.parameters) weights.push_back(leaves[p]);
      x = model::run_stage({spec, stage, weights, batch, rope, strategy}, x);
    }
    loss_of(spec, batch)(x, weights.back()).backward();
    for (size_t p = 0; p < leaves.size(); ++p) {
      if (leaves[p].grad().defined()) sums[p].add_(leaves[p].grad().to(sums[p].scalar_type()));
    }
  }
  return sums;
}

zero::AdamWOptions adam() {
  zero::AdamWOptions options;
  options.lr = 1e-2;
  options.weight_decay = 0.1;
  options.eps = 1e-4;  // large: a gradient of rounding size must not become a step of size lr
  options.max_norm = 0.05;
  return options;
}

std::vector<double> plain_steps(const model::ModelSpec& spec, std::vector<at::Tensor>& parameters,
                                int ranks, int steps) {
  std::vector<at::Tensor> m, v;
  for (const auto& p : parameters) {
    m.push_back(at::zeros_like(p));
    v.push_back(at::zeros_like(p));
  }
  std::vector<double> norms;
  const auto options = adam();
  for (int step = 0; step < steps; ++step) {
    std::vector<model::PackedBatch> work;
    for (int rank = 0; rank < ranks; ++rank) work.push_back(tiny_work(spec.shape, rank, step));
    auto gradients = plain_gradients(spec, parameters, work, at::kFloat);
    double squares = 0;
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (spec.parameters[p].trainable)
        squares += gradients[p].to(at::kDouble).pow(2).sum().item<double>();
    }
    norms.push_back(std::sqrt(squares));
    const double factor = std::min(1.0, options.max_norm / (norms.back() + 1e-6));
    const at::Tensor count = at::full({}, static_cast<double>(step + 1));
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (!spec.parameters[p].trainable) continue;
      const bool is_norm = spec.parameters[p].spec.name.find("norm.weight") != std::string::npos;
      at::_fused_adamw_({parameters[p]}, {gradients[p].mul(factor)}, {m[p]}, {v[p]}, {}, {count},
                        options.lr, options.beta1, options.beta2,
                        is_norm ? 0 : options.weight_decay, options.eps, false, false);
    }
  }
  return norms;
}

void expect_trained(zero::ShardedModel& model, const std::vector<at::Tensor>& want) {
  for (size_t p = 0; p < want.size(); ++p) {
    if (!model.spec().parameters[p].trainable) continue;
    EXPECT_LE(relative_error(model.master(p).host(), model.own(p), want[p]), 2e-5)
        << model.spec().parameters[p].spec.name;
  }
}

at::Tensor rows_of(const at::Tensor& whole, const base::Block& block) {
  return whole.narrow(0, block.row, block.rows);
}

double relative_error(const float* got, const base::Block& own, const at::Tensor& want_whole) {
  if (own.empty()) return 0;
  const at::Tensor want = rows_of(want_whole, own).contiguous();
  const at::Tensor have = at::from_blob(const_cast<float*>(got), want.sizes(), at::kFloat);
  const double scale = std::max(want_whole.abs().max().item<double>(), 1e-12);
  return have.sub(want).abs().max().item<double>() / scale;
}

std::vector<comm::ExchangeKind> exchanges_here() {
  return {comm::ExchangeKind::windows, comm::ExchangeKind::mpi_ring};
}

}  // namespace trireme::test
