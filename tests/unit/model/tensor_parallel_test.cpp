// Tensor parallelism in one process: the shards of every rank computed by threads, a strategy's
// `spread` and `reduce` adding them.
#include "torch/torch.hpp"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <barrier>
#include <thread>

#include "whole_model.hpp"

namespace trireme::test {
namespace {

// Weights of a shape, drawn instead of read.
class DrawnWeights : public model::WeightSource {
 public:
  explicit DrawnWeights(const model::ModelSpec& spec) : spec_(spec) {}
  std::vector<std::string> names() const override { return {}; }
  bool contains(std::string_view) const override { return true; }
  const base::TensorSpec& spec(std::string_view name) const override {
    return spec_.parameters[index(name)].spec;
  }
  std::string_view type_name(std::string_view) const override { return "F32"; }
  void read(std::string_view name, const base::Block& block, float* out) const override {
    const auto role = spec_.parameters[index(name)].role;
    model::initial_values(spec_, index(name), block, 7, out);
    if (role != model::Role::q_bias && role != model::Role::o_bias) return;
    for (int64_t i = 0; i < block.elements(); ++i)
      out[i] = 0.1f * static_cast<float>((block.row + i) % 5);  // a bias that is not 0
  }
  std::string describe() const override { return "drawn weights"; }

 private:
  size_t index(std::string_view name) const {
    for (size_t i = 0; i < spec_.parameters.size(); ++i) {
      if (spec_.parameters[i].spec.name == name) return i;
    }
    throw std::runtime_error(std::string(name));
  }
  const model::ModelSpec& spec_;
};

struct Meeting {
  std::barrier<> barrier;
  std::vector<at::Tensor> parts;
  explicit Meeting(int ranks) : barrier(ranks), parts(static_cast<size_t>(ranks)) {}
};

// The sum of all threads' tensors, in rank order.
at::Tensor sum_of_ranks(Meeting& meeting, int rank, const at::Tensor& mine) {
  meeting.parts[static_cast<size_t>(rank)] = mine;
  meeting.barrier.arrive_and_wait();
  at::Tensor sum = meeting.parts[0];
  for (size_t i = 1; i < meeting.parts.size(); ++i) sum = sum.add(meeting.parts[i]);
  meeting.barrier.arrive_and_wait();
  return sum;
}

// Forward or backward the sum, the other way the identity.
template <bool sum_forward>
struct Sum : torch::autograd::Function<Sum<sum_forward>> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            Meeting* meeting, int64_t rank) {
    context->saved_data["meeting"] = reinterpret_cast<int64_t>(meeting);
    context->saved_data["rank"] = rank;
    return sum_forward ? sum_of_ranks(*meeting, static_cast<int>(rank), x.detach()) : x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* meeting = reinterpret_cast<Meeting*>(context->saved_data["meeting"].toInt());
    const auto rank = static_cast<int>(context->saved_data["rank"].toInt());
    return {sum_forward ? gradients[0] : sum_of_ranks(*meeting, rank, gradients[0]), at::Tensor(),
            at::Tensor()};
  }
};

class ShardStrategy : public model::Strategy {
 public:
  ShardStrategy(Meeting& meeting, int rank, base::Block vocabulary)
      : meeting_(meeting), rank_(rank), vocabulary_(vocabulary) {}
  at::Tensor spread(const at::Tensor& whole) override {
    return Sum<false>::apply(whole, &meeting_, rank_);
  }
  at::Tensor reduce(const at::Tensor& partial) override {
    return Sum<true>::apply(partial, &meeting_, rank_);
  }
  std::pair<int64_t, int64_t> vocabulary_rows(int64_t) override {
    return {vocabulary_.row, vocabulary_.rows};
  }

 private:
  Meeting& meeting_;
  int64_t rank_;
  base::Block vocabulary_;
};

config::ModelShape shape_of(int64_t groups) {
  config::ModelShape shape;
  shape.vocab = 101;
  shape.head_dim = 8;
  shape.kv_heads = groups;
  shape.heads = 2 * groups;
  shape.hidden = 8 * groups * 2;
  shape.ffn = 70;
  shape.layers = 2;
  shape.max_positions = 64;
  shape.qkv_bias = shape.o_bias = true;
  return shape;
}

at::Tensor slice_of(const at::Tensor& whole, const base::Block& block) {
  const at::Tensor rows = whole.narrow(0, block.row, block.rows);
  return whole.dim() == 2 ? rows.narrow(1, block.column, block.columns).contiguous()
                          : rows.contiguous();
}

