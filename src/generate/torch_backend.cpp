// Legend: M rows of the step, S positions of a sequence, H query heads, K KV heads, hd head size, D hidden, V vocabulary rows.
#include "torch/torch.hpp"

#include "torch_backend.hpp"

#include <cstring>
#include <numeric>

#include "trireme/base/error.hpp"
#include "trireme/kernels/device_type.hpp"
#include "trireme/kernels/row_invariant.hpp"

namespace trireme::generate {
namespace {

at::Tensor index_tensor(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(at::ArrayRef<int64_t>(values), at::TensorOptions().dtype(at::kLong)).to(device);
}

// Cache slots of positions [0, count) of a sequence.
std::vector<int64_t> slots_of(const SequenceRows& sequence, int64_t count, int64_t page_size) {
  std::vector<int64_t> slots(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    slots[static_cast<size_t>(i)] = sequence.pages[static_cast<size_t>(i / page_size)] * page_size + i % page_size;
  }
  return slots;
}

// True where row i (position first + i) may see key j: [rows, keys].
at::Tensor causal_mask(int64_t first, int64_t rows, int64_t keys, at::Device device) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  return at::le(at::arange(keys, options).unsqueeze(0), at::arange(first, first + rows, options).unsqueeze(1));
}

}  // namespace

class TorchBackend::PagedStrategy final : public model::Strategy {
 public:
  PagedStrategy(TorchBackend& backend, const StepBatch& batch) : backend_(backend), batch_(batch) {
    std::vector<int64_t> written;
    for (const SequenceRows& s : batch.sequences) {
      const std::vector<int64_t> slots = slots_of(s, s.first_position + s.rows, backend.page_size_);
      written.insert(written.end(), slots.begin() + s.first_position, slots.end());
      slots_.push_back(index_tensor(slots, backend.device_));
      masks_.push_back(s.rows > 1 ? causal_mask(s.first_position, s.rows, s.first_position + s.rows, backend.device_) : at::Tensor());
    }
    written_ = index_tensor(written, backend.device_);
  }

  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const model::PackedBatch&, int layer) override {
    at::Tensor keys = backend_.cache_.select(0, 0).select(0, layer), values = backend_.cache_.select(0, 1).select(0, layer);
    keys.index_copy_(0, written_, k);
    values.index_copy_(0, written_, v);
    const auto heads_first = [](const at::Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };  // [1, heads, S, hd]
    std::vector<at::Tensor> out;
    int64_t row = 0;
    for (size_t s = 0; s < slots_.size(); ++s) {
      const int64_t rows = batch_.sequences[s].rows;
      const at::Tensor attended = at::scaled_dot_product_attention(
          heads_first(q.narrow(0, row, rows)), heads_first(keys.index_select(0, slots_[s])),
          heads_first(values.index_select(0, slots_[s])), masks_[s].defined() ? std::optional(masks_[s]) : std::nullopt, 0.0, false,
          std::nullopt, q.size(1) != k.size(1));
      out.push_back(attended.squeeze(0).transpose(0, 1));
      row += rows;
    }
    return at::cat(out, 0);
  }

  at::Tensor reduce(const at::Tensor& partial) override {
    if (!backend_.sums_) return partial;
    at::Tensor sum = partial.contiguous();
    backend_.sums_->add_up(sum.mutable_data_ptr(), sum.numel(), sum.scalar_type() == at::kFloat ? comm::DType::f32 : comm::DType::bf16);
    return sum;
  }

  std::pair<int64_t, int64_t> vocabulary_rows(int64_t) override {
    return {backend_.shape_.vocabulary_first, backend_.shape_.vocabulary_rows};
  }

 private:
  TorchBackend& backend_;
  const StepBatch& batch_;
  at::Tensor written_;               // slots of all rows
  std::vector<at::Tensor> slots_;    // of each sequence, positions 0 .. last
  std::vector<at::Tensor> masks_;    // undefined for single rows, which see everything
};

