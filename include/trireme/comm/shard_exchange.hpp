// Node-aware collectives for sharded parameters: gather a stage's weights, reduce-scatter a stage's
// gradients. zero only calls these; whether bytes move over shared memory, MPI, or NCCL is decided
// here.
//
// Geometry: a slot holds every parameter of a stage, parameter p at slots[stage].offset[p] with N *
// per_rank[p] elements; rank r's slice is [r * per_rank, (r + 1) * per_rank) of it. Parameters are
// 64-byte aligned, so each is contiguous after the gather. Gradient slots, in fp32, hold the
// trainable parameters only (gradient_slots()).
//
// Memory: stages are visited in neighbouring order, so two neighbours fit at a time: even stages
// lie at the start of an arena, odd stages at its end, and the arena is as long as the largest
// pair. A stage's address never changes; gathering it again brings the same bytes to the same
// place, so a kept autograd graph stays valid across gathers of other stages.
//
// Order contract (collective): every rank calls gather and reduce for the same stages in the same
// order. At most two neighbouring stages are gathered, or have gradients that are not finished, at
// a time. Exchanges with one RingMemory take turns: whole passes of one model after those of
// another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/comm.hpp"
#include "trireme/comm/ring_memory.hpp"
#include "trireme/comm/topology.hpp"

namespace trireme::comm {

struct SlotParameter {
  size_t id = 0;  // the parameter; the same id in two stages (tied embeddings) names one storage
  int64_t offset = 0;     // elements from the slot's start; a multiple of 32
  int64_t per_rank = 0;   // elements of one rank's slice, padding included
  bool trainable = true;  // false: it has no gradient
};

struct SlotGeometry {
  std::vector<SlotParameter> parameters;
  int64_t elements = 0;  // of the whole slot
};

// The slots of the gradients: of each stage the trainable parameters, in their order. A stage may
// have none.
std::vector<SlotGeometry> gradient_slots(const std::vector<SlotGeometry>& stages);

struct ExchangeCounters {
  int64_t gathers = 0;
  int64_t gathered_bytes = 0;  // that crossed between ranks (0 in a shared window)
  int64_t reductions = 0;
  int64_t reduced_bytes = 0;    // read from, or received from, other ranks
  int64_t weight_memory = 0;    // bytes of weight storage this rank allocated (its share of a
                                // window); without a RingMemory that others use too
  int64_t gradient_memory = 0;  // bytes of gradient storage and receive buffers, likewise
  double wait_seconds = 0;      // spent waiting for other ranks
};

class ShardExchange {
 public:
  virtual ~ShardExchange() = default;  // collective

  // This rank's compute-dtype slice of a parameter, per_rank elements, padding included; the
  // address never changes. Write it between begin_update() and end_update() only (both collective:
  // readers of the old values have signed off, then all see the new). Zero at first.
  virtual std::byte* own_slice(size_t parameter) = 0;
  // The whole parameter where this rank can read it at any time: its address never changes, its
  // values change between begin_update() and end_update(). Null where weights are gathered.
  virtual const std::byte* whole(size_t /*parameter*/) const { return nullptr; }
  virtual void begin_update() = 0;
  virtual void end_update() = 0;

  // Starts gathering a stage; gathered() completes it and returns the element pointers by parameter
  // index within the stage (whole parameters, N slices). They stay valid until release(stage),
  // which says that compute is done with them.
  virtual void gather(int stage) = 0;
  virtual std::vector<std::byte*> gathered(int stage) = 0;
  virtual void release(int stage) = 0;
  // Whether the stage's memory still has its weights: false once a neighbour's neighbour was
  // gathered over it.
  virtual bool holds(int stage) const = 0;

  // fp32 gradient storage of a stage: pointers to the gradients of its trainable parameters, in
  // their order (whole parameters, N slices, padding included). It has values of other stages: all
  // of it is to be written. Not for stages without any, nor reduce().
  virtual std::vector<float*> gradients(int stage) = 0;
  // Starts summing over ranks in rank order, in ExchangeOptions::reduce_type; finish_reduce() adds
  // this rank's slices into `into` (fp32, of the trainable parameters in their order, per_rank
  // elements each), after which the gradient storage may be used again.
  virtual void reduce(int stage) = 0;
  virtual void finish_reduce(int stage, const std::vector<float*>& into) = 0;

  // For other messages of this rank that read what finish_reduce() has added, while the next stage
  // is computed: the stream (cudaStream_t) that they follow in, with the exchange's own in one
  // order on every rank, as NCCL wants it. Null: the host, or the default stream. join(): what is
  // computed from now on waits for all that the stream has.
  virtual void* stream() { return nullptr; }
  virtual void join() {}

  virtual const ExchangeCounters& counters() const = 0;
  virtual std::string kind() const = 0;  // "shared window (memfd, 4 KiB pages, one NUMA node)",
                                         // "MPI ring", "NCCL ring", ..., for the log
};

// Runs body(first, last) over pieces of [0, count), perhaps on several threads; returns when all
// are done.
using ParallelFor = std::function<void(
    int64_t count, const std::function<void(int64_t first, int64_t last)>& body)>;

enum class ExchangeKind : uint8_t { automatic, windows, mpi_ring, device_ring };

struct ExchangeOptions {
  ExchangeKind kind =
      ExchangeKind::automatic;  // automatic on CPUs: a shared window on each node, an MPI ring
                                // where it does not fit or does not apply
  bool node_weights = true;  // false: of several nodes none keeps whole weights, ranks gather them
                             // through an MPI ring
  DType weight_type = DType::bf16;  // bf16 or f32
  // In which gradients go from rank to rank, f32 or bf16. bf16: each rank rounds its own once, in
  // their place, and the sum is added in fp32; on its way from node to node it is rounded after
  // each node, and NCCL rounds as it adds. Among one rank nothing is rounded.
  DType reduce_type = DType::f32;
  bool device = false;  // true: CUDA memory; NCCL, or MPI through pinned host memory where several
                        // ranks share a device
  ParallelFor
      parallel_for;  // for rounding and adding gradients on the host; empty: this thread only
  void* compute_stream = nullptr;  // cudaStream_t that computes; nullptr: the legacy default stream
  // Where rings lie, shared with other exchanges of this rank; null: memory of this exchange's own.
  // Windows, and ranks that share a GPU, do not use it.
  std::shared_ptr<RingMemory> rings;
};

// Collective over `comm`, which must outlive the exchange's creation only (it is duplicated).
// Throws out_of_memory where windows were asked for and do not fit, unfit_environment where these
// ranks cannot have them or this build has no CUDA.
std::unique_ptr<ShardExchange> make_shard_exchange(const CommView& comm,
                                                   std::vector<SlotGeometry> stages,
                                                   const ExchangeOptions& options);

// Frozen parameters that another exchange over the same ranks has: the base of several adapters.
struct LentParameters {
  std::shared_ptr<ShardExchange> by;
  std::vector<SlotGeometry> stages;            // as that was made with; as many as the borrower has
  std::vector<std::optional<size_t>> id_of{};  // by the borrower's id, its id there; none: its own
};
// An exchange that allocates its own parameters only. A pass gathers borrower and lender together,
// so the borrower does not use options.rings. Passes of borrower and lender must not overlap. The
// lender may update parameters that it does not lend. Collective as make_shard_exchange().
std::unique_ptr<ShardExchange> make_borrowing_exchange(const CommView& comm,
                                                       const std::vector<SlotGeometry>& stages,
                                                       const ExchangeOptions& options,
                                                       LentParameters lent);

}  // namespace trireme::comm
