// How the ranks of a fake NCCL communicator meet: one mailbox each in a piece of shared memory,
// one collective after the other, and a channel from each rank to each for messages.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace trireme::fakegpu {

// What a rank says it calls; ranks that do not say the same have made different calls.
struct Call {
  char name[24] = "";
  uint64_t count = 0;  // elements
  bool operator==(const Call&) const = default;
};

class Segment {
 public:
  static constexpr size_t mailbox_bytes = size_t{64} << 10;
  // Any of the ranks makes it, the others join. Waits end without success when `given_up` becomes
  // true.
  Segment(std::string name, int rank, int size, const std::atomic<bool>& given_up);
  Segment(const Segment&) = delete;
  ~Segment();

  bool meet();  // all ranks are here; false: given up
  enum class Outcome : uint8_t { done, given_up, mismatch };
  // Shows `bytes` (a mailbox at most) to all, and sees what each shows, in order of ranks.
  // Collective.
  Outcome show(const Call& call, const void* data, size_t bytes,
               const std::function<void(int rank, const std::byte* shown)>& see);
  Call call_of(int rank) const;

  // A piece of a message of `whole` bytes to another rank; false: the one before is still there.
  static constexpr size_t piece_bytes = size_t{16} << 10;
  bool put(int to, size_t whole, const std::byte* piece, size_t bytes);
  bool is_taken(int to) const;  // all that was put
  // The next piece from another rank. mismatch: it is of a message of another length.
  enum class Taken : uint8_t { nothing, piece, mismatch };
  Taken take(int from, size_t whole, std::byte* piece, size_t bytes);
  bool wait_until(const std::function<bool()>& done) const;  // false: given up

 private:
  struct Mailbox;
  struct Channel;
  struct Shared;
  Mailbox& mailbox(int rank) const;
  Channel& channel(int from, int to) const;

  std::string name_;
  int rank_, size_;
  const std::atomic<bool>& given_up_;
  size_t bytes_ = 0;
  Shared* shared_ = nullptr;
  uint64_t shown_ = 0, met_ = 0;
};

}  // namespace trireme::fakegpu
