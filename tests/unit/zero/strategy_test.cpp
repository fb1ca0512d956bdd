// Execution strategies that the program does not have, written here and passed to the sharded
// model: adapters of low rank on some linears (LoRA), and a sequence cut over the ranks (context
// parallelism). Their gradients against those of one rank without either.
#include "torch/torch.hpp"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <map>

#include "support/world.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "unit/zero/tiny_model.hpp"

namespace trireme::test {
namespace {

constexpr double bound = 5e-6;  // fp32, other orders of addition

zero::ShardedModel sharded(const model::ModelSpec& spec, std::shared_ptr<model::Strategy> strategy,
                           int64_t recompute) {
  zero::ShardedModelOptions options;
  options.compute = config::DType::f32;
  options.recompute = recompute;
  options.strategy = std::move(strategy);
  zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, options);
  model.load(initial_reader(spec));
  return model;
}

void expect_gradients(zero::ShardedModel& model, const std::vector<at::Tensor>& want) {
  const auto& parameters = model.spec().parameters;
  for (size_t p = 0; p < parameters.size(); ++p) {
    EXPECT_LE(relative_error(model.gradient(p).host(), model.own(p), want[p]), bound)
        << parameters[p].spec.name;
  }
}

double distance(const at::Tensor& got, const at::Tensor& want) {
  return got.sub(want).abs().max().item<double>() / want.abs().max().item<double>();
}

// y = x (W + scale B A)^T, without making the sum.
class Adapters : public model::Strategy {
 public:
  struct Pair {
    at::Tensor a, b;  // [rank, in] [out, rank]
    at::Tensor product() const {
      return b.detach().to(at::kDouble).matmul(a.detach().to(at::kDouble)).mul(scale);
    }
  };
  static constexpr double scale = 0.5;
  static constexpr int64_t rank = 3;

  explicit Adapters(const model::ModelSpec& spec) {
    for (const auto& parameter : spec.parameters) {
      if (parameter.role != model::Role::q && parameter.role != model::Role::v &&
          parameter.role != model::Role::down)
        continue;
      const auto seed = static_cast<double>(pairs.size() + 1);
      const auto drawn = [seed](int64_t rows, int64_t columns) {
        return at::sin(at::arange(rows * columns, at::kFloat).mul(seed))
            .mul(0.1)
            .view({rows, columns})
            .set_requires_grad(true);
      };
      pairs[parameter.spec.name] = {drawn(rank, parameter.spec.columns()),
                                    drawn(parameter.spec.rows(), rank)};
    }
  }
  at::Tensor linear(const at::Tensor& x, const at::Tensor& weight,
                    const std::optional<at::Tensor>& bias,
                    const model::Parameter& parameter) override {
    const at::Tensor y = Strategy::linear(x, weight, bias, parameter);
    const auto found = pairs.find(parameter.spec.name);
    if (found == pairs.end()) return y;
    return y.add(at::linear(at::linear(x, found->second.a), found->second.b), scale);
  }

