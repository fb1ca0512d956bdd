// A flow's way from rank to rank: slots of one bucket each, filled and emptied in order, without
// blocking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "trireme/comm/comm.hpp"
#include "trireme/comm/pinned_buffer.hpp"
#include "trireme/plan/sync_buckets.hpp"

namespace trireme::weightsync {

// In front of every bucket.
struct alignas(64) BucketHeader {
  int64_t version = 0;
  int64_t base_version = 0;  // of a delta: the version that it applies to
  int64_t payload_bytes = 0;
  uint64_t digest = 0;  // XXH3 of the payload; 0 without verification
  int32_t number = 0;
  uint32_t is_delta = 0;
};
static_assert(sizeof(BucketHeader) == plan::bucket_header);

class SendChannel {
 public:
  virtual ~SendChannel() = default;
  // A free slot, or nullptr. It stays the caller's until post().
  virtual std::byte* acquire() = 0;
  virtual void post(int64_t bytes) = 0;
  // Nothing of ours is under way any more.
  virtual bool drained() = 0;
  virtual bool is_message() const = 0;
};

class ReceiveChannel {
 public:
  virtual ~ReceiveChannel() = default;
  // The next bucket, or nullptr when it has not arrived. It stays until release().
  virtual const std::byte* take() = 0;
  virtual void release() = 0;
};

// Buffers of one size, kept from sync to sync: fresh ones would cost a page fault per 4 KiB, or a
// call of the driver that locks them.
class BufferPool {
 public:
  // `locked`: a device copies from and to them.
  BufferPool(int64_t bytes, bool locked) : bytes_(bytes), locked_(locked) {}
  class Buffer {
   public:
    Buffer() = default;
    explicit Buffer(int64_t bytes) : plain_(new std::byte[static_cast<size_t>(bytes)]) {}
    explicit Buffer(comm::PinnedBuffer locked) : locked_(std::move(locked)) {}
    std::byte* data() const { return plain_ ? plain_.get() : locked_.data(); }

   private:
    std::unique_ptr<std::byte[]> plain_;
    comm::PinnedBuffer locked_;
  };
  Buffer get();
  void put(Buffer buffer) { free_.push_back(std::move(buffer)); }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_;
  bool locked_;
  std::vector<Buffer> free_;
};

std::unique_ptr<SendChannel> message_sender(const comm::CommView& comm, int to, comm::Tag tag,
                                            int in_flight, BufferPool& pool);
// Posts receives for `buckets` buckets, `in_flight` at a time.
std::unique_ptr<ReceiveChannel> message_receiver(const comm::CommView& comm, int from,
                                                 comm::Tag tag, int in_flight, int64_t buckets,
                                                 BufferPool& pool);

// A ring in memory that its writer and its readers map; every reader takes every bucket.
int64_t ring_bytes(int slots, int64_t slot_bytes, int readers);
std::unique_ptr<SendChannel> ring_sender(std::byte* ring, int slots, int64_t slot_bytes,
                                         int readers);
std::unique_ptr<ReceiveChannel> ring_receiver(std::byte* ring, int slots, int64_t slot_bytes,
                                              int readers, int reader);

}  // namespace trireme::weightsync
