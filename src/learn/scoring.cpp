#include "torch/torch.hpp"

#include "trireme/learn/scoring.hpp"

#include <cstring>
#include <numeric>

#include "trireme/base/error.hpp"
#include "trireme/kernels/log_sum_exp.hpp"
#include "trireme/kernels/to_device.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/ppo/minibatches.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::learn {
namespace {

at::Tensor index_tensor(const std::vector<int64_t>& values) {
  const auto count = static_cast<int64_t>(values.size());
  at::Tensor tensor = at::empty({count}, at::kLong);
  if (count) std::memcpy(tensor.data_ptr(), values.data(), values.size() * sizeof(int64_t));
  return tensor;
}

// The micro-batches of sequences with these lengths; the same number on every rank, empty ones at
// the end.
ppo::Bins agreed_micro_batches(const std::vector<int64_t>& lengths, const ScoringPass& by) {
  auto bins = ppo::micro_batches(lengths, by.micro_batch_tokens, 1);
  bins.resize(static_cast<size_t>(by.pass.ranks.max(static_cast<int64_t>(bins.size()))));
  return bins;
}

constexpr trace::Name received = "sequences_received_while_scoring";

// Calls `compute(batch, which)` for micro-batches of all samples. Collective.
template <class Compute>
comm::Then for_micro_batches(const Samples& samples, const ScoringPass& by, Compute compute) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < samples.size(); ++i) lengths.push_back(samples.length(i));
  for (const auto& which : agreed_micro_batches(lengths, by)) {
    compute(make_action_batch(samples, which, by.device), which);
    if (by.pass.next(received) == comm::Then::leave) return comm::Then::leave;
  }
  return comm::Then::go_on;
}

// One number for each of some places, from micro-batches; on the device until the host reads all at
// once.
class DeviceValues {
 public:
  // values [n] for the next n places.
  void add(const at::Tensor& values, std::span<const int64_t> places) {
    values_.push_back(values.detach().to(at::kFloat).reshape({-1}));
    places_.insert(places_.end(), places.begin(), places.end());
  }
  void write(std::span<float> all) const {
    if (values_.empty()) return;
    const at::Tensor host = at::cat(values_).to(at::kCPU);
    EXPECT(host.numel() == std::ssize(places_));
    const auto* from = host.const_data_ptr<float>();
    for (const int64_t place : places_) all[static_cast<size_t>(place)] = *from++;
  }

 private:
  std::vector<at::Tensor> values_;
  std::vector<int64_t> places_;
};

// Where the action tokens of a micro-batch stand among all tokens of the samples.
std::vector<int64_t> places_of(const ActionBatch& batch, const Samples& samples,
                               const std::vector<int64_t>& which) {
  const auto* column = batch.host_columns.const_data_ptr<int64_t>();
  const int64_t count = batch.host_columns.numel();
  std::vector<int64_t> places;
  for (size_t s = 0; s < which.size(); ++s) {
    const int64_t shift = samples.begin(which[s]) - batch.packed.cu_seqlens[s];
    for (auto k = std::ssize(places); k < count && column[k] < batch.packed.cu_seqlens[s + 1]; ++k)
      places.push_back(column[k] + shift);
  }
  return places;
}

// f32 [T] on the host: the values at their places, 0 elsewhere.
at::Tensor written(const Samples& samples, const DeviceValues& values) {
  at::Tensor all = at::zeros({samples.tokens()}, at::kFloat);
  values.write({all.mutable_data_ptr<float>(), static_cast<size_t>(all.numel())});
  return all;
}

}  // namespace

ActionBatch make_action_batch(const Samples& samples, std::span<const int64_t> which,
                              at::Device device) {
  ActionBatch batch;
  std::vector<std::span<const int32_t>> sequences;
  std::vector<int64_t> columns;
  std::vector<int64_t> rows;
  std::vector<int64_t> targets;
  std::vector<int64_t> cu{0};
  int64_t first = 0;
  for (const int64_t i : which) {
    sequences.push_back(samples.tokens_of(i));
    const int64_t begin = samples.begin(i);
    for (int64_t t = 1; t < samples.length(i); ++t) {
      if (!samples.action_mask[static_cast<size_t>(begin + t)]) continue;
      columns.push_back(first + t);
      rows.push_back(first + t - 1);
      targets.push_back(samples.ids[static_cast<size_t>(begin + t)]);
    }
    cu.push_back(static_cast<int64_t>(columns.size()));
    first += samples.length(i);
  }
  batch.packed = model::pack(sequences, device);
  batch.segments = ppo::Segments(cu, device);
  batch.host_columns = index_tensor(columns);
  batch.columns = kernels::to_device(batch.host_columns, device);
  batch.rows = kernels::to_device(index_tensor(rows), device);
  batch.targets = kernels::to_device(index_tensor(targets), device);
  return batch;
}

