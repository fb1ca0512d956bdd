// A small Llama with awkward sizes, batches that differ by rank, and the gradients of a plain
// single-process graph.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trireme/config/model_shape.hpp"
#include "trireme/model/forward.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::test {

enum class Tied : uint8_t { no, yes };

// 3 layers, hidden 24, 4/2 heads of 6, ffn 50, vocabulary 37: no number of rows that 3 or 4 ranks
// divide evenly everywhere.
config::ModelShape tiny_shape(Tied tied);

// Deterministic in (seed); `lengths` of its sequences; empty lengths give an empty batch.
model::PackedBatch tiny_batch(const config::ModelShape& shape, uint64_t seed,
                              const std::vector<int64_t>& lengths);

// What rank `rank` works on in micro-batch `step`: unequal work, and nothing at all for some.
model::PackedBatch tiny_work(const config::ModelShape& shape, int rank, int step);

// - sum of next-token log-probabilities / 100: a sum over tokens, so that ranks and micro-batches
// simply add.
at::Tensor next_token_loss(const at::Tensor& hidden, const at::Tensor& head_weight,
                           const model::PackedBatch& batch);
// sum of squares of a score head's outputs / 100
at::Tensor score_loss(const at::Tensor& hidden, const at::Tensor& head_weight);
zero::Loss loss_of(const model::ModelSpec& spec, const model::PackedBatch& batch);

void initial_rows(const model::ModelSpec& spec, size_t parameter, const base::Block& block,
                  float* out);
// initial_rows of a spec that outlives it.
zero::ReadRows initial_reader(const model::ModelSpec& spec);

// Whole parameters, f32.
std::vector<at::Tensor> whole_parameters(const model::ModelSpec& spec);

// Gradients of whole parameters, of an ordinary graph over `batches`, computed in `compute`: f32
// and bf16 by the kernels that the sharded model has, sums in f32; f64 by LibTorch's operators and
// in f64 throughout, so it is the same on every processor.
std::vector<at::Tensor> plain_gradients(const model::ModelSpec& spec,
                                        const std::vector<at::Tensor>& parameters,
                                        const std::vector<model::PackedBatch>& batches,
                                        at::ScalarType compute);

// A large eps: a gradient of rounding size must not become a step of size lr.
zero::AdamWOptions adam();
// Optimizer steps of adam() on whole parameters by LibTorch, of the trainable ones, over the
// tiny_work() of all ranks; returns the norms before clipping.
std::vector<double> plain_steps(const model::ModelSpec& spec, std::vector<at::Tensor>& parameters,
                                int ranks, int steps);
// That the trainable parameters of a model are these.
void expect_trained(zero::ShardedModel& model, const std::vector<at::Tensor>& want);

// Rows of a whole parameter that `block` names.
at::Tensor rows_of(const at::Tensor& whole, const base::Block& block);

// Largest |got - want| over the largest |want| of the whole parameter; 0 for no rows.
double relative_error(const float* got, const base::Block& own, const at::Tensor& want_whole);

// The kinds of exchange between the CPUs of this test's ranks: one window where all are on one
// node.
std::vector<comm::ExchangeKind> exchanges_here();

}  // namespace trireme::test
