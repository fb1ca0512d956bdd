// Legend: M rows of the step, S positions of a sequence, H query heads, K KV heads, hd head size, D
// hidden, V vocabulary rows.
#include "torch/torch.hpp"

#include "torch_backend.hpp"

#include <algorithm>
#include <utility>

#include "fused_operators.hpp"
#include "trireme/base/checked.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/text.hpp"
#include "trireme/kernels/device_kernels.hpp"
#include "trireme/kernels/device_type.hpp"
#include "trireme/kernels/row_invariant.hpp"
#include "trireme/kernels/sampling.hpp"
#include "trireme/kernels/scalar_type.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/model/gathered_attention.hpp"
#include "upload.hpp"

namespace trireme::generate {
namespace {

// The kernel over pages has neither windows nor caps.
bool attends_plainly(const model::ModelSpec& spec) {
  return std::ranges::all_of(spec.stages, [](const model::Stage& stage) {
    return std::ranges::all_of(stage.operations, [](const model::Operation& operation) {
      const auto* attend = std::get_if<model::Attend>(&operation);
      return attend == nullptr || attend->scores.plain();
    });
  });
}

}  // namespace

class TorchBackend::PagedStrategy final : public model::Strategy {
 public:
  PagedStrategy(TorchBackend& backend, const StepIndices& indices, const Upload& upload)
      : backend_(backend),
        indices_(indices),
        upload_(upload),
        kernel_{backend.attend_pages_, backend.page_size_} {}

  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const model::Scores& scores, const model::PackedBatch&, int layer) override {
    const at::Tensor cache = backend_.cache_.select(1, layer);
    cache.select(0, 0).index_copy_(0, indices_.written, k);
    cache.select(0, 1).index_copy_(0, indices_.written, v);
    return attend_to_cache(q, scores, layer);
  }

  // To all that the layer has of the sequences, the step's rows included.
  at::Tensor attend_to_cache(const at::Tensor& q, const model::Scores& scores, int layer) {
    const at::Tensor cache = backend_.cache_.select(1, layer);  // [2, slots, K, hd]
    if (indices_.queries.empty()) return attend_gathered(q, scores, cache);
    const at::Tensor from = q.contiguous(), out = at::empty_like(from);
    indices_.queries.attend(kernel_, upload_, from, scores.scale,
                            {cache.select(0, 0), cache.select(0, 1)}, out);
    ++backend_.paged_attention_calls_;
    if (indices_.gathering.numel() > 0)
      out.index_copy_(0, indices_.gathering,
                      attend_gathered(from.index_select(0, indices_.gathering), scores, cache));
    return out;
  }

  at::Tensor reduce(const at::Tensor& partial) override {
    if (!backend_.sums_) return partial;
    at::Tensor sum = partial.contiguous();
    backend_.sums_->add_up(sum.mutable_data_ptr(), sum.numel(),
                           sum.scalar_type() == at::kFloat ? comm::DType::f32 : comm::DType::bf16);
    return sum;
  }

  std::pair<int64_t, int64_t> vocabulary_rows(int64_t) override {
    return {backend_.shape_.vocabulary_first, backend_.shape_.vocabulary_rows};
  }

 private:
  at::Tensor attend_gathered(const at::Tensor& q, const model::Scores& scores,
                             const at::Tensor& cache) {
    // One by one: keys and values of a layer are contiguous, both together are not, and LibTorch's
    // selection on hosts would copy them whole.
    const at::Tensor keys = cache.select(0, 0).index_select(0, indices_.read),
                     values = cache.select(0, 1).index_select(0, indices_.read);
    ++backend_.attention_calls_;
    return model::attend_gathered(q, keys, values, scores, indices_.lengths);
  }

  TorchBackend& backend_;
  const StepIndices& indices_;
  const Upload& upload_;
  PagedKernel kernel_;
};

// Sums take their place on a stream while this lives.
class TorchBackend::SumsOnStream {
 public:
  SumsOnStream(comm::RankSums* sums, void* stream) : sums_(sums) {
    if (sums_ != nullptr) sums_->use_stream(stream);
  }
  SumsOnStream(const SumsOnStream&) = delete;
  ~SumsOnStream() {
    if (sums_ != nullptr) sums_->use_stream(nullptr);
  }

 private:
  comm::RankSums* sums_;
};

int64_t TorchBackend::page_bytes(const LocalShape& shape, int64_t page_size) {
  return 2 * shape.layers * page_size * shape.kv_dim() * shape.element_bytes();
}

