// The forward pass of each stage, on packed tokens. This file fixes the numerics: where bf16 rounds
// (in bf16 the logits too); norm, RoPE, softmax and all sums in fp32. Every fast kernel follows it
// and is tested against it. Legend: T packed tokens, D hidden, hd head size.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "trireme/base/element_type.hpp"
#include "trireme/model/packed_batch.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/model/strategy.hpp"

namespace trireme::model {

// cos and sin [max_positions, dims / 2] in fp32; rows are gathered by position, or belong to the
// tokens of one batch, where frequencies depend on the length of each sequence.
struct Rope {
  at::Tensor cos;
  at::Tensor sin;
  at::Tensor of_tokens = {};  // i64 [T], 0, 1, ...; undefined: by position
};
using Ropes = std::vector<Rope>;  // of ModelSpec::rotations
Rope make_rope(const Rotation& rotation, int64_t max_positions, at::Device device);
Ropes make_ropes(const ModelSpec& spec, int64_t max_positions, at::Device device);
// Replaces the tables whose frequencies depend on the length of a sequence, for this batch.
void fit_ropes(const ModelSpec& spec, const PackedBatch& batch, Ropes& ropes);

// Which draws decide what is dropped: the same for a micro-batch whenever it is computed.
struct DropoutDraws {
  uint64_t seed = 0;
  int64_t step = 0;         // of the optimizer
  int64_t micro_batch = 0;  // of the step
  int rank = 0;             // of those with other tokens
};

// Read by the operations of a stage beside the values; `parameters` in the order of
// Stage::parameters. `ropes` reach all positions.
struct StagePass {
  const ModelSpec& spec;
  const Stage& stage;
  std::span<const at::Tensor> parameters;
  const PackedBatch& part;
  const Ropes& ropes;
  Strategy& strategy;
  const DropoutDraws* dropout = nullptr;  // null: nothing is dropped

  const at::Tensor& parameter(Role role) const;
};
using Values = std::vector<at::Tensor>;  // [ModelSpec::values], each [T, width]

// The result of one operation. Differentiable in the values and the parameters.
at::Tensor execute(const Operation& operation, const StagePass& pass, const Values& values);

// Runs the operations of pass.stage; x [T, D] is the stream of the stage before (undefined for the
// embedding): [T, D]. Of a head whose weight has an adapter [T, D + r]: Stage::low on the right.
at::Tensor run_stage(const StagePass& pass, const at::Tensor& x,
                     AdapterUse adapter = AdapterUse::applied);

// Elements of one row of values on the host: the row, or some of its heads or columns, as the
// operation's division allows. `out` may be `in`.
struct RowSlice {
  base::ElementType type;
  const std::byte* in;
  const std::byte* other;  // of operations that read two values
  std::byte* out;
  int64_t elements;
  const std::byte* weight;  // of these columns; of heads the head's
  int64_t position;         // of the row in its sequence
  const Ropes* ropes;
  int64_t row = 0;                               // of the step
  int32_t adapter = -1;                          // of its sequence
  std::array<const std::byte*, 4> numbers = {};  // of Activate
};
// The same bits as execute() on the host. Not for look_up, linear, attend, spread, reduce and drop,
// which are no work on single rows.
void execute_row(const Operation& operation, const RowSlice& slice);

// Norms over the last dimension, fp32 inside; NormKind says where they round. [.., D]
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                    NormKind kind = NormKind::rms);

}  // namespace trireme::model
