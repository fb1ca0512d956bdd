#include "torch/torch.hpp"

#include "parity/golden_rows.hpp"

#include <algorithm>

#include "parity/ranks.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/device_copies.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/model/model_files.hpp"

namespace trireme::test {

using at::Tensor;

GoldenRows::GoldenRows(const GoldenCase& c, const std::string& prefix)
    : GoldenRows(c.input(prefix + "sequences"), c.input(prefix + "attention_mask")) {}

GoldenRows::GoldenRows(const Tensor& ids, const Tensor& attended) {
  count_ = ids.size(0);
  width_ = ids.size(1);
  rows_ = dealt(count_);
  for (const int64_t row : rows_) {
    const size_t begin = samples_.ids.size();
    for (int64_t t = 0; t < width_; ++t) {
      if (attended[row][t].item<int64_t>() == 0) continue;
      samples_.action_mask.push_back(samples_.ids.size() > begin ? 1 : 0);
      samples_.ids.push_back(static_cast<int32_t>(ids[row][t].item<int64_t>()));
      column_.push_back(t);
      row_.push_back(row);
    }
    samples_.id.push_back(static_cast<uint64_t>(row));
    samples_.prompt_row.push_back(row);
    samples_.prompt_len.push_back(1);
    samples_.finish_reason.push_back(FinishReason::stop);
    samples_.cu_seqlens.push_back(static_cast<int64_t>(samples_.ids.size()));
  }
  samples_.log_probs.assign(samples_.ids.size(), 0.f);
  samples_.version.assign(samples_.ids.size(), 0);
}

void GoldenRows::set_action_mask(const Tensor& mask) {
  const int64_t first = width_ - mask.size(1);
  for (size_t n = 0; n < column_.size(); ++n) {
    const int64_t column = column_[n] - first;
    samples_.action_mask[n] = column >= 0 && mask[row_[n]][column].item<int64_t>() != 0;
  }
}

Tensor GoldenRows::pack(const Tensor& columns) const {
  const int64_t first = width_ - columns.size(1);
  Tensor out = at::zeros({static_cast<int64_t>(column_.size())});
  for (size_t n = 0; n < column_.size(); ++n) {
    if (column_[n] >= first) out[static_cast<int64_t>(n)] = columns[row_[n]][column_[n] - first];
  }
  return out;
}

Tensor GoldenRows::unpack(const Tensor& packed) const {
  std::vector<int64_t> where;
  for (size_t n = 0; n < column_.size(); ++n) where.push_back(row_[n] * width_ + column_[n]);
  const auto extra = packed.dim() > 1 ? packed.sizes().slice(1).vec() : std::vector<int64_t>{};
  std::vector<int64_t> shape{count_ * width_};
  shape.insert(shape.end(), extra.begin(), extra.end());
  Tensor all = at::zeros(shape, at::kDouble);
  if (!where.empty())
    all.index_copy_(0, at::tensor(where, at::kLong), packed.detach().to(at::kDouble));
  shape.front() = width_;
  shape.insert(shape.begin(), count_);
  return summed(all.reshape(shape));
}

Tensor GoldenRows::targets(const Tensor& packed) const {
  return unpack(packed).narrow(1, 1, width_ - 1);
}

std::string model_path(const GoldenCase& c) {
  return (Golden::folder() / c.word("model").value()).string();
}

zero::ReadRows golden_reader(const GoldenCase& c, const model::ModelSpec& spec,
                             const Tensor& score) {
  const auto folder = std::make_shared<model::ModelFolder>(model::open_model(model_path(c)));
  const auto unexpected = model::check_weights(spec, *folder->weights, model::Missing::score_head);
  if (!unexpected.empty())
    throw std::runtime_error(c.name + ": the model has other tensors, such as " +
                             unexpected.front());
  const size_t head = spec.stages.back().parameters[1];
  return [spec, folder, score, head](size_t p, const base::Block& block, float* out) {
    if (score.defined() && p == head) {
      const Tensor rows = score.narrow(0, block.row, block.rows).contiguous();
      std::copy(rows.const_data_ptr<float>(), rows.const_data_ptr<float>() + rows.numel(), out);
    } else {
      model::load_parameter(spec, p, block, *folder->weights, 0, out);
    }
  };
}

zero::ShardedModel load_golden_model(const GoldenCase& c, model::HeadKind head,
                                     const zero::ShardedModelOptions& options,
                                     const Tensor& score) {
  zero::ShardedModelOptions fp32 = options;
  fp32.compute = config::DType::f32;
  const auto spec = model::describe(model::open_model(model_path(c)).shape, head);
  zero::ShardedModel model(spec, world(), std::nullopt, at::kCPU, fp32);
  model.load(golden_reader(c, spec, score));
  return model;
}

ActionRows::ActionRows(const GoldenCase& c) {
  GoldenRows rows(c);
  rows.set_action_mask(c.input("action_mask"));
  batch = learn::make_action_batch(rows.samples(), at::kCPU);
  count = world().sum(static_cast<double>(batch.columns.numel()));
}

double forward_backward(zero::ShardedModel& model, const ActionRows& rows, double sign) {
  double value = 0;
  model.forward_backward(
      rows.batch.packed, [&](const Tensor& hidden, const kernels::HeadWeight& weight) {
        const auto out = kernels::token_log_probs(hidden.index_select(0, rows.batch.rows), weight,
                                                  rows.batch.targets, 1.0, kernels::Entropy::skip);
        const Tensor mean = out.log_probs.sum().mul(sign / rows.count);
        value = mean.item<double>();
        return mean;
      });
  return world().sum(value);
}

size_t parameter_index(const model::ModelSpec& spec, const std::string& name) {
  for (size_t p = 0; p < spec.parameters.size(); ++p) {
    if (spec.parameters[p].spec.name == name) return p;
  }
  throw InternalError("no parameter " + name);
}

void copy_values(base::Placed<const float> from, base::Placed<float> to, int64_t count) {
  if (from.memory() == base::Memory::host && to.memory() == base::Memory::host) {
    std::copy_n(from.host(), count, to.host());
    return;
  }
  const auto bytes = count * static_cast<int64_t>(sizeof(float));
  comm::start_copy({reinterpret_cast<std::byte*>(to.address()),
                    reinterpret_cast<const std::byte*>(from.address()), 1, bytes, bytes, bytes});
  comm::finish_copies();
}

Tensor whole_parameter(zero::ShardedModel& model, size_t p, base::Placed<const float> own) {
  Tensor whole = at::zeros(model.spec().parameters[p].spec.shape);
  const auto block = model.own(p);
  if (!block.empty()) {
    float* to = whole.data_ptr<float>() + block.row * block.columns;
    copy_values(own, {to, base::Memory::host}, block.elements());
  }
  return summed(whole);
}

}  // namespace trireme::test
