// Rings between ranks of one node: one writer, one reader, two counters. The window starts zeroed, and the counters only grow.
#include <cstddef>

#include "channel.hpp"
#include "trireme/base/checked.hpp"

namespace trireme::weightsync {
namespace {

class Ring {
 public:
  Ring(std::byte* memory, int slots, int64_t slot_bytes)
      : control_(*reinterpret_cast<RingControl*>(memory)), slots_(memory + sizeof(RingControl)), count_(static_cast<uint64_t>(slots)),
        slot_bytes_(slot_bytes) {}
  RingControl& control() { return control_; }
  std::byte* slot(uint64_t number) { return slots_ + static_cast<int64_t>(number % count_) * slot_bytes_; }
  uint64_t count() const { return count_; }

 private:
  RingControl& control_;
  std::byte* slots_;
  uint64_t count_;
  int64_t slot_bytes_;
};

class RingSender : public SendChannel {
 public:
  explicit RingSender(const Ring& ring) : ring_(ring), posted_(ring_.control().posted.load(std::memory_order_relaxed)) {}
  std::byte* acquire() override {
    return posted_ - ring_.control().taken.load(std::memory_order_acquire) < ring_.count() ? ring_.slot(posted_) : nullptr;
  }
  void post(int64_t) override { ring_.control().posted.store(++posted_, std::memory_order_release); }
  bool drained() override { return ring_.control().taken.load(std::memory_order_acquire) == posted_; }
  bool is_message() const override { return false; }

 private:
  Ring ring_;
  uint64_t posted_;
};

class RingReceiver : public ReceiveChannel {
 public:
  explicit RingReceiver(const Ring& ring) : ring_(ring), taken_(ring_.control().taken.load(std::memory_order_relaxed)) {}
  const std::byte* take() override {
    return ring_.control().posted.load(std::memory_order_acquire) > taken_ ? ring_.slot(taken_) : nullptr;
  }
  void release() override { ring_.control().taken.store(++taken_, std::memory_order_release); }

 private:
  Ring ring_;
  uint64_t taken_;
};

}  // namespace

int64_t ring_bytes(int slots, int64_t slot_bytes) {
  return base::round_up<int64_t>(static_cast<int64_t>(sizeof(RingControl)) + slots * slot_bytes, 4096);
}

std::unique_ptr<SendChannel> ring_sender(std::byte* ring, int slots, int64_t slot_bytes) {
  return std::make_unique<RingSender>(Ring(ring, slots, slot_bytes));
}

std::unique_ptr<ReceiveChannel> ring_receiver(std::byte* ring, int slots, int64_t slot_bytes) {
  return std::make_unique<RingReceiver>(Ring(ring, slots, slot_bytes));
}

}  // namespace trireme::weightsync