TorchBackend::TorchBackend(const model::ModelSpec& spec, const GeneratorWeights& weights,
                           int64_t pages, const EngineOptions& options,
                           const comm::CommView& tensor_parallel)
    : spec_(spec),
      weights_(weights),
      shape_(local_shape(spec, weights)),
      pages_(pages),
      page_size_(options.page_size),
      device_(weights.place() == Place::host ? at::kCPU : kernels::device_type()),
      sums_(tensor_parallel.size() > 1 ? comm::make_rank_sums(tensor_parallel, !on_host())
                                       : nullptr) {
  const auto cuts = vocabulary_cuts(weights, spec.head_parameter());
  const kernels::DrawKernels* own = draws_where_logits_lie(tensor_parallel);
  if (own == nullptr && tensor_parallel.size() > 1)
    draw_sums_ = comm::make_rank_sums(tensor_parallel, false);
  sampler_ = std::make_unique<TensorSampler>(shape_.logit_type, cuts, weights.rank(),
                                             own != nullptr ? device_ : at::Device(at::kCPU),
                                             own != nullptr ? *own : kernels::draws_on_host,
                                             own != nullptr ? sums_.get() : draw_sums_.get());
  if (options.fused_operators) fused_operators_ = fuses_operators(tensor_parallel);
  if (fused_operators_ && sums_ != nullptr)
    window_ = ProductWindow(*sums_, base::ceil_div<int64_t>(3 * options.max_batch, 2),
                            shape_.hidden * shape_.element_bytes());
  if (options.paged_attention && attends_plainly(spec))
    attend_pages_ = attention_over_pages(tensor_parallel);
  if (!options.graphs || attend_pages_ == nullptr || spec.shape.rope_scaling.by_length() ||
      model::selects_adapters(spec) || (sums_ != nullptr && !sums_->recordable()))
    return;
  if (!tensor_parallel.all(DecodeGraphs::available(device_))) return;
  graphs_ = std::make_unique<DecodeGraphs>(
      tensor_parallel, device_,
      [this](const StepIndices& indices, const Upload& upload, void* stream) {
        const SumsOnStream of_sums(sums_.get(), stream);
        const auto before = sums_ ? sums_->counters() : comm::RankSumsCounters{};
        at::Tensor logits = forward(indices, upload);
        if (sums_) count_sums(before, indices.written.numel());
        return logits;
      });
}

// Null: the host draws from what a device computes. The same on all ranks.
const kernels::DrawKernels* TorchBackend::draws_where_logits_lie(const comm::CommView& comm) const {
  if (on_host()) return &kernels::draws_on_host;
  const kernels::DeviceKernels* own = kernels::device_kernels();
  const at::NoGradGuard no_grad;
  const std::string problem = own != nullptr ? draws_problem(device_, own->draws)
                                             : "the program's kernels for GPUs are put aside";
  if (comm.all(problem.empty())) return &own->draws;
  if (!problem.empty())
    log::warning(
        base::text("tokens are drawn on the host, which waits for their logits (", problem, ")"));
  return nullptr;
}

// Null: LibTorch attends, to gathered pages. The same on all ranks.
AttendPages TorchBackend::attention_over_pages(const comm::CommView& comm) const {
  const kernels::DeviceKernels* own = kernels::device_kernels();
  if (on_host() || !comm.all(own != nullptr)) return nullptr;
  const at::NoGradGuard no_grad;
  const std::string problem = paged_attention_problem(device_, own->attend_pages, shape_);
  if (comm.all(problem.empty())) return own->attend_pages;
  if (!problem.empty())
    log::warning(
        base::text("keys and values of decoding sequences are gathered for LibTorch's attention (",
                   problem, ")"));
  return nullptr;
}

// The same on all ranks.
bool TorchBackend::fuses_operators(const comm::CommView& comm) const {
  const kernels::DeviceKernels* own = kernels::device_kernels();
  if (on_host() || !comm.all(own != nullptr)) return false;
  const at::NoGradGuard no_grad;
  const std::string problem = fused_operators_problem(device_, *own, shape_);
  if (!problem.empty())
    log::warning(
        base::text("layers are generated with an operator at a time, which takes more memory than "
                   "planned: generate.fused_operators=false plans it (",
                   problem, ")"));
  return comm.all(problem.empty());
}

