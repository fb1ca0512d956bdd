#include "torch/torch.hpp"

#include "decode_graphs.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/text.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::generate {
namespace {

constexpr int steps_before_recording =
    4;  // of a shape: one that sequences only pass through is not worth it
constexpr int64_t most_recordings = 32;  // plan/generation_bytes.cpp knows it
constexpr int64_t room_to_grow = 4;      // of uploads, whose lists of pages grow with the answers

// The bits, of whatever type.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::ScalarType bits = a.element_size() == 2 ? at::kShort : at::kInt;
  return at::equal(a.view(bits), b.view(bits));
}

}  // namespace

DecodeGraphs::DecodeGraphs(const comm::CommView& replica, at::Device device, Forward forward)
    : replica_(replica), device_(device), forward_(std::move(forward)) {}

bool DecodeGraphs::available(at::Device device) {
  return kernels::make_device_graphs(device) != nullptr;
}

void DecodeGraphs::forget() {
  steps_.clear();
  graphs_.reset();
  inputs_ = logits_ = at::Tensor();
}

void DecodeGraphs::drop_recordings() {
  for (auto& [shape, step] : steps_) step.graph.reset();
}

// To where all recordings read.
void DecodeGraphs::send(Upload& upload) {
  if (!inputs_.defined() || inputs_.numel() < upload.bytes()) {
    drop_recordings();
    inputs_ = at::empty({room_to_grow * upload.bytes()},
                        at::TensorOptions().dtype(at::kByte).device(device_));
  }
  upload.send_to(inputs_);
}

at::Tensor DecodeGraphs::run(const DecodeShape& shape, int64_t rows, StepIndices indices,
                             Upload& upload) {
  send(upload);
  Step& step = steps_[shape];
  step.used = launches_;
  if (step.graph != nullptr) {
    EXPECT(indices.lies_as(*step.indices));
    step.graph->launch();
    ++launches_;
    return logits_.narrow(0, 0, shape.rows);
  }
  indices.find(upload);
  if (put_aside_ || ++step.seen < steps_before_recording) return forward_(indices, upload, nullptr);
  step.indices = std::make_unique<StepIndices>(std::move(indices));
  step.upload = std::make_unique<Upload>(upload);
  return record(shape, rows, step);
}

// For one recording more. The largest shape's logits: no recording can go on writing to where those
// of an earlier one lay.
void DecodeGraphs::make_room(const at::Tensor& logits) {
  if (!logits_.defined() || logits_.size(0) < logits.size(0)) {
    drop_recordings();
    logits_ = at::empty_like(logits);
  }
  Step* oldest = nullptr;
  int64_t recorded = 0;
  for (auto& [shape, step] : steps_) {
    if (step.graph == nullptr) continue;
    ++recorded;
    if (oldest == nullptr || step.used < oldest->used) oldest = &step;
  }
  if (recorded >= most_recordings) oldest->graph.reset();
}

at::Tensor DecodeGraphs::record(const DecodeShape& shape, int64_t rows, Step& step) {
  const trace::Region region{"record a step of decoding"};
  if (graphs_ == nullptr) graphs_ = kernels::make_device_graphs(device_);
  at::Tensor want;
  graphs_->rehearse([&](void* stream) { want = forward_(*step.indices, *step.upload, stream); });
  ++waits_;
  if (agree(problem_of_recording(shape, step, want))) {
    step.graph->launch();
    const at::Tensor got = logits_.narrow(0, 0, shape.rows);
    // Rows that fill up write one place: theirs need not be the same.
    ++waits_;
    if (agree(same_bits(got.narrow(0, 0, rows), want.narrow(0, 0, rows))
                  ? std::string()
                  : "its logits are others than those of the same kernels one by one")) {
      ++recordings_;
      return got;
    }
  }
  put_aside_ = true;
  drop_recordings();
  graphs_.reset();
  logits_ = at::Tensor();
  return want;
}

std::string DecodeGraphs::problem_of_recording(const DecodeShape& shape, Step& step,
                                               const at::Tensor& want) {
  try {
    make_room(want);
    step.graph = graphs_->record([this, &step, rows = shape.rows](void* stream) {
      logits_.narrow(0, 0, rows).copy_(forward_(*step.indices, *step.upload, stream));
    });
  } catch (const std::exception& error) { return error.what(); }
  return {};
}

bool DecodeGraphs::agree(const std::string& problem) {
  if (!problem.empty())
    log::warning(
        base::text("steps of decoding are started kernel by kernel from now on, which is slower: a "
                   "recorded one cannot be used (",
                   problem, ")"));
  return replica_.all(problem.empty());
}

}  // namespace trireme::generate
