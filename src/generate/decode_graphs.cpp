#include "torch/torch.hpp"

#include "decode_graphs.hpp"

#include <algorithm>
#include <bit>
#include <exception>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/text.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::generate {
namespace {

constexpr int steps_before_recording = 4;  // of a shape: one that sequences only pass through is not worth it
constexpr size_t most_shapes = 256;

// The bits, of whatever type.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::ScalarType bits = a.element_size() == 2 ? at::kShort : at::kInt;
  return at::equal(a.view(bits), b.view(bits));
}

}  // namespace

DecodeGraphs::DecodeGraphs(const comm::CommView& replica, at::Device device, Forward forward)
    : replica_(replica), device_(device), forward_(std::move(forward)) {}

bool DecodeGraphs::available(at::Device device) { return kernels::make_device_graphs(device) != nullptr; }

std::optional<DecodeShape> DecodeGraphs::shape_of(const StepBatch& batch) {
  if (put_aside_) return std::nullopt;
  const auto shape = DecodeShape::of(batch);
  if (!shape) return std::nullopt;
  if (steps_.size() >= most_shapes && !steps_.contains(*shape)) forget();
  Step& step = steps_[*shape];
  if (step.graph == nullptr && ++step.seen < steps_before_recording) return std::nullopt;
  return shape;
}

void DecodeGraphs::forget() {
  steps_.clear();
  graphs_.reset();
  inputs_ = logits_ = at::Tensor();
}

// To where all recordings read.
void DecodeGraphs::send(Upload& upload) {
  if (!inputs_.defined() || inputs_.numel() < upload.bytes()) {
    forget();
    const auto bytes = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(upload.bytes())));
    inputs_ = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device_));
  }
  upload.send_to(inputs_);
}

at::Tensor DecodeGraphs::run(const DecodeShape& shape, StepIndices indices, Upload& upload) {
  send(upload);
  Step& step = steps_[shape];
  if (step.graph != nullptr) {
    EXPECT(indices.lies_as(*step.indices));
    step.graph->launch();
    ++launches_;
    return logits_.narrow(0, 0, shape.rows);
  }
  step.indices = std::make_unique<StepIndices>(std::move(indices));
  step.upload = std::make_unique<Upload>(upload);
  step.indices->find(*step.upload);
  return record(shape, step);
}

// The largest shape's; of an earlier one no recording can go on writing to where its logits lay.
void DecodeGraphs::make_room(const at::Tensor& logits) {
  if (logits_.defined() && logits_.size(0) >= logits.size(0)) return;
  for (auto& [shape, step] : steps_) step.graph.reset();
  logits_ = at::empty_like(logits);
}

at::Tensor DecodeGraphs::record(const DecodeShape& shape, Step& step) {
  const trace::Region region{"record a step of decoding"};
  if (graphs_ == nullptr) graphs_ = kernels::make_device_graphs(device_);
  at::Tensor want;
  graphs_->rehearse([&](void* stream) { want = forward_(*step.indices, *step.upload, stream); });
  make_room(want);
  if (agree(problem_of_recording(shape, step))) {
    step.graph->launch();
    const at::Tensor got = logits_.narrow(0, 0, shape.rows);
    if (agree(same_bits(got, want) ? std::string() : "its logits are others than those of the same kernels one by one")) {
      ++recordings_;
      return got;
    }
  }
  put_aside_ = true;
  forget();
  return want;
}

std::string DecodeGraphs::problem_of_recording(const DecodeShape& shape, Step& step) {
  try {
    step.graph = graphs_->record([this, &step, rows = shape.rows](void* stream) {
      logits_.narrow(0, 0, rows).copy_(forward_(*step.indices, *step.upload, stream));
    });
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

bool DecodeGraphs::agree(const std::string& problem) {
  if (!problem.empty()) log::warning(base::text("steps of decoding are started kernel by kernel, which is slower: a recorded one cannot be used (", problem, ")"));
  return replica_.all(problem.empty());
}

}  // namespace trireme::generate
