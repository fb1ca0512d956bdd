// The table of operations: both forms of each give the same bits, and the ledger's counts are those
// of the block as it is written down.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/model/forward.hpp"

namespace trireme::model {
namespace {

config::ModelShape shape_of(config::Architecture architecture) {
  config::ModelShape s;
  s.architecture = architecture;
  s.vocab = 40;
  s.hidden = 48;
  s.layers = 2;
  s.heads = 6;
  s.kv_heads = 3;
  s.head_dim = 8;
  s.ffn = 56;
  s.norm_eps = 1e-5;
  s.qkv_bias = s.o_bias = true;
  return s;
}

at::Tensor drawn(const std::vector<int64_t>& shape, double frequency, at::ScalarType type) {
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  return at::arange(elements, at::TensorOptions().dtype(at::kFloat))
      .mul(frequency)
      .sin()
      .mul(2)
      .view(shape)
      .to(type);
}

constexpr int64_t rows = 5, columns = 48;

const std::byte* data(const at::Tensor& x) {
  return static_cast<const std::byte*>(x.const_data_ptr());
}

// By execute_row(), the row cut into pieces of `piece` elements.
at::Tensor by_rows(const Operation& operation, const Values& values, const at::Tensor& weight,
                   const PackedBatch& batch, const Ropes& ropes, int64_t piece) {
  const std::vector<Value> reads = reads_of(operation);
  const at::Tensor &in = values[reads.front().id], &other = values[reads.back().id];
  at::Tensor out = at::empty_like(in);
  const int64_t bytes = in.element_size();
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t first = 0; first < columns; first += piece) {
      const int64_t at = (i * columns + first) * bytes;
      const bool of_columns = division_of(operation) != Division::heads;
      execute_row(
          operation,
          {in.scalar_type() == at::kFloat ? base::ElementType::f32 : base::ElementType::bf16,
           data(in) + at, data(other) + at, static_cast<std::byte*>(out.mutable_data_ptr()) + at,
           piece, weight.defined() ? data(weight) + (of_columns ? first * bytes : 0) : nullptr,
           batch.positions.const_data_ptr<int64_t>()[i], &ropes});
    }
  }
  return out;
}

TEST(Operations, OnRowsGiveTheBitsOfTensorsAtEveryDivision) {
  const ModelSpec spec = describe(shape_of(config::Architecture::qwen3), HeadKind::language);
  const Stage& stage = spec.stages[1];
  const std::vector<int32_t> longer{1, 2, 3}, shorter{4, 5};
  const std::vector<std::span<const int32_t>> sequences{longer, shorter};
  const PackedBatch batch = pack(sequences, at::kCPU);
  const Ropes ropes = make_ropes(spec, 16, at::kCPU);
  Strategy strategy;
  const Value a{1}, b{2}, c{3};
  const std::vector<Operation> operations{
      Norm{a, c, Role::input_norm, 1e-3},
      Norm{a, c, Role::q_norm, 1e-3, 8},
      Rotate{a, 8},
      Gate{a, b, c},
      Add{a, b, c},
      AddBias{a, Role::o_bias},
      Scale{a, 0.37},
      Norm{a, c, Role::input_norm, 1e-3, 0, NormKind::rms_offset},
      Norm{a, c, Role::input_norm, 1e-3, 0, NormKind::centred},
      Rotate{a, 8, 0, true},
      Gate{a, b, c, GateKind::gelu_tanh},
      Scale{a, 0.37, true},
      ScaleByPosition{a, 0.3, 2}};
  const at::NoGradGuard no_grad;
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    std::vector<at::Tensor> parameters;
    for (const size_t p : stage.parameters)
      parameters.push_back(drawn(spec.parameters[p].spec.shape, 0.31, type));
    Values values(spec.values);
    values[a.id] = drawn({rows, columns}, 0.37, type);
    values[b.id] = drawn({rows, columns}, 0.73, type);
    const StagePass pass{spec, stage, parameters, batch, ropes, strategy};
    for (const Operation& operation : operations) {
      const auto role = weight_of(operation);
      const at::Tensor weight = role ? pass.parameter(*role) : at::Tensor();
      const at::Tensor want = execute(operation, pass, values);
      std::vector<int64_t> pieces{columns};
      if (division_of(operation) == Division::heads) pieces = {columns, 24, 8};
      if (division_of(operation) == Division::columns) pieces = {columns, 16, 3, 1};
      for (const int64_t piece : pieces) {
        EXPECT_TRUE(want.equal(by_rows(operation, values, weight, batch, ropes, piece)))
            << row_of(operation).name << ", pieces of " << piece << ", " << c10::toString(type);
      }
    }
  }
}

TEST(Operations, WhatIsNoWorkOnRowsIsRefused) {
  const RowSlice nothing{};
  EXPECT_THROW(execute_row(Spread{Value{1}}, nothing), InternalError);
  EXPECT_THROW(execute_row(Linear{Value{1}, Value{2}, Role::q, {}}, nothing), InternalError);
}

TEST(Operations, ReadWriteAndWeighWhatTheirMembersSay) {
  const Value a{1}, b{2}, c{3}, d{4};
  EXPECT_EQ(reads_of(Attend{a, b, c, d, 8, 1}), (std::vector{a, b, c}));
  EXPECT_EQ(result_of(Attend{a, b, c, d, 8, 1}), d);
  EXPECT_EQ(reads_of(Gate{a, b, c}), (std::vector{a, b}));
  EXPECT_EQ(reads_of(LookUp{a, Role::embedding}), std::vector<Value>{});
  EXPECT_EQ(reads_of(Rotate{c, 8}), std::vector{c});
  EXPECT_EQ(result_of(Rotate{c, 8}), c);
  EXPECT_EQ(weight_of(Linear{a, b, Role::q, Role::q_bias}), Role::q);
  EXPECT_EQ(bias_of(Linear{a, b, Role::q, Role::q_bias}), Role::q_bias);
  EXPECT_EQ(bias_of(Linear{a, b, Role::q, {}}), std::nullopt);
  EXPECT_EQ(weight_of(Add{a, b, c}), std::nullopt);
}

// Backward reads: the norms' inputs (the first one's is the stage's), what products multiply,
// rotated q and k, v, attention's result, gate, up and their product.
TEST(Operations, KeepWhatBackwardReads) {
  const int64_t hidden = 48, q = 48, kv = 24, ffn = 56, heads = 6, kv_heads = 3;
  const auto kept = [](config::Architecture architecture, Kept OperationRow::*by) {
    return kept_by_block(describe(shape_of(architecture), HeadKind::language), by);
  };
  const KeptColumns llama = kept(config::Architecture::llama, &OperationRow::own),
                    qwen3 = kept(config::Architecture::qwen3, &OperationRow::own),
                    composed = kept(config::Architecture::llama, &OperationRow::composed);
  EXPECT_EQ(llama.values, 3 * hidden + 2 * q + 2 * kv + 3 * ffn);
  EXPECT_EQ(llama.numbers, heads + 2);
  EXPECT_EQ(qwen3.values, llama.values + q + kv) << "heads before their norms";
  EXPECT_EQ(qwen3.numbers, llama.numbers + heads + kv_heads);
  EXPECT_EQ(composed.values, 4 * hidden + 3 * q + 3 * kv + 3 * ffn);
  EXPECT_EQ(composed.numbers, 4 * hidden + 3 * ffn);
}

}  // namespace
}  // namespace trireme::model
