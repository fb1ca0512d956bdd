// Rounds of messages as groups of NCCL's sends and receives, on a stream of their own: it waits for
// the default stream when a round begins, the default stream waits for it when the round ends.
// NCCL makes the connections between two ranks when they first meet in a group; all ranks come to
// their rounds in one order, so nobody waits in a circle.
#include "comm/device_messages_nccl.hpp"

#include <array>
#include <exception>
#include <utility>

#include "comm/cuda_support.hpp"
#include "comm/nccl_comm.hpp"
#include "trireme/base/error.hpp"

namespace trireme::comm {
namespace {

constexpr cudaStream_t default_stream = nullptr;

class NcclMessages final : public DeviceMessages {
 public:
  explicit NcclMessages(const CommView& comm) : nccl_(comm) {}
  ~NcclMessages() override {
    // Messages whose other rank will not come would be waited for.
    if (std::uncaught_exceptions() > 0) NcclComm::abort_all();
    wait();
  }

  std::byte* reserve(int64_t bytes) override {
    if (bytes > memory_.bytes()) {
      wait();
      nccl_.dismiss();
      memory_ = {};  // before it is allocated anew
      memory_ = DeviceBuffer(bytes, DeviceBuffer::Kind::registered);
      nccl_.enroll(memory_.data(), bytes);
    }
    return memory_.data();
  }

  void begin(std::span<const DeviceMessage> sends,
             std::span<const DeviceMessage> receives) override {
    EXPECT(begun_ - ended_ < over_.size());
    order_.record(default_stream);
    order_.block(stream_);
    NcclGroup group;
    for (const DeviceMessage& m : sends)
      nccl_.check(ncclSend(m.data, static_cast<size_t>(m.bytes), ncclUint8, m.peer, nccl_.handle(),
                           stream_),
                  "ncclSend");
    for (const DeviceMessage& m : receives)
      nccl_.check(ncclRecv(m.data, static_cast<size_t>(m.bytes), ncclUint8, m.peer, nccl_.handle(),
                           stream_),
                  "ncclRecv");
    group.end(nccl_);
    over_[begun_++ % over_.size()].record(stream_);
  }
  void end() override {
    EXPECT(ended_ < begun_);
    over_[ended_++ % over_.size()].block(default_stream);
  }

 private:
  void wait() {
    static_cast<void>(cudaStreamSynchronize(stream_));
    static_cast<void>(cudaStreamSynchronize(default_stream));  // ncclMemFree waits for nobody
  }

  DeviceBuffer memory_;
  NcclComm nccl_;  // after the memory that it registers: freed before it
  Stream stream_;
  Event order_;
  std::array<Event, 2> over_;
  size_t begun_ = 0, ended_ = 0;  // rounds
};

}  // namespace

std::unique_ptr<DeviceMessages> make_nccl_messages(const CommView& comm) {
  return std::make_unique<NcclMessages>(comm);
}

}  // namespace trireme::comm