std::vector<at::Tensor> TorchBackend::parameters(const model::Stage& stage) const {
  std::vector<at::Tensor> out;
  for (const size_t p : stage.parameters) out.push_back(weights_.tensor(p));
  return out;
}

void TorchBackend::reserve_positions(int64_t positions) {
  if (positions <= rope_positions_) return;
  rope_positions_ = std::min(spec_.shape.longest(), std::max<int64_t>(2 * positions, 512));
  ropes_ = model::make_ropes(spec_, rope_positions_, device_);
  if (graphs_) graphs_->forget();
}

void TorchBackend::release_cache() {
  if (graphs_) graphs_->forget();
  cache_ = logits_ = at::Tensor();
}

void TorchBackend::make_cache() {
  if (cache_.defined()) return;
  const int64_t slots = (pages_ + (graphs_ ? 1 : 0)) * page_size_;
  const auto options = at::TensorOptions().dtype(kernels::scalar_type(shape_.type)).device(device_);
  cache_ = at::zeros({2, shape_.layers, slots, shape_.kv_heads, shape_.head_dim}, options);
}

std::optional<DecodeShape> TorchBackend::recorded_shape(const StepBatch& batch) {
  if (!graphs_) return std::nullopt;
  if (weights_placed_ != weights_.times_placed()) graphs_->forget();
  weights_placed_ = weights_.times_placed();
  return DecodeShape::of(batch);
}

std::vector<Drawn> TorchBackend::step(const StepBatch& batch, std::span<const DrawRequest> draws) {
  const at::NoGradGuard no_grad;
  Upload upload, of_draws_on_host;
  Upload& of_draws = draws_on_host() ? of_draws_on_host : upload;
  const auto shape = recorded_shape(batch);
  StepIndices indices = shape ? StepIndices(batch, page_size_, *shape, static_cast<int32_t>(pages_))
                              : StepIndices(batch, page_size_, attend_pages_ != nullptr);
  indices.put(upload);
  sampler_->plan(draws, of_draws);
  ++uploads_;
  if (draws_on_host()) of_draws.send(at::kCPU);
  logits_ = at::Tensor();  // those of the last step were drawn from: not beside this one's
  if (shape) {
    logits_ = decode(*shape, batch.rows(), indices, upload);
  } else {
    upload.send(device_);
    compute(batch, indices, upload);
  }
  if (logits_.defined()) logits_ = logits_.to(sampler_->device()).contiguous();
  if (draws.empty()) return {};
  if (!on_host()) ++device_waits_;  // of the copy of logits or ids
  return sampler_->draw(logits_.defined() ? logits_ : at::empty({0}), of_draws);
}

void TorchBackend::compute(const StepBatch& batch, StepIndices& indices, Upload& upload) {
  indices.find(upload);
  if (batch.rows() == 0) return;
  model::fit_ropes(spec_, indices.rows, ropes_);
  make_cache();
  const at::Tensor logits = forward(indices, upload);
  if (!batch.logit_rows.empty()) logits_ = logits;
}

// Of a step of decoding, each shape of which is computed before it is recorded.
void TorchBackend::count_sums(const comm::RankSumsCounters& before, int64_t rows) {
  const comm::RankSumsCounters& now = sums_->counters();
  sums_of_row_.sums = now.sums - before.sums;
  sums_of_row_.bytes = (now.bytes - before.bytes) / rows;
  sums_of_row_.window_bytes = (now.window_bytes - before.window_bytes) / rows;
}

// A recording's work is counted here, since nothing is called; the calls that recorded it were
// counted again.
at::Tensor TorchBackend::decode(const DecodeShape& shape, int64_t rows, StepIndices& indices,
                                Upload& upload) {
  make_cache();
  const int64_t calls = paged_attention_calls_ + shape_.layers;
  auto sums = sums_ ? sums_->counters() : comm::RankSumsCounters{};
  const at::Tensor logits = graphs_->run(shape, rows, std::move(indices), upload);
  paged_attention_calls_ = calls;
  if (!sums_) return logits;
  sums.sums += sums_of_row_.sums;
  sums.bytes += sums_of_row_.bytes * shape.rows;
  sums.window_bytes += sums_of_row_.window_bytes * shape.rows;
  sums_->set_counters(sums);
  return logits;
}

