// Shared by the kinds of exchange. Private to comm.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/device_copies.hpp"
#include "trireme/comm/device_messages.hpp"
#include "trireme/comm/huge_buffer.hpp"
#include "trireme/comm/rank_sums.hpp"
#include "trireme/comm/shard_exchange.hpp"
#include "trireme/trace/device_clock.hpp"

namespace trireme::comm {

inline constexpr int64_t huge_page_bytes = int64_t{2} << 20;  // bytes
inline constexpr int64_t float_bytes = sizeof(float);         // bytes of a gradient

// Where stages lie in memory that holds two neighbours at a time: even stages at the start, odd
// ones at the end.
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

// Storage of parameters by id: every parameter once, `copies` slices of it, 64-byte aligned.
// Offsets in elements.
struct ParameterStorage {
  ParameterStorage(const std::vector<SlotGeometry>& stages, int64_t copies);
  std::vector<int64_t> offset;    // by id
  std::vector<int64_t> per_rank;  // by id
  int64_t elements = 0;
};

// Layout that every ring knows: where stages and own slices lie, which stages its memory has, which
// reduction runs. It refuses what autograd would not see and would turn into wrong gradients
// without an error: a gather over weights, or gradients over gradients, that are still in use.
class RingLayout {
 public:
  RingLayout(std::vector<SlotGeometry> stages, DType weight_type);
  RingLayout(const RingLayout&) = delete;

  const std::vector<SlotParameter>& parameters(int stage) const {
    return stages_[static_cast<size_t>(stage)].parameters;
  }
  int64_t elements(int stage) const { return stages_[static_cast<size_t>(stage)].elements; }
  const SlotGeometry& gradient_slot(int stage) const {
    return gradient_slots_[static_cast<size_t>(stage)];
  }
  bool has_gradients() const { return gradient_arena_.elements() > 0; }
  int stages() const { return arena_.stages(); }
  int64_t element_bytes() const { return element_; }
  int64_t arena_bytes() const { return arena_.elements() * element_; }
  int64_t gradient_bytes() const {
    return gradient_arena_.elements() * static_cast<int64_t>(sizeof(float));
  }
  int64_t own_bytes() const { return storage_.elements * element_; }
  const ParameterStorage& storage() const { return storage_; }
  RingMemory::Bytes ring_bytes(int64_t received_slices, DType reduce_type) const;
  // Elements of one rank's slices of a stage's gradients, as sent to another rank in a reduction.
  int64_t slice_elements(int stage) const;
  int64_t largest_slice() const;  // of slice_elements over stages

  std::byte* own_slice(std::byte* own, size_t parameter) const {
    return own + storage_.offset[parameter] * element_;
  }
  std::byte* weights(std::byte* arena, int stage) const {
    return arena + arena_.begin(stage) * element_;
  }
  float* gradients(std::byte* arena, int stage) const {
    return reinterpret_cast<float*>(arena) + gradient_arena_.begin(stage);
  }
  std::vector<std::byte*> weight_pointers(std::byte* arena, int stage) const;  // by parameter
  std::vector<float*> gradient_pointers(std::byte* arena, int stage) const;

  // Of the gradients of two stages.
  bool overlap(int a, int b) const { return gradient_arena_.overlap(a, b); }

  bool holds(int stage) const { return held_[static_cast<size_t>(stage)]; }
  // These throw InternalError where the order contract of ShardExchange is broken.
  void occupy(int stage);  // evicts what it overlaps
  void use(int stage);
  void release(int stage) { in_use_[static_cast<size_t>(stage)] = false; }
  void forget();           // all weights are out of date
  void may_leave() const;  // no stage is in use, no reduction runs
  void may_write_gradients(int stage) const;
  void begin_reduction(int stage);
  void end_reduction(int stage);

