// Padded golden rows as this program holds sequences, and the golden models on the ranks of the
// test job. Legend: B rows, T columns of tokens, A columns of a mask (the last A targets of a row),
// N packed tokens of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "support/golden.hpp"
#include "trireme/base/placed.hpp"
#include "trireme/base/samples.hpp"
#include "trireme/comm/shard_exchange.hpp"
#include "trireme/learn/scoring.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::test {

// The rows of a case that are this rank's (ranks.hpp), padding cut off on either side. Sequence i
// is row rows[i], its id.
class GoldenRows {
 public:
  // `prefix` is put before the fields "sequences" and "attention_mask". Every token but the first
  // of a row is a target.
  explicit GoldenRows(const GoldenCase& c, const std::string& prefix = "");
  // ids and attention_mask i64 [B, T].
  GoldenRows(const at::Tensor& ids, const at::Tensor& attended);

  const std::vector<int64_t>& rows() const { return rows_; }
  int64_t count() const { return count_; }  // B
  Samples& samples() { return samples_; }
  const Samples& samples() const { return samples_; }
  // Sets the samples' mask from one [B, A] whose column a is about token T - A + a.
  void set_action_mask(const at::Tensor& mask);
  // Columns [B, A] (a is about token T - A + a) -> f32 [N], 0 at tokens without a column.
  at::Tensor pack(const at::Tensor& columns) const;
  // [N, ...] -> f64 [B, T, ...] of all ranks, zeros at padding. Collective.
  at::Tensor unpack(const at::Tensor& packed) const;
  // The same without column 0: about targets, f64 [B, T - 1]. Collective.
  at::Tensor targets(const at::Tensor& packed) const;

 private:
  std::vector<int64_t> rows_;
  int64_t count_ = 0;
  int64_t width_ = 0;
  Samples samples_;
  std::vector<int64_t> column_;  // [N]: the token's column in its row
  std::vector<int64_t> row_;     // [N]
};

// The case's model in fp32, sharded over the test job; `score` (may be undefined) replaces the
// weight of a score head.
zero::ShardedModel load_golden_model(const GoldenCase& c, model::HeadKind head,
                                     const zero::ShardedModelOptions& options = {},
                                     const at::Tensor& score = {});
// Where the case's model lies.
std::string model_path(const GoldenCase& c);
// Its weights for ShardedModel::load.
zero::ReadRows golden_reader(const GoldenCase& c, const model::ModelSpec& spec,
                             const at::Tensor& score = {});

// The action tokens of a case's rows ("action_mask"), as this rank's micro-batch.
struct ActionRows {
  explicit ActionRows(const GoldenCase& c);
  learn::ActionBatch batch;
  double count = 0;  // action tokens of all ranks
};
// Adds the gradients of the masked mean of the log-probabilities times `sign`; returns that.
// Collective.
double forward_backward(zero::ShardedModel& model, const ActionRows& rows, double sign);

size_t parameter_index(const model::ModelSpec& spec, const std::string& name);
// Copies values of a model's state, wherever they are.
void copy_values(base::Placed<const float> from, base::Placed<float> to, int64_t count);
// A whole parameter from the shards `own` of all ranks. Collective.
at::Tensor whole_parameter(zero::ShardedModel& model, size_t parameter,
                           base::Placed<const float> own);

}  // namespace trireme::test