ActionBatch make_action_batch(const Samples& samples, at::Device device) {
  std::vector<int64_t> all(static_cast<size_t>(samples.size()));
  std::iota(all.begin(), all.end(), int64_t{0});
  return make_action_batch(samples, all, device);
}

at::Tensor action_log_probs(zero::ShardedModel& model, const Samples& samples,
                            const ScoringPass& by, double temperature, model::AdapterUse adapter) {
  DeviceValues values;
  const comm::Then then =
      for_micro_batches(samples, by, [&](const ActionBatch& batch, const auto& which) {
        const trace::Region region{"log-prob micro-batch", batch.packed.tokens()};
        model.forward(
            batch.packed,
            [&](const at::Tensor& hidden, const kernels::HeadWeight& head_weight) {
              const auto head =
                  kernels::token_log_probs(hidden.index_select(0, batch.rows), head_weight,
                                           batch.targets, temperature, kernels::Entropy::skip);
              values.add(head.log_probs, places_of(batch, samples, which));
            },
            adapter);
      });
  return then == comm::Then::leave ? at::Tensor{} : written(samples, values);
}

at::Tensor action_values(zero::ShardedModel& model, const Samples& samples, const ScoringPass& by,
                         const ScoreScale& scale) {
  DeviceValues values;
  const comm::Then then =
      for_micro_batches(samples, by, [&](const ActionBatch& batch, const auto& which) {
        const trace::Region region{"value micro-batch", batch.packed.tokens()};
        model.forward(batch.packed, [&](const at::Tensor& hidden, const at::Tensor& head_weight) {
          values.add(score_head(hidden.index_select(0, batch.rows), head_weight, scale),
                     places_of(batch, samples, which));
        });
      });
  return then == comm::Then::leave ? at::Tensor{} : written(samples, values);
}

std::optional<std::vector<float>> sequence_scores(
    zero::ShardedModel& model, const std::vector<std::vector<int32_t>>& sequences,
    const ScoringPass& by, const ScoreScale& scale, model::AdapterUse adapter) {
  std::vector<int64_t> lengths;
  for (const auto& ids : sequences) lengths.push_back(static_cast<int64_t>(ids.size()));
  DeviceValues values;
  for (const auto& which : agreed_micro_batches(lengths, by)) {
    std::vector<std::span<const int32_t>> parts;
    for (const int64_t i : which) parts.emplace_back(sequences[static_cast<size_t>(i)]);
    const model::PackedBatch packed = model::pack(parts, by.device);
    model.forward(
        packed,
        [&](const at::Tensor& hidden, const at::Tensor& head_weight) {
          values.add(score_head(hidden.index_select(0, last_tokens(packed)), head_weight), which);
        },
        adapter);
    if (by.pass.next(received) == comm::Then::leave) return std::nullopt;
  }
  std::vector<float> all(sequences.size());
  values.write(all);
  for (float& score : all)
    score = static_cast<float>((double{score} - scale.mean) / scale.deviation);
  return all;
}

at::Tensor last_tokens(const model::PackedBatch& packed) {
  std::vector<int64_t> last;
  for (size_t i = 1; i < packed.cu_seqlens.size(); ++i) last.push_back(packed.cu_seqlens[i] - 1);
  return kernels::to_device(index_tensor(last), packed.ids.device());
}

ScoreScale critic_scale(const config::Options& options, const config::ModelShape& critic) {
  if (!options.reward.normalize_enable || !critic.score_mean || !critic.score_std) return {};
  return {*critic.score_mean, *critic.score_std};
}

at::Tensor score_head(const at::Tensor& hidden, const at::Tensor& head_weight,
                      const ScoreScale& scale) {
  const at::Tensor scores =
      at::linear(hidden.to(at::kFloat), head_weight.to(at::kFloat)).squeeze(1);
  return scale.mean == 0 && scale.deviation == 1 ? scores
                                                 : scores.sub(scale.mean).div(scale.deviation);
}

}  // namespace trireme::learn