  std::map<std::string, Pair> pairs;
};

at::Tensor summed_over_ranks(const at::Tensor& leaf) {
  at::Tensor sum = leaf.grad().defined() ? leaf.grad().clone() : at::zeros_like(leaf);
  world().all_reduce(sum.data_ptr<float>(), sum.numel(), comm::DType::f32, comm::Op::sum);
  return sum;
}

TEST(Strategy, AdaptersGiveTheGradientsOfTheMergedWeights) {
  const auto spec = model::describe(tiny_shape(Tied::no), model::HeadKind::language);
  for (const int64_t recompute : {-1, 0, 1}) {
    const auto adapters = std::make_shared<Adapters>(spec);
    ASSERT_EQ(adapters->pairs.size(), 9u);
    auto model = sharded(spec, adapters, recompute);
    auto merged = whole_parameters(spec);
    std::vector<model::PackedBatch> work;
    for (int rank = 0; rank < world().size(); ++rank)
      work.push_back(tiny_work(spec.shape, rank, 0));
    for (size_t p = 0; p < merged.size(); ++p) {
      const auto found = adapters->pairs.find(spec.parameters[p].spec.name);
      merged[p] = merged[p].to(at::kDouble);
      if (found != adapters->pairs.end()) merged[p].add_(found->second.product());
    }
    const auto want = plain_gradients(spec, merged, work, at::kDouble);
    const auto& mine = work[static_cast<size_t>(world().rank())];
    model.forward_backward(mine, loss_of(spec, mine));
    expect_gradients(model, want);
    for (size_t p = 0; p < want.size(); ++p) {
      const auto found = adapters->pairs.find(spec.parameters[p].spec.name);
      if (found == adapters->pairs.end()) continue;
      const auto& [a, b] = found->second;
      const at::Tensor wide_a = a.detach().to(at::kDouble), wide_b = b.detach().to(at::kDouble);
      EXPECT_LE(distance(summed_over_ranks(a), wide_b.t().matmul(want[p]).mul(Adapters::scale)),
                bound)
          << found->first;
      EXPECT_LE(distance(summed_over_ranks(b), want[p].matmul(wide_a.t()).mul(Adapters::scale)),
                bound)
          << found->first;
    }
  }
}

// Rows of all ranks, one rank's behind the other's; backward each rank gets the sum of what all of
// them made of its rows.
struct GatherRows : torch::autograd::Function<GatherRows> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& mine,
                            const comm::CommView* ranks, int64_t first) {
    const at::Tensor rows = mine.contiguous();
    const auto all = ranks->all_gather(
        std::span<const float>(rows.const_data_ptr<float>(), static_cast<size_t>(rows.numel())));
    context->saved_data["ranks"] = reinterpret_cast<int64_t>(ranks);
    context->saved_data["first"] = first;
    context->saved_data["count"] = rows.size(0);
    return at::tensor(at::ArrayRef<float>(all)).view({-1, rows.size(1)});
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    at::Tensor sum = gradients[0].contiguous().clone();
    reinterpret_cast<const comm::CommView*>(context->saved_data["ranks"].toInt())
        ->all_reduce(sum.data_ptr<float>(), sum.numel(), comm::DType::f32, comm::Op::sum);
    return {
        sum.narrow(0, context->saved_data["first"].toInt(), context->saved_data["count"].toInt()),
        at::Tensor(), at::Tensor()};
  }
};

// Rank r of N computes positions [n r / N, n (r + 1) / N) of a sequence of n, with keys and values
// gathered from all.
class CutSequences : public model::Strategy {
 public:
  explicit CutSequences(const comm::CommView& ranks)
      : ranks_(comm::Comm::duplicate(ranks, "context")), view_(ranks_.view()) {}

