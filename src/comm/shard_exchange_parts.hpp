// What the kinds of exchange share. Private to comm.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/comm/shard_exchange.hpp"

namespace trireme::comm {

// Where stages lie in memory that holds two neighbours at a time: even stages at the start, odd ones at the end.
class TwoStageArena {
 public:
  explicit TwoStageArena(const std::vector<SlotGeometry>& stages);
  int64_t elements() const { return elements_; }
  int64_t begin(int stage) const { return begin_[static_cast<size_t>(stage)]; }
  int64_t end(int stage) const { return end_[static_cast<size_t>(stage)]; }
  bool overlap(int a, int b) const { return begin(a) < end(b) && begin(b) < end(a); }
  int stages() const { return static_cast<int>(begin_.size()); }

 private:
  std::vector<int64_t> begin_, end_;
  int64_t elements_ = 0;
};

// Which stages lie in a ring, and the refusal of a gather over weights that are still in use: such a refill would give
// wrong gradients without an error, since autograd does not see it.
class RingOccupancy {
 public:
  explicit RingOccupancy(const TwoStageArena& arena);
  bool holds(int stage) const { return held_[static_cast<size_t>(stage)]; }
  void occupy(int stage);      // evicts what it overlaps; throws InternalError when that is in use
  void use(int stage) { in_use_[static_cast<size_t>(stage)] = true; }
  void release(int stage) { in_use_[static_cast<size_t>(stage)] = false; }
  void forget();               // all weights are out of date

 private:
  const TwoStageArena* arena_;
  std::vector<bool> held_, in_use_;
};

// Storage of parameters by id: every parameter once, `copies` slices of it, 64-byte aligned. Offsets in elements.
struct ParameterStorage {
  ParameterStorage(const std::vector<SlotGeometry>& stages, int64_t copies);
  std::vector<int64_t> offset;    // by id
  std::vector<int64_t> per_rank;  // by id
  int64_t elements = 0;
};

// The largest sum of per_rank over a stage: what one rank sends to another in a reduction.
int64_t largest_slice(const std::vector<SlotGeometry>& stages);

// into[i] += sources[0][i] + sources[1][i] + ..., the sum taken first, from left to right: the same bits for any threads.
void add_in_order(float* into, const std::vector<const float*>& sources, int64_t count, const ParallelFor& parallel_for);

void zero_fill(float* values, int64_t count, const ParallelFor& parallel_for);

// Zeroed host memory at a 64-byte boundary, with huge pages where the system gives them on advice.
class HostBuffer {
 public:
  HostBuffer() = default;
  explicit HostBuffer(int64_t bytes);
  std::byte* data() const { return data_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t bytes_ = 0;
};

// Throw UserError(out_of_memory) or (unfit_environment), alike on every rank, where the ranks cannot share such a window.
std::unique_ptr<ShardExchange> make_window_exchange(Comm comm, std::vector<SlotGeometry> stages, const ExchangeOptions& options);
std::unique_ptr<ShardExchange> make_ring_exchange(Comm comm, std::vector<SlotGeometry> stages, const ExchangeOptions& options);

// Set by enable_device_exchange(); nullptr in programs that do not link the CUDA part.
using DeviceExchangeMaker = std::unique_ptr<ShardExchange> (*)(Comm comm, std::vector<SlotGeometry> stages,
                                                               const ExchangeOptions& options);
DeviceExchangeMaker& device_exchange_maker();

}  // namespace trireme::comm
