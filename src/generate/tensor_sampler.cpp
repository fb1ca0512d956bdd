#include "torch/torch.hpp"

#include "tensor_sampler.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "trireme/base/philox.hpp"
#include "trireme/base/text.hpp"
#include "trireme/kernels/sampling.hpp"

namespace trireme::generate {
namespace {

using kernels::DrawResult;
using kernels::DrawRow;

DrawRow row_of(const DrawRequest& request, int64_t vocabulary) {
  const SamplingParams& p = *request.sampling;
  DrawRow row;
  row.kept = request.kept.get();
  row.row = request.row;
  row.top_p = p.top_p;
  row.top_k = p.top_k;
  row.min_p = p.min_p;
  row.repetition_penalty = static_cast<float>(p.repetition_penalty);
  row.scale = p.temperature == 0 ? 1.f : static_cast<float>(1.0 / p.temperature);
  row.uniform = base::uniform(p.seed, base::Stream::sampling, request.request, request.position);
  if (p.temperature == 0) {
    row.kind = DrawRow::Kind::greedy;
  } else if (kernels::Truncation{p.top_p, p.top_k, p.min_p}.active(vocabulary)) {
    row.kind = DrawRow::Kind::truncated;
  }
  return row;
}

Drawn drawn_of(const DrawRow& row, const DrawResult& result) {
  kernels::LogSumExp full;
  full.max = result.full_max;
  full.sum = result.full_sum;
  Drawn out{result.id, result.full_z - full.log_sum_exp(), std::nullopt};
  if (row.kind == DrawRow::Kind::truncated) {
    out.sample_log_prob = static_cast<float>(
        static_cast<double>(result.z) - static_cast<double>(result.best) - std::log(result.kept));
  }
  return out;
}

}  // namespace

TensorSampler::TensorSampler(kernels::ElementType type, std::vector<int64_t> slice_first, int rank,
                             at::Device device, const kernels::DrawKernels& kernels,
                             comm::RankSums* sums)
    : type_(type),
      slice_first_(std::move(slice_first)),
      rank_(rank),
      device_(device),
      kernels_(kernels),
      sums_(sums) {
  for (size_t r = 0; r + 1 < slice_first_.size(); ++r)
    longest_slice_ = std::max(longest_slice_, slice_first_[r + 1] - slice_first_[r]);
}

std::vector<int64_t> vocabulary_cuts(const GeneratorWeights& weights, size_t head) {
  std::vector<int64_t> cuts{0};
  for (int r = 0; r < weights.degree(); ++r)
    cuts.push_back(cuts.back() + weights.layout().block(head, r).rows);
  return cuts;
}

void TensorSampler::plan(std::span<const DrawRequest> requests, Upload& upload) {
  rows_.clear();
  changed_ = truncated_ = 0;
  std::vector<int32_t> forbidden, seen;
  std::vector<TokenBias> biases;
  for (const DrawRequest& request : requests) {
    DrawRow& row = rows_.emplace_back(row_of(request, slice_first_.back()));
    if (row.kind == DrawRow::Kind::truncated) row.truncated = truncated_++;
    const std::vector<TokenBias>& of_request = request.sampling->logit_bias;
    if (request.forbidden.empty() && of_request.empty() && request.seen.empty()) continue;
    row.changed = changed_++;
    row.bias_first = static_cast<int32_t>(biases.size());
    row.bias_count = static_cast<int32_t>(of_request.size());
    biases.insert(biases.end(), of_request.begin(), of_request.end());
    row.forbidden_first = static_cast<int32_t>(forbidden.size());
    row.forbidden_count = static_cast<int32_t>(request.forbidden.size());
    forbidden.insert(forbidden.end(), request.forbidden.begin(), request.forbidden.end());
    row.seen_first = static_cast<int32_t>(seen.size());
    row.seen_count = static_cast<int32_t>(request.seen.size());
    seen.insert(seen.end(), request.seen.begin(), request.seen.end());
  }
  row_piece_ = upload.put(rows_);
  forbidden_piece_ = upload.put(forbidden);
  bias_piece_ = upload.put(biases);
  seen_piece_ = upload.put(seen);
  slice_piece_ = upload.put(slice_first_);
}

kernels::DrawArguments TensorSampler::arguments(const at::Tensor& logits, const Upload& upload) {
  kernels::DrawArguments a{};
  a.logits = logits.const_data_ptr();
  a.bf16 = type_ == kernels::ElementType::bf16;
  a.count = own_ids();
  a.rows = static_cast<int64_t>(rows_.size());
  a.row = upload.data<DrawRow>(row_piece_);
  a.forbidden = upload.data<int32_t>(forbidden_piece_);
  a.biases = upload.data<TokenBias>(bias_piece_);
  a.seen = upload.data<int32_t>(seen_piece_);
  a.rank = rank_;
  a.ranks = static_cast<int>(slice_first_.size()) - 1;
  a.slice_first = upload.data<int64_t>(slice_piece_);
  a.chunks = kernels::draw_chunks(a.count);
  a.slice_stride = longest_slice_;
  a.truncated_rows = truncated_;
  const auto take = [&]<class T>(T*& pointer, Scratch which, int64_t elements,
                                 int64_t element_bytes = sizeof(T)) {
    at::Tensor& memory = scratch_[which];
    const int64_t bytes = elements * element_bytes;
    if (!memory.defined() || memory.numel() < bytes) {
      memory = at::Tensor();  // not both at a time
      memory = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device_));
    }
    pointer = static_cast<T*>(memory.mutable_data_ptr());
  };
  const auto take_logits = [&](void*& pointer, Scratch which, int64_t elements) {
    std::byte* bytes = nullptr;
    take(bytes, which, elements * static_cast<int64_t>(kernels::size_of(type_)));
    pointer = bytes;
  };
  take(a.running, running, a.rows * a.chunks);
  take(a.values, values, a.rows * kernels::draw_values(a.chunks));
  take(a.places, places, a.rows * a.chunks * kernels::draw_lanes);
  take(a.segments, segments, truncated_ > 0 ? a.rows * kernels::draw_segments : 0);
  take_logits(a.changed, changed, changed_ * a.count);
  take_logits(a.slices, slices, a.ranks > 1 ? a.ranks * a.truncated_rows * a.slice_stride : 0);
  take(a.summaries, summaries, a.ranks * a.rows);
  take(a.results, drawn, a.ranks * a.rows);
  return a;
}