// Logits, and the gradients of the sum of their squares: a shard's are slices of the whole model's,
// but for rounding (those of q and k are small differences of large numbers).
TEST(TensorParallel, shards_add_up_to_the_whole_model) {
  using config::Architecture;
  for (const auto& [architecture, groups, ranks] :
       {std::tuple(Architecture::llama, 2, 2), std::tuple(Architecture::qwen3, 2, 2),
        std::tuple(Architecture::qwen3, 3, 2), std::tuple(Architecture::llama, 3, 3),
        std::tuple(Architecture::llama, 4, 1)}) {
    auto shape = shape_of(groups);
    shape.architecture = architecture;
    const auto spec = model::describe(shape, model::HeadKind::language);
    WholeModel whole(spec, DrawnWeights(spec));
    const std::vector<int32_t> a{1, 100, 50, 3, 99, 0, 7}, b{42}, c{5, 6, 5, 6};
    const std::vector<std::span<const int32_t>> sequences{a, b, c};
    const auto batch = model::pack(sequences, at::kCPU);
    const auto layout = model::tensor_parallel_layout(spec, ranks);
    std::vector<WholeModel> shards(static_cast<size_t>(ranks), whole);
    for (int rank = 0; rank < ranks; ++rank) {
      auto& shard = shards[static_cast<size_t>(rank)];
      for (size_t i = 0; i < shard.parameters.size(); ++i)
        shard.parameters[i] = slice_of(whole.parameters[i], layout.block(i, rank)).clone();
      shard.require_grad();
    }
    whole.require_grad();
    const at::Tensor logits = at::linear(whole.hidden(batch), whole.head());
    logits.square().sum().backward();

    Meeting meeting(ranks);
    std::vector<at::Tensor> shard_logits(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        const auto& shard = shards[static_cast<size_t>(rank)];
        ShardStrategy strategy(meeting, rank,
                               layout.block(spec.index_of(model::Role::embedding), rank));
        const at::Tensor mine =
            at::linear(strategy.spread(shard.hidden(batch, strategy)), shard.head());
        mine.square().sum().backward();
        shard_logits[static_cast<size_t>(rank)] = mine.detach();
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_TRUE(at::allclose(at::cat(shard_logits, 1), logits, 1e-5, 1e-5))
        << groups << " groups on " << ranks << " ranks";
    for (size_t i = 0; i < spec.parameters.size(); ++i) {
      const at::Tensor& want = whole.parameters[i].grad();
      const double limit = 1e-4 * want.abs().max().item<double>();
      for (int rank = 0; rank < ranks; ++rank) {
        const at::Tensor& got = shards[static_cast<size_t>(rank)].parameters[i].grad();
        EXPECT_LE(got.sub(slice_of(want, layout.block(i, rank))).abs().max().item<double>(), limit)
            << spec.parameters[i].spec.name << ", rank " << rank << " of " << ranks;
      }
    }
  }
}

TEST(Forward, a_sequence_does_not_see_its_neighbours) {
  const at::NoGradGuard no_grad;
  const auto spec = model::describe(shape_of(2), model::HeadKind::language);
  const WholeModel whole(spec, DrawnWeights(spec));
  const std::vector<int32_t> a{1, 2, 3, 4, 5}, b{9, 8, 7};
  const std::vector<std::span<const int32_t>> together{a, {}, b}, alone{b};
  const auto all = model::pack(together, at::kCPU);
  EXPECT_EQ(all.cu_seqlens, (std::vector<int64_t>{0, 5, 5, 8}));
  EXPECT_EQ(all.sequences(), 3);
  EXPECT_EQ(all.max_length, 5);
  const at::Tensor got = whole.hidden(all).narrow(0, 5, 3);
  EXPECT_TRUE(at::allclose(got, whole.hidden(model::pack(alone, at::kCPU)), 1e-5, 1e-6));
}

TEST(Forward, an_empty_batch_runs_and_gives_zero_gradients) {
  const auto spec = model::describe(shape_of(2), model::HeadKind::language);
  WholeModel whole(spec, DrawnWeights(spec));
  whole.require_grad();
  whole.hidden(model::pack({}, at::kCPU)).sum().backward();
  for (size_t i = 0; i < whole.parameters.size(); ++i) {
    const auto& name = spec.parameters[i].spec.name;
    if (name == "lm_head.weight") continue;
    ASSERT_TRUE(whole.parameters[i].grad().defined()) << name;
    EXPECT_EQ(whole.parameters[i].grad().abs().max().item<float>(), 0.f) << name;
  }
}

TEST(Forward, bf16_stays_close_to_fp32) {
  const at::NoGradGuard no_grad;
  const auto spec = model::describe(shape_of(2), model::HeadKind::language);
  const DrawnWeights weights(spec);
  const std::vector<int32_t> a{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const std::vector<std::span<const int32_t>> sequences{a};
  const auto batch = model::pack(sequences, at::kCPU);
  const at::Tensor exact = WholeModel(spec, weights).hidden(batch),
                   rough = WholeModel(spec, weights, at::kBFloat16).hidden(batch);
  EXPECT_EQ(rough.scalar_type(), at::kBFloat16);
  EXPECT_LE(rough.to(at::kFloat).sub(exact).abs().max().item<float>(), 0.06f);
}

}  // namespace
}  // namespace trireme::test
