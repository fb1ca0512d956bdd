// Copies in both directions of the bus: a stream for each, whose copies a copy engine each makes.
#include <array>

#include "comm/cuda_support.hpp"

namespace trireme::comm {
namespace {

class StreamCopies final : public TwoWayCopies {
 public:
  StreamCopies() {
    for (Event& event : left_) event.record(nullptr);
  }
  ~StreamCopies() override {
    static_cast<void>(cudaStreamSynchronize(in_));
    static_cast<void>(cudaStreamSynchronize(out_));
  }
  void to_device(Half half, std::span<const Copy> copies) override {
    left(half).block(in_);
    copy(copies, in_);
    order_.record(in_);
    order_.block(nullptr);
  }
  void to_host(Half half, std::span<const Copy> copies) override {
    order_.record(nullptr);
    order_.block(out_);
    copy(copies, out_);
    left(half).record(out_);
  }
  void finish() override {
    TRIREME_CUDA_CALL(cudaStreamSynchronize(in_));
    TRIREME_CUDA_CALL(cudaStreamSynchronize(out_));
  }

 private:
  Event& left(Half half) { return left_[static_cast<size_t>(half)]; }
  static void copy(std::span<const Copy> copies, cudaStream_t stream) {
    for (const Copy& c : copies)
      TRIREME_CUDA_CALL(
          cudaMemcpyAsync(c.to, c.from, static_cast<size_t>(c.bytes), cudaMemcpyDefault, stream));
  }

  Stream in_, out_;
  std::array<Event, 2> left_;  // by half: its values have gone back, or nothing uses it
  Event order_;
};

}  // namespace

std::unique_ptr<TwoWayCopies> make_stream_copies() { return std::make_unique<StreamCopies>(); }

}  // namespace trireme::comm
