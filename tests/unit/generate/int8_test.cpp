// Generation over weights in 8 bits: texts and log-probs are those of the model that the copies
// stand for, whatever the batch, and change with the weights.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tiny_model.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/int8_gemm.hpp"

namespace trireme::test {
namespace {

using config::DType;
using generate::Engine;
using generate::EngineOptions;
using generate::GeneratorWeights;

EngineOptions int8_options(int64_t batch) {
  EngineOptions o;
  o.kv_bytes = int64_t{8} << 20;
  o.max_batch = batch;
  o.prefill_chunk_tokens = 30;
  o.threads = 2;
  return o;
}

GeneratorWeights in_8_bits(const model::ModelSpec& spec, DType type, uint64_t salt = 1) {
  GeneratorWeights weights = tiny_weights(spec, type, 0, 1, salt);
  weights.add_int8(spec);
  EXPECT_EQ(weights.quantise(), weights.int8_bytes());
  return weights;
}

// Every product's weight is the nearest multiple of its group's scale, by the definition.
GeneratorWeights what_they_stand_for(const model::ModelSpec& spec) {
  GeneratorWeights weights = tiny_weights(spec, DType::f32);
  const auto storage = weights.storage();
  for (size_t p = 0; p < storage.size(); ++p) {
    const base::Block b = weights.block(p);
    if (spec.parameters[p].spec.shape.size() != 2 ||
        spec.parameters[p].role == model::Role::embedding)
      continue;
    auto* values = reinterpret_cast<float*>(storage[p]);
    for (int64_t row = 0; row < b.rows; ++row) {
      for (int64_t begin = 0; begin < b.columns; begin += kernels::int8_group) {
        float* const first = values + row * b.columns + begin;
        float* const last =
            values + row * b.columns + std::min(begin + kernels::int8_group, b.columns);
        float largest = 0;
        for (const float* v = first; v < last; ++v) largest = std::max(largest, std::abs(*v));
        for (float* v = first; v < last; ++v)
          *v = std::nearbyint(*v * (127 / largest)) * (largest / 127);
      }
    }
  }
  return weights;
}

TEST(Int8, IsTheModelThatTheCopiesStandFor) {
  const auto spec = tiny_spec();
  const GeneratorWeights weights = in_8_bits(spec, DType::f32), plain = what_they_stand_for(spec);
  Engine engine(spec, weights, int8_options(4)), reference(spec, plain, int8_options(4));
  expect_close(run_all(reference, test::mixed_requests(500)),
               run_all(engine, test::mixed_requests(500)), 2e-5);
}

TEST(Int8, TextsDoNotDependOnTheBatch) {
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const bool tied : {false, true}) {
      const auto spec = tiny_spec(500, tied);
      const GeneratorWeights weights = in_8_bits(spec, type);
      Engine alone(spec, weights, int8_options(1)), together(spec, weights, int8_options(10));
      const Results want = run_all(alone, test::mixed_requests(500));
      expect_same(want, run_all(together, test::mixed_requests(500)));
      EngineOptions guessing = int8_options(3);
      guessing.speculation_tokens = 4;
      Engine guesses(spec, weights, guessing);
      expect_same(want, run_all(guesses, test::mixed_requests(500)));
    }
  }
}

// Log-probs of the same tokens by the model's own weights are near, and not the same.
TEST(Int8, DiffersALittleFromTheTrainedPolicy) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const auto spec = tiny_spec(500, true);
    const GeneratorWeights weights = in_8_bits(spec, type);
    Engine engine(spec, weights, int8_options(4));
    double sum = 0;
    int64_t count = 0;
    for (const auto& [id, result] : run_all(engine, test::mixed_requests(500))) {
      std::vector<int32_t> ids = tiny_prompt(5 + 9 * static_cast<int64_t>(id % 5), id % 5, 500);
      const size_t prompt = ids.size();
      ids.insert(ids.end(), result.output_ids.begin(), result.output_ids.end());
      const auto want = full_log_probs(spec, weights, ids, 1);
      for (size_t i = 0; i < result.log_probs.size(); ++i)
        sum += std::abs(double{result.log_probs[i]} - double{want[prompt + i - 1]});
      count += std::ssize(result.log_probs);
    }
    const double mean = sum / static_cast<double>(count);
    EXPECT_GT(mean, 1e-4);
    EXPECT_LT(mean, 0.05);
    ASSERT_EQ(engine.differences_from_training().size(), 1u);
    EXPECT_NE(engine.differences_from_training()[0].find("8 bits"), std::string::npos);
    const auto lines = engine.describe();
    EXPECT_TRUE(std::ranges::any_of(lines, [](const std::string& line) {
      return line.find("weights in 8 bits") != std::string::npos;
    }));
  }
}

TEST(Int8, FollowsTheWeights) {
  const auto spec = tiny_spec();
  GeneratorWeights weights = in_8_bits(spec, DType::bf16);
  const GeneratorWeights next = in_8_bits(spec, DType::bf16, 2);
  Engine engine(spec, weights, int8_options(4)), fresh(spec, next, int8_options(4));
  const Results before = run_all(engine, test::mixed_requests(500));
  const auto storage = weights.storage();
  for (size_t p = 0; p < storage.size(); ++p)
    std::memcpy(storage[p], next.data(p), static_cast<size_t>(next.block(p).elements() * 2));
  weights.set_version(1);
  weights.quantise();
  const Results after = run_all(engine, test::mixed_requests(500));
  expect_same(run_all(fresh, test::mixed_requests(500)), after);
  EXPECT_NE(before.at(1).log_probs, after.at(1).log_probs);
}

// A window that others own, and a copy of one's own beside it.
TEST(Int8, OfWeightsThatAreReadInPlace) {
  const auto spec = tiny_spec(500, true);
  const GeneratorWeights owner = tiny_weights(spec, DType::bf16),
                         own = in_8_bits(spec, DType::bf16);
  GeneratorWeights aliasing = GeneratorWeights::aliasing(spec, DType::bf16);
  std::vector<const std::byte*> pointers;
  for (size_t p = 0; p < spec.parameters.size(); ++p) pointers.push_back(owner.data(p));
  aliasing.alias(pointers);
  aliasing.add_int8(spec);
  aliasing.quantise();
  EXPECT_EQ(aliasing.bytes(), own.int8_bytes());
  Engine engine(spec, aliasing, int8_options(4)), reference(spec, own, int8_options(4));
  expect_same(run_all(reference, test::mixed_requests(500)),
              run_all(engine, test::mixed_requests(500)));
}

TEST(Int8, IsForTheFusedKernels) {
  const auto spec = tiny_spec();
  const GeneratorWeights weights = in_8_bits(spec, DType::f32);
  EngineOptions o = int8_options(4);
  o.backend = generate::BackendKind::torch;
  EXPECT_THROW(Engine(spec, weights, o), UserError);
}

}  // namespace
}  // namespace trireme::test
