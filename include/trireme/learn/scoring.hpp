// Forward passes over samples and the pieces that scoring and training share: packing
// micro-batches, picking the rows whose next token is an action. Legend: T packed tokens, A action
// tokens, D hidden, V vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/comm/progress.hpp"
#include "trireme/config/options.hpp"
#include "trireme/model/forward.hpp"
#include "trireme/ppo/packed.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::learn {

// Some sequences packed for a model, with the bookkeeping of their action tokens. Columns are
// action tokens only.
struct ActionBatch {
  model::PackedBatch packed;
  ppo::Segments segments;   // action columns per sequence
  at::Tensor columns;       // i64 [A]: index into the packed tokens of each action token
  at::Tensor host_columns;  // the same on the host
  at::Tensor rows;          // i64 [A]: columns - 1, the position that predicts it
  at::Tensor targets;       // i64 [A]: the token there
};
// Sequences `which` of `samples`; tensors on `device`.
ActionBatch make_action_batch(const Samples& samples, std::span<const int64_t> which,
                              at::Device device);
ActionBatch make_action_batch(const Samples& samples, at::Device device);  // all of them

// How a model goes over sequences: in micro-batches of at most so many tokens, on a device, with
// `pass` between two of them.
struct ScoringPass {
  comm::Pass pass;
  int64_t micro_batch_tokens;
  at::Device device = at::kCPU;
};

// Log-probabilities of the action tokens at `temperature`: f32 [T] on the host, 0 elsewhere;
// undefined where the pass was left. Collective over the ranks of the pass, the communicator that
// the model's passes are collective over; ranks may have any number of sequences.
at::Tensor action_log_probs(zero::ShardedModel& model, const Samples& samples,
                            const ScoringPass& by, double temperature,
                            model::AdapterUse adapter = model::AdapterUse::applied);

// The output of a score head is used as (score - mean) / deviation.
struct ScoreScale {
  double mean = 0;
  double deviation = 1;
};
// F6: with reward.normalize_enable a critic uses `mean` and `std` of its config.json; one without
// them is left as it is.
ScoreScale critic_scale(const config::Options& options, const config::ModelShape& critic);

// Values of a model with a score head: for each action token the value at the position before it;
// f32 [T], 0 elsewhere; undefined where the pass was left. Collective like action_log_probs.
at::Tensor action_values(zero::ShardedModel& model, const Samples& samples, const ScoringPass& by,
                         const ScoreScale& scale);

// A score for each sequence, in their order: the score head at its last token (F5); nullopt where
// the pass was left. Collective like action_log_probs.
std::optional<std::vector<float>> sequence_scores(
    zero::ShardedModel& model, const std::vector<std::vector<int32_t>>& sequences,
    const ScoringPass& by, const ScoreScale& scale,
    model::AdapterUse adapter = model::AdapterUse::applied);

// i64 [sequences] on the device of `packed`: the last token of each.
at::Tensor last_tokens(const model::PackedBatch& packed);

// hidden [A, D] times a score head [1, D] in fp32: [A], differentiable. The last bits of a row may
// depend on A (kernels/row_invariant.hpp has no such layers).
at::Tensor score_head(const at::Tensor& hidden, const at::Tensor& head_weight,
                      const ScoreScale& scale = {});

}  // namespace trireme::learn
