// Tensor parallelism in one process: the shards of every rank computed by threads, `reduce` adding them.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

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
  const base::TensorSpec& spec(std::string_view name) const override { return spec_.parameters[index(name)].spec; }
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

class ShardStrategy : public model::Strategy {
 public:
  ShardStrategy(Meeting& meeting, int rank, base::Block vocabulary) : meeting_(meeting), rank_(rank), vocabulary_(vocabulary) {}
  at::Tensor reduce(const at::Tensor& partial) override {
    meeting_.parts[static_cast<size_t>(rank_)] = partial;
    meeting_.barrier.arrive_and_wait();
    at::Tensor sum = meeting_.parts[0];
    for (size_t i = 1; i < meeting_.parts.size(); ++i) sum = sum.add(meeting_.parts[i]);
    meeting_.barrier.arrive_and_wait();
    return sum;
  }
  std::pair<int64_t, int64_t> vocabulary_rows(int64_t) override { return {vocabulary_.row, vocabulary_.rows}; }

 private:
  Meeting& meeting_;
  int rank_;
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

TEST(TensorParallel, shards_add_up_to_the_whole_model) {
  const at::NoGradGuard no_grad;
  for (const auto& [groups, ranks] : {std::pair(2, 2), std::pair(3, 2), std::pair(3, 3), std::pair(4, 1)}) {
    const auto spec = model::describe(shape_of(groups), model::HeadKind::language);
    const DrawnWeights weights(spec);
    const WholeModel whole(spec, weights);
    const std::vector<int32_t> a{1, 100, 50, 3, 99, 0, 7}, b{42}, c{5, 6, 5, 6};
    const std::vector<std::span<const int32_t>> sequences{a, b, c};
    const auto batch = model::pack(sequences, at::kCPU);
    const at::Tensor hidden = whole.hidden(batch);
    const at::Tensor logits = at::linear(hidden, whole.head());

    const auto layout = model::tensor_parallel_layout(spec, ranks);
    Meeting meeting(ranks);
    std::vector<at::Tensor> shard_logits(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        const at::NoGradGuard no_grad_here;
        WholeModel shard = whole;
        for (size_t i = 0; i < shard.parameters.size(); ++i) {
          const auto block = layout.block(i, rank);
          at::Tensor part = shard.parameters[i].narrow(0, block.row, block.rows);
          if (part.dim() == 2) part = part.narrow(1, block.column, block.columns);
          shard.parameters[i] = part.contiguous();
        }
        ShardStrategy strategy(meeting, rank, layout.block(spec.index_of(model::Role::embedding), rank));
        shard_logits[static_cast<size_t>(rank)] = at::linear(shard.hidden(batch, strategy), shard.head());
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_TRUE(at::allclose(at::cat(shard_logits, 1), logits, 1e-5, 1e-5)) << groups << " groups on " << ranks << " ranks";
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