int64_t TorchBackend::page_bytes(const LocalShape& shape, int64_t page_size) {
  return 2 * shape.layers * page_size * shape.kv_dim() * shape.element_bytes();
}

TorchBackend::TorchBackend(const model::ModelSpec& spec, const GeneratorWeights& weights, int64_t pages, int64_t page_size,
                           const comm::CommView& tensor_parallel)
    : spec_(spec), weights_(weights), shape_(local_shape(spec, weights)), pages_(pages), page_size_(page_size),
      device_(weights.place() == Place::host ? at::kCPU : kernels::device_type()) {
  if (tensor_parallel.size() > 1) sums_ = comm::make_rank_sums(tensor_parallel, !on_host());
}

std::vector<at::Tensor> TorchBackend::parameters(const model::Stage& stage) const {
  std::vector<at::Tensor> out;
  for (const size_t p : stage.parameters) out.push_back(weights_.tensor(p));
  return out;
}

void TorchBackend::reserve_positions(int64_t positions) {
  if (positions <= rope_positions_) return;
  rope_positions_ = std::min(spec_.shape.max_positions, std::max<int64_t>(2 * positions, 512));
  rope_ = model::make_rope(spec_.shape, rope_positions_, device_);
}

std::vector<kernels::LogitsRow> TorchBackend::forward(const StepBatch& batch) {
  if (batch.rows() == 0) return {};
  at::NoGradGuard no_grad;
  const auto type = shape_.type == kernels::ElementType::f32 ? at::kFloat : at::kBFloat16;
  if (!cache_.defined()) {
    cache_ = at::zeros({2, shape_.layers, pages_ * page_size_, shape_.kv_heads, shape_.head_dim},
                       at::TensorOptions().dtype(type).device(device_));
  }
  PagedStrategy strategy(*this, batch);
  model::PackedBatch rows;
  rows.ids = index_tensor({batch.ids.begin(), batch.ids.end()}, device_);
  rows.positions = index_tensor(batch.positions, device_);
  for (const SequenceRows& sequence : batch.sequences) rows.cu_seqlens.push_back(rows.tokens() + sequence.rows);
  at::Tensor x;
  for (const model::Stage& stage : spec_.stages) {
    if (stage.kind == model::StageKind::head) {
      if (batch.logit_rows.empty()) return {};
      x = x.index_select(0, index_tensor({batch.logit_rows.begin(), batch.logit_rows.end()}, device_));
    }
    x = model::run_stage(spec_, stage, parameters(stage), x, rows, rope_, strategy);
  }
  logits_ = kernels::linear(x, weights_.tensor(spec_.head_parameter()), std::nullopt).to(at::kCPU).contiguous();
  std::vector<kernels::LogitsRow> out;
  for (int64_t i = 0; i < logits_.size(0); ++i) {
    const auto* row = static_cast<const std::byte*>(logits_.const_data_ptr()) + i * logits_.size(1) * shape_.element_bytes();
    out.push_back({shape_.type, row, shape_.vocabulary_rows});
  }
  return out;
}

void TorchBackend::copy_page(int32_t from, int32_t to) {
  if (!cache_.defined()) return;
  at::NoGradGuard no_grad;
  cache_.narrow(2, to * page_size_, page_size_).copy_(cache_.narrow(2, from * page_size_, page_size_));
}

void TorchBackend::report(EngineCounters& counters) const {
  if (!sums_) return;
  counters.sum_bytes = sums_->counters().bytes;
  counters.sum_host_bytes = sums_->counters().host_bytes;
}

std::vector<std::string> TorchBackend::describe() const {
  return {base::text("generation by LibTorch operations on ", on_host() ? "the host" : "a GPU", sums_ ? ", tensor-parallel sums by " + sums_->kind() : "")};
}

std::vector<std::string> TorchBackend::differences() const {
  return {base::text("LibTorch's attention on ", on_host() ? "the host" : "a GPU", " adds in another order than the trainer's")};
}

}  // namespace trireme::generate
