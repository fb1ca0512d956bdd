// Steps of decoding that a device is given at once (kernels/device_graph.hpp). Each is filled up to
// one of few shapes; one that came a few times is recorded, and launched from then on, its numbers
// uploaded to where the recording reads them. The first launch is compared with the same kernels
// started one by one: where a bit of the batch's logits differs, or recording fails on any rank of
// the replica, steps are started kernel by kernel from then on. They are filled up in any case:
// results depend on the batch alone, not on the recording.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "step_indices.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/comm/recorded_collectives.hpp"
#include "trireme/kernels/device_graph.hpp"
#include "upload.hpp"

namespace trireme::generate {

class DecodeGraphs final : private comm::RecordedCollectives {
 public:
  // Logits [rows, this rank's slice of the vocabulary] of a step, from kernels that go to `stream`.
  using Forward =
      std::function<at::Tensor(const StepIndices& indices, const Upload& upload, void* stream)>;

  // `replica` must outlive this.
  DecodeGraphs(const comm::CommView& replica, at::Device device, Forward forward);

  // Whether this program has what it needs.
  static bool available(at::Device device);

  // `indices` of `rows` sequences, filled up to `shape`, were put into `upload` first: sends it,
  // and computes the logits [shape.rows, slice], which lie there until the next step. Collective
  // over the replica where the shape is recorded.
  at::Tensor run(const DecodeShape& shape, int64_t rows, StepIndices indices, Upload& upload);
  // Gives all memory back; recordings are made anew when they are wanted. Nothing is under way. On
  // every rank of the replica, when memory that kernels read or write besides the upload and the
  // logits came to lie somewhere else.
  void forget();

  int64_t launches() const { return launches_; }
  int64_t recordings() const { return recordings_; }
  int64_t waits() const { return waits_; }  // of the host for the device, to record

 private:
  struct Step {
    int seen = 0;
    int64_t used = 0;  // the last time; a count of launches
    std::unique_ptr<StepIndices>
        indices;  // read by the recording: sizes on the host, places on the device
    std::unique_ptr<Upload> upload;
    std::unique_ptr<kernels::DeviceGraph> graph;
  };
  void send(Upload& upload);
  at::Tensor record(const DecodeShape& shape, int64_t rows, Step& step);
  void drop_recordings();
  void drop() override { drop_recordings(); }
  void make_room(const at::Tensor& logits);
  std::string problem_of_recording(const DecodeShape& shape, Step& step, const at::Tensor& want);
  bool agree(const std::string& problem);

  comm::CommView replica_;
  at::Device device_;
  Forward forward_;
  bool put_aside_ = false;
  at::Tensor inputs_;  // bytes
  at::Tensor logits_;  // [rows of the largest shape, slice]
  std::unique_ptr<kernels::DeviceGraphs> graphs_;
  std::map<DecodeShape, Step> steps_;  // gone before graphs_
  int64_t launches_ = 0, recordings_ = 0, waits_ = 0;
};

}  // namespace trireme::generate