// Logits [rows, this rank's slice] on the device, of a step that wants some.
at::Tensor TorchBackend::forward(const StepIndices& indices, const Upload& upload) {
  PagedStrategy strategy(*this, indices, upload);
  if (fused_operators_) {
    const auto attend = [&](const at::Tensor& q, const model::Scores& scores, int layer) {
      return strategy.attend_to_cache(q, scores, layer);
    };
    const FusedOperators::Step step{indices.rows, indices.written, indices.logit_rows,
                                    ropes_,       cache_,          strategy,
                                    attend,       window_};
    const at::Tensor normed = FusedOperators(spec_, weights_, step).run();
    return normed.defined() ? head(normed) : normed;
  }
  at::Tensor x;
  for (const model::Stage& stage : spec_.stages) {
    if (stage.kind == model::StageKind::head) {
      if (indices.logit_rows.numel() == 0) return {};
      x = x.index_select(0, indices.logit_rows);
    }
    x = model::run_stage({spec_, stage, parameters(stage), indices.rows, ropes_, strategy}, x);
  }
  return head(x);
}

// Logits [rows, this rank's slice] in the type of x, with what an adapter of the head adds.
at::Tensor TorchBackend::head(const at::Tensor& x) const {
  const model::Stage& stage = spec_.stages.back();
  const auto low = spec_.head_low_position(model::AdapterUse::applied);
  if (!low) return capped(product(x, spec_.head_parameter()));
  const size_t b = stage.parameters[*low];
  const int64_t rank = weights_.block(b).columns, width = x.size(1) - rank;
  return capped(product(x.narrow(1, 0, width), spec_.head_parameter())
                    .add(product(x.narrow(1, width, rank), b)));
}

// In the type of x, to which the weight is widened piece by piece.
at::Tensor TorchBackend::product(const at::Tensor& x, size_t parameter) const {
  const at::Tensor weight = weights_.tensor(parameter);
  if (weight.scalar_type() == x.scalar_type()) return kernels::linear(x, weight, std::nullopt);
  at::Tensor out = at::empty({x.size(0), weight.size(0)}, x.options());
  for (int64_t first = 0; first < weight.size(0); first += kernels::vocabulary_chunk) {
    const int64_t count = std::min(kernels::vocabulary_chunk, weight.size(0) - first);
    out.narrow(1, first, count)
        .copy_(
            kernels::linear(x, weight.narrow(0, first, count).to(x.scalar_type()), std::nullopt));
  }
  return out;
}

at::Tensor TorchBackend::capped(const at::Tensor& logits) const {
  if (spec_.shape.logit_cap > 0) kernels::cap_logits(logits, spec_.shape.logit_cap);
  return logits;
}

KeptLogits TorchBackend::keep(int64_t row) {
  const auto copy = std::make_shared<const at::Tensor>(logits_.select(0, row).clone());
  return {copy, copy->const_data_ptr()};
}

void TorchBackend::copy_page(int32_t from, int32_t to) {
  if (!cache_.defined()) return;
  at::NoGradGuard no_grad;
  cache_.narrow(2, to * page_size_, page_size_)
      .copy_(cache_.narrow(2, from * page_size_, page_size_));
}

void TorchBackend::report(EngineCounters& counters) const {
  counters.attention_calls = attention_calls_;
  counters.paged_attention_calls = paged_attention_calls_;
  counters.uploads = uploads_;
  counters.device_waits = device_waits_;
  if (graphs_) {
    counters.graph_steps = graphs_->launches();
    counters.graphs_recorded = graphs_->recordings();
    counters.device_waits += graphs_->waits();
  }
  if (!sums_) return;
  counters.sum_bytes = sums_->counters().bytes;
  counters.sum_host_bytes = sums_->counters().host_bytes;
  counters.sum_window_bytes = sums_->counters().window_bytes;
  counters.device_waits += sums_->counters().device_waits;
}

std::vector<std::string> TorchBackend::describe() const {
  return {base::text(
      "generation by LibTorch operations on ", on_host() ? "the host" : "a GPU",
      sums_ ? ", tensor-parallel sums by " + sums_->kind() : "",
      fused_operators_ ? ", several operators of a layer by one product or kernel" : "",
      attend_pages_ != nullptr
          ? ", attention of decoding sequences by a kernel of our own over pages in place"
          : "",
      graphs_ ? ", steps of decoding recorded and launched as one" : "")};
}

std::vector<std::string> TorchBackend::differences() const {
  return {base::text(attend_pages_ != nullptr ? "attention" : "LibTorch's attention", " on ",
                     on_host() ? "the host" : "a GPU",
                     " adds in another order than the trainer's")};
}

}  // namespace trireme::generate