std::vector<Drawn> TensorSampler::draw(const at::Tensor& logits, const Upload& upload) {
  const kernels::DrawArguments a = arguments(logits, upload);
  kernels_.summarise(a);
  if (sums_) {
    sums_->gather(a.summaries, a.rows * static_cast<int64_t>(sizeof(kernels::DrawSummary)));
    if (truncated_ > 0)
      sums_->gather(a.slices, a.truncated_rows * a.slice_stride *
                                  static_cast<int64_t>(kernels::size_of(type_)));
  }
  kernels_.choose(a);
  if (sums_) sums_->gather(a.results, a.rows * static_cast<int64_t>(sizeof(DrawResult)));
  const std::vector<DrawResult> all = results(scratch_[drawn], a.ranks * a.rows);
  std::vector<Drawn> out;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const auto of_rank = [&](int r) { return all[static_cast<size_t>(r) * rows_.size() + i]; };
    out.push_back(drawn_of(rows_[i], of_rank(of_rank(rank_).owner)));
  }
  return out;
}

std::vector<DrawResult> TensorSampler::results(const at::Tensor& on_device, int64_t rows) const {
  const int64_t bytes = rows * static_cast<int64_t>(sizeof(DrawResult));
  const at::Tensor host = host_bytes(bytes, device_);
  host.copy_(on_device.narrow(0, 0, bytes));  // waits
  std::vector<DrawResult> out(static_cast<size_t>(rows));
  std::memcpy(out.data(), host.const_data_ptr(), static_cast<size_t>(bytes));
  return out;
}

std::string draws_problem(at::Device device, const kernels::DrawKernels& kernels) {
  constexpr int64_t ids = 9001;  // more than two chunks
  std::vector<SamplingParams> ways(9);
  ways[1].temperature = ways[5].temperature = 0;
  ways[2].top_p = ways[6].top_p = 0.7;
  ways[3].top_k = 40;
  ways[7].min_p = 0.05;
  ways[7].repetition_penalty = 1.3;
  ways[8].min_p = 0.2;
  for (size_t way = 4; way < ways.size(); ++way)
    ways[way].logit_bias = {{17, 4}, {300, -2}, {8000, 2.5f}};
  const std::vector<int32_t> forbidden{17, 4096};
  std::vector<DrawRequest> requests;
  for (const SamplingParams& way : ways) {
    for (const bool forbids : {false, true}) {
      const auto row = static_cast<int64_t>(requests.size());
      requests.push_back({row, nullptr, &way, 3, static_cast<uint32_t>(row),
                          forbids ? forbidden : std::span<const int32_t>{}});
      if (way.repetition_penalty != 1) requests.back().seen = {5, 17, 8999};
    }
  }
  const auto rows = static_cast<int64_t>(requests.size());
  const at::Tensor values = at::arange(rows * ids, at::TensorOptions().dtype(at::kFloat))
                                .mul(0.37)
                                .sin()
                                .mul(4)
                                .view({rows, ids});
  for (const auto& [type, scalar] : {std::pair{kernels::ElementType::f32, at::kFloat},
                                     {kernels::ElementType::bf16, at::kBFloat16}}) {
    const auto draw = [&, type = type, scalar = scalar](at::Device where,
                                                        const kernels::DrawKernels& by) {
      TensorSampler sampler(type, {0, ids}, 0, where, by, nullptr);
      Upload upload;
      sampler.plan(requests, upload);
      upload.send(where);
      return sampler.draw(values.to(scalar).to(where), upload);
    };
    const auto want = draw(at::kCPU, kernels::draws_on_host), got = draw(device, kernels);
    for (size_t i = 0; i < want.size(); ++i) {
      if (got[i].id == want[i].id && std::abs(got[i].log_prob - want[i].log_prob) <= 1e-4f)
        continue;
      return base::text("draw ", i, " in ", c10::toString(scalar), " gave id ", got[i].id,
                        " with log-prob ", got[i].log_prob, " instead of ", want[i].id, " with ",
                        want[i].log_prob);
    }
  }
  return {};
}

}  // namespace trireme::generate
