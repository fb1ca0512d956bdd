// The exchange over MPI, for ranks anywhere: private slots, per-parameter all-gathers, slices sent
// to their owners. Its host memory is also the staging area of devices that NCCL does not serve.
// Private to comm.
#pragma once

#include <mpi.h>

#include <span>
#include <vector>

#include "comm/shard_exchange_parts.hpp"

namespace trireme::comm {

class MpiRingExchange final : public ShardExchange, private RingMemory::Tenant {
 public:
  MpiRingExchange(Comm comm, std::vector<SlotGeometry> stages, const ExchangeOptions& options);
  ~MpiRingExchange() override;

  std::byte* own_slice(size_t parameter) override {
    return layout_.own_slice(own_.data(), parameter);
  }
  void begin_update() override;
  void end_update() override {}
  void gather(int stage) override;
  std::vector<std::byte*> gathered(int stage) override;
  void release(int stage) override { layout_.release(stage); }
  bool holds(int stage) const override { return layout_.holds(stage); }
  std::vector<float*> gradients(int stage) override;
  void reduce(int stage) override;
  void finish_reduce(int stage, const std::vector<float*>& into) override;
  const ExchangeCounters& counters() const override { return counters_; }
  std::string kind() const override { return "MPI ring"; }

  // For pinning, of an exchange with a ring of its own.
  std::vector<std::span<std::byte>> buffers() const;

 private:
  void leave() override;
  void lose() override {}
  float* gradient_base(int stage) const {
    return layout_.gradients(ring_[RingMemory::gradients], stage);
  }
  int64_t reduced_element() const { return static_cast<int64_t>(size_of(options_.reduce_type)); }
  // The slices of rank `to` in a stage's gradients, as one MPI type relative to the stage's first
  // element.
  MPI_Datatype slices_of(int stage, int to) const;
  // What another rank sent of a stage whose slices have `count` elements.
  std::byte* received_from(int rank, int64_t count) const {
    return ring_[RingMemory::received] +
           (rank < comm_->rank() ? rank : rank - 1) * count * reduced_element();
  }
  MPI_Comm handle() const { return static_cast<MPI_Comm>(comm_->native()); }
  void wait(std::vector<MPI_Request>& requests);

  Comm comm_;
  ExchangeOptions options_;
  RingLayout layout_;
  ExchangeCounters counters_;
  HostBuffer own_;
  RingPlace ring_;
  std::vector<std::vector<MPI_Request>> gathering_;  // by stage
  std::vector<MPI_Request> reducing_;
};

}  // namespace trireme::comm
