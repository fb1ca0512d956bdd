#include "fakegpu/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

namespace trireme::fakegpu {

struct Segment::Mailbox {
  std::atomic<uint64_t> posted, seen;  // how many collectives
  Call call;
  alignas(64) std::byte data[mailbox_bytes];
};
struct Segment::Channel {
  std::atomic<uint64_t> put, taken;  // pieces
  uint64_t whole, bytes;
  alignas(64) std::byte data[piece_bytes];
};
// Zeros are its first state: whoever makes the file makes it.
struct Segment::Shared {
  std::atomic<uint64_t> arrivals;
};

Segment::Segment(std::string name, int rank, int size, const std::atomic<bool>& given_up)
    : name_(std::move(name)),
      rank_(rank),
      size_(size),
      given_up_(given_up),
      bytes_(alignof(Mailbox) + static_cast<size_t>(size) * sizeof(Mailbox) +
             static_cast<size_t>(size) * static_cast<size_t>(size) * sizeof(Channel)) {
  const int file = shm_open(name_.c_str(), O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes_)) != 0)
    throw std::runtime_error("no shared memory for the fake NCCL");
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) throw std::runtime_error("no shared memory for the fake NCCL");
  shared_ = static_cast<Shared*>(memory);
}

Segment::~Segment() {
  munmap(shared_, bytes_);
  shm_unlink(name_.c_str());  // gone already where all ranks met
}

Segment::Mailbox& Segment::mailbox(int rank) const {
  return reinterpret_cast<Mailbox*>(reinterpret_cast<std::byte*>(shared_) + alignof(Mailbox))[rank];
}

Segment::Channel& Segment::channel(int from, int to) const {
  return reinterpret_cast<Channel*>(&mailbox(size_))[from * size_ + to];
}

bool Segment::put(int to, size_t whole, const std::byte* piece, size_t bytes) {
  Channel& c = channel(rank_, to);
  if (c.put != c.taken) return false;
  c.whole = whole;
  c.bytes = bytes;
  std::memcpy(c.data, piece, bytes);
  ++c.put;
  return true;
}

bool Segment::is_taken(int to) const {
  const Channel& c = channel(rank_, to);
  return c.put == c.taken;
}

Segment::Taken Segment::take(int from, size_t whole, std::byte* piece, size_t bytes) {
  Channel& c = channel(from, rank_);
  if (c.put == c.taken) return Taken::nothing;
  if (c.whole != whole || c.bytes != bytes) return Taken::mismatch;
  std::memcpy(piece, c.data, bytes);
  ++c.taken;
  return Taken::piece;
}

Call Segment::call_of(int rank) const { return mailbox(rank).call; }

bool Segment::wait_until(const std::function<bool()>& done) const {
  for (int looks = 0; !done(); ++looks) {
    if (given_up_) return false;
    if (looks < 20) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  return true;
}

bool Segment::meet() {
  ++shared_->arrivals;
  const uint64_t all = ++met_ * static_cast<uint64_t>(size_);
  const bool met = wait_until([&] { return shared_->arrivals >= all; });
  if (met) shm_unlink(name_.c_str());
  return met;
}

Segment::Outcome Segment::show(const Call& call, const void* data, size_t bytes,
                               const std::function<void(int rank, const std::byte* shown)>& see) {
  Mailbox& mine = mailbox(rank_);
  for (int rank = 0; rank < size_; ++rank) {  // what the mailbox has was seen by all
    if (!wait_until([&] { return mailbox(rank).seen >= shown_; })) return Outcome::given_up;
  }
  ++shown_;
  mine.call = call;
  std::memcpy(mine.data, data, bytes);
  mine.posted = shown_;
  for (int rank = 0; rank < size_; ++rank) {
    if (!wait_until([&] { return mailbox(rank).posted >= shown_; })) return Outcome::given_up;
    if (!(mailbox(rank).call == call)) return Outcome::mismatch;
    see(rank, mailbox(rank).data);
  }
  mine.seen = shown_;
  return Outcome::done;
}

}  // namespace trireme::fakegpu
