#include "torch/torch.hpp"

#include "trireme/model/spec.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "support/source_folder.hpp"
#include "trireme/base/error.hpp"

namespace trireme::model {
namespace {

config::ModelShape small_shape() {
  config::ModelShape shape;
  shape.vocab = 256;
  shape.hidden = 48;
  shape.layers = 2;
  shape.heads = 6;
  shape.kv_heads = 3;
  shape.head_dim = 8;
  shape.ffn = 80;
  return shape;
}

struct Published {
  const char* name;
  int64_t parameters;
};
class PublishedShape : public testing::TestWithParam<Published> {};

TEST_P(PublishedShape, HasThePublishedParameterCount) {
  const auto shape =
      config::load_model_shape(test::source_folder() / "inputs" / "models" / GetParam().name);
  const auto spec = describe(shape, HeadKind::language);
  EXPECT_EQ(spec.elements(), GetParam().parameters) << config::describe(shape, spec.elements());
}
INSTANTIATE_TEST_SUITE_P(
    Models, PublishedShape,
    testing::Values(Published{"llama3-8b", 8030261248}, Published{"llama3-70b", 70553706496},
                    Published{"smollm2-135m", 134515008}, Published{"smollm2-360m", 361821120},
                    Published{"smollm2-1.7b", 1711376384}, Published{"qwen2.5-0.5b", 494032768},
                    Published{"qwen2.5-7b", 7615616512}, Published{"qwen3-0.6b", 596049920}));

TEST(Describe, lists_what_the_shape_asks_for) {
  for (const bool tied : {false, true}) {
    for (const bool bias : {false, true}) {
      auto shape = small_shape();
      shape.tied = tied;
      shape.qkv_bias = shape.o_bias = bias;
      const auto spec = describe(shape, HeadKind::language);
      ASSERT_EQ(spec.stages.size(), 4u);
      EXPECT_EQ(spec.stages[1].parameters.size(), bias ? 13u : 9u);
      EXPECT_EQ(spec.stages[2].layer, 1);
      EXPECT_EQ(spec.parameters[spec.head_parameter()].role,
                tied ? Role::embedding : Role::lm_head);
      EXPECT_EQ(spec.stages[3].parameters[1], spec.head_parameter());
    }
  }
}

TEST(Describe, score_head_has_its_own_name_and_one_row) {
  auto shape = small_shape();
  shape.tied = true;
  shape.value_head_prefix = "value_head";
  const auto spec = describe(shape, HeadKind::score);
  const auto& head = spec.parameters[spec.index_of(Role::score)];
  EXPECT_EQ(head.spec.name, "value_head.weight");
  EXPECT_EQ(head.spec.shape, (std::vector<int64_t>{1, 48}));
  EXPECT_EQ(spec.parameters[spec.index_of(Role::up, 1)].spec.name,
            "model.layers.1.mlp.up_proj.weight");
  EXPECT_THROW(spec.index_of(Role::lm_head), InternalError);
}

TEST(Describe, mlp_biases) {
  auto shape = small_shape();
  shape.mlp_bias = true;
  const ModelSpec spec = describe(shape, HeadKind::language);
  EXPECT_EQ(spec.parameters[spec.index_of(Role::down_bias, 1)].spec.name,
            "model.layers.1.mlp.down_proj.bias");
}

TEST(Describe, fused_weights_are_rows_of_one_tensor) {
  auto shape = small_shape();
  shape.architecture = config::Architecture::phi3;
  shape.qkv_bias = shape.o_bias = false;
  const ModelSpec spec = describe(shape, HeadKind::language);
  const int64_t all = shape.q_dim() + 2 * shape.kv_dim();
  const auto stored = [&](Role role) { return *spec.parameters[spec.index_of(role, 1)].stored; };
  EXPECT_EQ(stored(Role::v).tensor.name, "model.layers.1.self_attn.qkv_proj.weight");
  EXPECT_EQ(stored(Role::v).tensor.shape, (std::vector<int64_t>{all, shape.hidden}));
  EXPECT_EQ(stored(Role::v).first_row, shape.q_dim() + shape.kv_dim());
  EXPECT_EQ(stored(Role::up).first_row, shape.ffn);
}

TEST(TensorParallelLayout, covers_every_element_once_where_it_is_cut) {
  for (const int64_t groups : {1, 2, 3, 5, 8}) {
    auto shape = small_shape();
    shape.kv_heads = groups;
    shape.heads = 2 * groups;
    shape.qkv_bias = shape.o_bias = true;
    const auto spec = describe(shape, HeadKind::language);
    for (int degree = 1; degree <= groups; ++degree) {
      const auto layout = tensor_parallel_layout(spec, degree);
      for (size_t i = 0; i < spec.parameters.size(); ++i) {
        const auto& tensor = spec.parameters[i].spec;
        int64_t elements = 0;
        for (int rank = 0; rank < degree; ++rank) {
          const auto block = layout.block(i, rank);
          EXPECT_FALSE(block.empty()) << tensor.name;
          elements += block.elements();
        }
        const bool whole = layout.block(i, 0).elements() == tensor.elements();
        EXPECT_EQ(elements, whole ? degree * tensor.elements() : tensor.elements()) << tensor.name;
        const Role role = spec.parameters[i].role;
        const bool norm = role == Role::input_norm || role == Role::post_norm ||
                          role == Role::final_norm || role == Role::o_bias;
        EXPECT_EQ(whole, norm || degree == 1) << tensor.name;
      }
    }
  }
}

TEST(TensorParallelLayout, three_groups_on_two_ranks) {
  const auto spec = describe(small_shape(), HeadKind::language);
  const auto layout = tensor_parallel_layout(spec, 2);
  const auto q = spec.index_of(Role::q, 0), k = spec.index_of(Role::k, 0),
             o = spec.index_of(Role::o, 0);
  EXPECT_EQ(layout.block(q, 0), (base::Block{0, 32, 0, 48}));  // 2 groups of 2 heads of 8
  EXPECT_EQ(layout.block(q, 1), (base::Block{32, 16, 0, 48}));
  EXPECT_EQ(layout.block(k, 1), (base::Block{16, 8, 0, 48}));
  EXPECT_EQ(layout.block(o, 1), (base::Block{0, 48, 32, 16}));
}

TEST(TensorParallelLayout, refuses_more_ranks_than_groups_naming_both) {
  const auto spec = describe(small_shape(), HeadKind::language);
  try {
    tensor_parallel_layout(spec, 4);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::configuration);
    EXPECT_NE(std::string(error.what()).find("4 ranks"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("3 KV heads"), std::string::npos);
  }
}

TEST(InitialValues, do_not_depend_on_the_block) {
  const auto spec = describe(small_shape(), HeadKind::language);
  const auto index = spec.index_of(Role::down, 1);
  const auto& tensor = spec.parameters[index].spec;
  std::vector<float> whole(static_cast<size_t>(tensor.elements()));
  initial_values(spec, index, {0, tensor.rows(), 0, tensor.columns()}, 5, whole.data());
  const base::Block block{7, 9, 3, 21};
  std::vector<float> part(static_cast<size_t>(block.elements()));
  initial_values(spec, index, block, 5, part.data());
  for (int64_t row = 0; row < block.rows; ++row) {
    for (int64_t column = 0; column < block.columns; ++column) {
      EXPECT_EQ(
          part[static_cast<size_t>(row * block.columns + column)],
          whole[static_cast<size_t>((block.row + row) * tensor.columns() + block.column + column)]);
    }
  }
}

TEST(InitialValues, have_the_distribution_of_their_role) {
  auto shape = small_shape();
  shape.vocab = 2000;
  shape.qkv_bias = true;
  const auto spec = describe(shape, HeadKind::score);
  const auto draw = [&](Role role, int layer) {
    const auto index = spec.index_of(role, layer);
    const auto& tensor = spec.parameters[index].spec;
    at::Tensor out = at::empty(tensor.shape, at::TensorOptions().dtype(at::kFloat));
    initial_values(spec, index, {0, tensor.rows(), 0, tensor.columns()}, 1,
                   out.mutable_data_ptr<float>());
    return out;
  };
  const at::Tensor embedding = draw(Role::embedding, -1);
  EXPECT_NEAR(embedding.std().item<float>(), 0.02, 0.0005);
  EXPECT_NEAR(embedding.mean().item<float>(), 0.0, 0.0005);
  EXPECT_TRUE(at::equal(draw(Role::input_norm, 0), at::ones({48})));
  EXPECT_TRUE(at::equal(draw(Role::q_bias, 1), at::zeros({48})));
  EXPECT_NEAR(draw(Role::score, -1).std().item<float>(), 1.0 / 49, 0.008);
  EXPECT_FALSE(at::equal(draw(Role::gate, 0), draw(Role::up, 0)));
}

TEST(InitialValues, actor_and_critic_share_the_backbone) {
  const auto actor = describe(small_shape(), HeadKind::language),
             critic = describe(small_shape(), HeadKind::score);
  std::vector<float> a(48), b(48);
  initial_values(actor, actor.index_of(Role::q, 1), {3, 1, 0, 48}, 9, a.data());
  initial_values(critic, critic.index_of(Role::q, 1), {3, 1, 0, 48}, 9, b.data());
  EXPECT_EQ(a, b);
}

}  // namespace
}  // namespace trireme::model
