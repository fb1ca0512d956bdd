// Rings between ranks of one node: one writer, a few readers, a counter for each. The window starts
// zeroed, and the counters only grow.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <span>

#include "channel.hpp"
#include "trireme/base/checked.hpp"

namespace trireme::weightsync {
namespace {

struct alignas(64) RingCounter {
  std::atomic<uint64_t> buckets;
};

// The writer's counter, the readers', the slots.
class Ring {
 public:
  Ring(std::byte* memory, int slots, int64_t slot_bytes, int readers)
      : posted_(*reinterpret_cast<RingCounter*>(memory)),
        taken_(&posted_ + 1, static_cast<size_t>(readers)),
        slots_(memory + static_cast<int64_t>(sizeof(RingCounter)) * (1 + readers)),
        count_(static_cast<uint64_t>(slots)),
        slot_bytes_(slot_bytes) {}
  std::atomic<uint64_t>& posted() { return posted_.buckets; }
  std::atomic<uint64_t>& taken(int reader) { return taken_[static_cast<size_t>(reader)].buckets; }
  uint64_t taken_by_all() const {
    uint64_t least = UINT64_MAX;
    for (const RingCounter& reader : taken_)
      least = std::min(least, reader.buckets.load(std::memory_order_acquire));
    return least;
  }
  std::byte* slot(uint64_t number) {
    return slots_ + static_cast<int64_t>(number % count_) * slot_bytes_;
  }
  uint64_t count() const { return count_; }

 private:
  RingCounter& posted_;
  std::span<RingCounter> taken_;
  std::byte* slots_;
  uint64_t count_;
  int64_t slot_bytes_;
};

class RingSender : public SendChannel {
 public:
  explicit RingSender(const Ring& ring)
      : ring_(ring), posted_(ring_.posted().load(std::memory_order_relaxed)) {}
  std::byte* acquire() override {
    return posted_ - ring_.taken_by_all() < ring_.count() ? ring_.slot(posted_) : nullptr;
  }
  void post(int64_t) override { ring_.posted().store(++posted_, std::memory_order_release); }
  bool drained() override { return ring_.taken_by_all() == posted_; }
  bool is_message() const override { return false; }

 private:
  Ring ring_;
  uint64_t posted_;
};

class RingReceiver : public ReceiveChannel {
 public:
  RingReceiver(const Ring& ring, int reader)
      : ring_(ring), mine_(ring_.taken(reader)), taken_(mine_.load(std::memory_order_relaxed)) {}
  const std::byte* take() override {
    return ring_.posted().load(std::memory_order_acquire) > taken_ ? ring_.slot(taken_) : nullptr;
  }
  void release() override { mine_.store(++taken_, std::memory_order_release); }

 private:
  Ring ring_;
  std::atomic<uint64_t>& mine_;
  uint64_t taken_;
};

}  // namespace

int64_t ring_bytes(int slots, int64_t slot_bytes, int readers) {
  return base::round_up<int64_t>(
      static_cast<int64_t>(sizeof(RingCounter)) * (1 + readers) + slots * slot_bytes, 4096);
}

std::unique_ptr<SendChannel> ring_sender(std::byte* ring, int slots, int64_t slot_bytes,
                                         int readers) {
  return std::make_unique<RingSender>(Ring(ring, slots, slot_bytes, readers));
}

std::unique_ptr<ReceiveChannel> ring_receiver(std::byte* ring, int slots, int64_t slot_bytes,
                                              int readers, int reader) {
  return std::make_unique<RingReceiver>(Ring(ring, slots, slot_bytes, readers), reader);
}

}  // namespace trireme::weightsync