  int64_t begin(int64_t length, int rank) const { return length * rank / view_.size(); }
  model::PackedBatch part(const model::PackedBatch& batch) override {
    whole_ = batch.cu_seqlens;
    std::vector<at::Tensor> ids, positions;
    model::PackedBatch mine;
    mine.max_length = batch.max_length;
    for (int64_t s = 0; s < batch.sequences(); ++s) {
      const int64_t first = begin(length(s), view_.rank()),
                    rows = begin(length(s), view_.rank() + 1) - first;
      ids.push_back(batch.ids.narrow(0, start(s) + first, rows));
      positions.push_back(batch.positions.narrow(0, start(s) + first, rows));
      mine.cu_seqlens.push_back(mine.tokens() + rows);
    }
    mine.ids = at::cat(ids);
    mine.positions = at::cat(positions);
    return mine;
  }

  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const model::Scores& scores, const model::PackedBatch& part, int) override {
    const int64_t heads = k.size(1), head_dim = k.size(2);
    const at::Tensor both = at::cat({k, v}, 1).flatten(1);
    const at::Tensor all =
        GatherRows::apply(both, &view_, rows_before(view_.rank())).view({-1, 2 * heads, head_dim});
    const auto heads_first = [](const at::Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
    std::vector<at::Tensor> out;
    for (int64_t s = 0; s < part.sequences(); ++s) {
      const int64_t row = part.cu_seqlens[static_cast<size_t>(s)],
                    rows = part.cu_seqlens[static_cast<size_t>(s) + 1] - row;
      const int64_t first = begin(length(s), view_.rank());
      const at::Tensor keys = of_sequence(all, s);
      const at::Tensor mask =
          at::le(at::arange(length(s)).unsqueeze(0), at::arange(first, first + rows).unsqueeze(1));
      out.push_back(at::scaled_dot_product_attention(heads_first(q.narrow(0, row, rows)),
                                                     heads_first(keys.narrow(1, 0, heads)),
                                                     heads_first(keys.narrow(1, heads, heads)),
                                                     mask, 0.0, false, scores.scale, true)
                        .squeeze(0)
                        .transpose(0, 1));
    }
    return at::cat(out);
  }

 private:
  int64_t start(int64_t s) const { return whole_[static_cast<size_t>(s)]; }
  int64_t length(int64_t s) const { return start(s + 1) - start(s); }
  int64_t sequences() const { return static_cast<int64_t>(whole_.size()) - 1; }
  int64_t rows_before(int rank) const {
    int64_t sum = 0;
    for (int64_t s = 0; s < sequences(); ++s) sum += begin(length(s), rank);
    return sum;
  }
  // All positions of a sequence, from the rows of all ranks.
  at::Tensor of_sequence(const at::Tensor& all, int64_t sequence) const {
    std::vector<at::Tensor> pieces;
    int64_t row = 0;
    for (int rank = 0; rank < view_.size(); ++rank) {
      for (int64_t s = 0; s < sequences(); ++s) {
        const int64_t rows = begin(length(s), rank + 1) - begin(length(s), rank);
        if (s == sequence) pieces.push_back(all.narrow(0, row, rows));
        row += rows;
      }
    }
    return at::cat(pieces);
  }

  comm::Comm ranks_;
  comm::CommView view_;
  std::vector<int64_t> whole_;  // cu_seqlens of the whole batch
};

// next_token_loss of the positions that this rank has; the last one's next token may be another
// rank's.
at::Tensor loss_of_part(const at::Tensor& hidden, const at::Tensor& head_weight,
                        const model::PackedBatch& whole, const CutSequences& cut) {
  std::vector<int64_t> rows, targets;
  int64_t row = 0;
  for (int64_t s = 0; s < whole.sequences(); ++s) {
    const int64_t start = whole.cu_seqlens[static_cast<size_t>(s)],
                  length = whole.cu_seqlens[static_cast<size_t>(s) + 1] - start;
    for (int64_t t = cut.begin(length, world().rank()); t < cut.begin(length, world().rank() + 1);
         ++t, ++row) {
      if (t + 1 == length) continue;
      rows.push_back(row);
      targets.push_back(start + t + 1);
    }
  }
  EXPECT_EQ(row, hidden.size(0));
  const auto out = kernels::token_log_probs(
      hidden.index_select(0, at::tensor(rows, at::kLong)), head_weight,
      whole.ids.index_select(0, at::tensor(targets, at::kLong)), 1.0, kernels::Entropy::skip);
  return out.log_probs.sum().div(-100);
}

TEST(Strategy, CutSequencesGiveTheGradientsOfWholeOnes) {
  const auto spec = model::describe(tiny_shape(Tied::yes), model::HeadKind::language);
  std::vector<model::PackedBatch> work;
  for (const uint64_t seed : {1, 2})
    work.push_back(tiny_batch(spec.shape, seed, {11, 1, 8 + static_cast<int64_t>(seed)}));
  const auto want = plain_gradients(spec, whole_parameters(spec), work, at::kDouble);
  for (const int64_t recompute : {-1, 0}) {
    const auto cut = std::make_shared<CutSequences>(world());
    auto model = sharded(spec, cut, recompute);
    for (const auto& batch : work) {
      model.forward_backward(batch, [&](const at::Tensor& hidden, const at::Tensor& head_weight) {
        return loss_of_part(hidden, head_weight, batch, *cut);
      });
    }
    expect_gradients(model, want);
  }
}

}  // namespace
}  // namespace trireme::test