 private:
  std::vector<SlotGeometry> stages_, gradient_slots_;
  TwoStageArena arena_, gradient_arena_;
  ParameterStorage storage_;
  int64_t element_;
  std::vector<bool> held_, in_use_;
  int reducing_ = -1;
};

// Values of `type` (f32 or bf16), which lie in memory as bytes.
using Sources = std::vector<const std::byte*>;

// into[i] += sources[0][i] + sources[1][i] + ..., the sum taken first, in fp32 and from left to
// right: the same bits for any threads.
void add_in_order(float* into, DType type, const Sources& sources, int64_t count,
                  const ParallelFor& parallel_for);

// sum[i] = sources[0][i] + sources[1][i] + ..., or, `onto` what is there, sum[i] + sources[0][i] +
// ...: from left to right, on this thread, in fp32; rounded at the end where the type is bf16.
void sum_in_order(std::byte* sum, DType type, bool onto, const Sources& sources, int64_t count);

// The same values in bf16, which lie at the beginning of their memory.
void round_in_place(float* values, int64_t count, const ParallelFor& parallel_for);

// Zeroed memory of a ring, touched at once: what cannot be had is an error at the start.
class HostBuffer : public HugeBuffer {
 public:
  HostBuffer() = default;
  explicit HostBuffer(int64_t bytes)
      : HugeBuffer(bytes, FirstTouch::now, "exchanging shards",
                   "use more ranks or a smaller model") {}
};

// Throws UserError(out_of_memory) or (unfit_environment), alike on every rank, where the ranks of a
// node cannot share such a window; unfit_environment also where those of several nodes do not
// follow each other, or MPI does not let several threads call it.
std::unique_ptr<ShardExchange> make_node_exchange(Comm comm, std::vector<SlotGeometry> stages,
                                                  const ExchangeOptions& options);
std::unique_ptr<ShardExchange> make_ring_exchange(Comm comm, std::vector<SlotGeometry> stages,
                                                  const ExchangeOptions& options);

// Where this exchange's ring lies: options.rings, or memory of its own. Counts the bytes of the
// latter.
struct RingPlace {
  RingPlace(const ExchangeOptions& options, RingMemory::Tenant& tenant,
            const RingMemory::Bytes& bytes, const RingMemory::Allocate& allocate,
            ExchangeCounters& counters);
  RingPlace(const RingPlace&) = delete;
  ~RingPlace() { memory->remove(tenant); }
  std::byte* operator[](RingMemory::Part part) const { return memory->data(part); }
  bool take() { return memory->take(tenant); }

  RingMemory::Tenant& tenant;
  std::shared_ptr<RingMemory> memory;
};

// Set by enable_device_exchange(); null pointers in programs that do not link the CUDA part.
struct DeviceSupport {
  std::unique_ptr<ShardExchange> (*make_exchange)(Comm comm, std::vector<SlotGeometry> stages,
                                                  const ExchangeOptions& options) = nullptr;
  std::unique_ptr<RankSums> (*make_sums)(const CommView& comm, void* compute_stream) = nullptr;
  std::optional<std::string> (*find_trouble)() =
      nullptr;  // error found by the devices' communication library; any thread
  bool (*lock_pages)(std::byte* memory, int64_t bytes) = nullptr;  // false: the driver did not
  void (*unlock_pages)(std::byte* memory) = nullptr;
  void (*start_copy)(const RowCopy& copy) = nullptr;
  void (*finish_copies)() = nullptr;
  std::unique_ptr<TwoWayCopies> (*make_two_way_copies)() = nullptr;
  std::vector<uint64_t> (*sum_rows)(std::span<const DeviceRows> rows) = nullptr;
  bool (*takes_messages)(const CommView& comm) = nullptr;
  std::unique_ptr<DeviceMessages> (*make_messages)(const CommView& comm) = nullptr;
  std::unique_ptr<trace::DeviceClock> (*make_clock)(void* stream) = nullptr;
  double patience =
      0;  // seconds in which ranks that make a communicator must have met; 0: no limit
  // A thread may still be in the library of messages, for ever: the process ends without
  // destructors, which would take away what it uses.
  bool call_left_behind = false;
};
DeviceSupport& device_support();

}  // namespace trireme::comm
