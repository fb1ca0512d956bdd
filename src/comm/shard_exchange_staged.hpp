// The exchange of ranks that share a GPU: the MPI ring on pinned host memory, copied to and from
// the device. Correct, not fast: for tests with several ranks on one GPU. Private to
// trireme_comm_cuda.
#pragma once

#include <vector>

#include "comm/cuda_support.hpp"
#include "comm/shard_exchange_ring.hpp"

namespace trireme::comm {

class StagedExchange final : public ShardExchange {
 public:
  StagedExchange(Comm comm, std::vector<SlotGeometry> stages, const ExchangeOptions& options);
  ~StagedExchange() override;

  std::byte* own_slice(size_t parameter) override {
    return layout_.own_slice(own_.data(), parameter);
  }
  void begin_update() override;
  void end_update() override;
  void gather(int stage) override;
  std::vector<std::byte*> gathered(int stage) override;
  void release(int stage) override { layout_.release(stage); }
  bool holds(int stage) const override { return layout_.holds(stage); }
  std::vector<float*> gradients(int stage) override;
  void reduce(int stage) override;
  void finish_reduce(int stage, const std::vector<float*>& into) override;
  void* stream() override { return compute_; }
  const ExchangeCounters& counters() const override;
  std::string kind() const override { return "MPI ring staged through host memory"; }

 private:
  void copy(void* to, const void* from,
            int64_t bytes);  // either direction; complete when it returns

  RingLayout layout_;
  cudaStream_t compute_;
  MpiRingExchange host_;
  DeviceBuffer own_, weights_, gradients_, summed_;
  std::vector<bool> arriving_;  // by stage: gathered on the host, not yet copied
  std::vector<void*> pinned_;
  mutable ExchangeCounters counters_;
};

}  // namespace trireme::comm
