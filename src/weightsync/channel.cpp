#include "channel.hpp"

#include <algorithm>

namespace trireme::weightsync {
namespace {

struct Slot {
  BufferPool::Buffer buffer;
  comm::Request request;
};

class MessageSender : public SendChannel {
 public:
  MessageSender(const comm::CommView& comm, int to, comm::Tag tag, int in_flight, BufferPool& pool)
      : comm_(comm), to_(to), tag_(tag), pool_(pool), slots_(static_cast<size_t>(in_flight)) {
    for (Slot& slot : slots_) slot.buffer = pool_.get();
  }
  ~MessageSender() override {
    for (Slot& slot : slots_) {
      slot.request.wait();
      pool_.put(std::move(slot.buffer));
    }
  }
  std::byte* acquire() override {
    Slot& slot = slots_[next_];
    return slot.request.test() ? slot.buffer.data() : nullptr;
  }
  void post(int64_t bytes) override {
    Slot& slot = slots_[next_];
    slot.request = comm_.send_begin(slot.buffer.data(), bytes, to_, tag_);
    next_ = (next_ + 1) % slots_.size();
  }
  bool drained() override {
    return std::all_of(slots_.begin(), slots_.end(),
                       [](Slot& slot) { return slot.request.test(); });
  }
  bool is_message() const override { return true; }

 private:
  const comm::CommView& comm_;
  int to_;
  comm::Tag tag_;
  BufferPool& pool_;
  std::vector<Slot> slots_;
  size_t next_ = 0;
};

class MessageReceiver : public ReceiveChannel {
 public:
  MessageReceiver(const comm::CommView& comm, int from, comm::Tag tag, int in_flight,
                  int64_t buckets, BufferPool& pool)
      : comm_(comm),
        from_(from),
        tag_(tag),
        pool_(pool),
        to_post_(buckets),
        slots_(static_cast<size_t>(std::min<int64_t>(in_flight, buckets))) {
    for (Slot& slot : slots_) {
      slot.buffer = pool_.get();
      post(slot);
    }
  }
  ~MessageReceiver() override {
    for (Slot& slot : slots_) {
      slot.request.wait();
      pool_.put(std::move(slot.buffer));
    }
  }
  const std::byte* take() override {
    Slot& slot = slots_[next_];
    return slot.request.test() ? slot.buffer.data() : nullptr;
  }
  void release() override {
    post(slots_[next_]);
    next_ = (next_ + 1) % slots_.size();
  }

 private:
  void post(Slot& slot) {
    if (to_post_ == 0) return;
    --to_post_;
    slot.request = comm_.receive_begin(slot.buffer.data(), pool_.bytes(), from_, tag_);
  }

  const comm::CommView& comm_;
  int from_;
  comm::Tag tag_;
  BufferPool& pool_;
  int64_t to_post_;
  std::vector<Slot> slots_;
  size_t next_ = 0;
};

}  // namespace

BufferPool::Buffer BufferPool::get() {
  if (free_.empty())
    return locked_ ? Buffer(comm::PinnedBuffer(bytes_, "buckets of weights under way",
                                               "set a smaller weightsync.bucket_bytes"))
                   : Buffer(bytes_);
  Buffer buffer = std::move(free_.back());
  free_.pop_back();
  return buffer;
}

std::unique_ptr<SendChannel> message_sender(const comm::CommView& comm, int to, comm::Tag tag,
                                            int in_flight, BufferPool& pool) {
  return std::make_unique<MessageSender>(comm, to, tag, in_flight, pool);
}

std::unique_ptr<ReceiveChannel> message_receiver(const comm::CommView& comm, int from,
                                                 comm::Tag tag, int in_flight, int64_t buckets,
                                                 BufferPool& pool) {
  return std::make_unique<MessageReceiver>(comm, from, tag, in_flight, buckets, pool);
}

}  // namespace trireme::weightsync
