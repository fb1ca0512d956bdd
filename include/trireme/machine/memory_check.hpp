// Uses the memory ledger: before any weight is read, all ranks compare the planned memory with the
// free memory; after the run a table has planned and measured figures side by side.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "trireme/comm/comm.hpp"
#include "trireme/comm/roles.hpp"
#include "trireme/config/options.hpp"
#include "trireme/machine/job_models.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/plan/admission.hpp"

namespace trireme::machine {

// A run's models and sizes, as far as its memory depends on them.
struct Workload {
  config::Command command;
  const model::ModelSpec& actor;  // or the only model that is trained
  std::optional<config::ModelShape> critic;
  plan::RunLength length;  // of the run
};

class MemoryCheck {
 public:
  // Collective over world, before weights are read and after the device was made current. Throws
  // UserError(configuration), the same on every rank, where a GPU, a node or a control group has
  // less free than the plan needs, or warns (run.memory_check); rank 0 logs the plan. Chooses how
  // many blocks to compute again where train.keep_memory says for how much memory, and then whether
  // generators keep their caches while trainers of their ranks work. options.model.dtype is
  // settled. Memory on hosts is planned by work.length's sequences where they are shorter than the
  // deck's limit.
  void admit(const config::Options& options, const Workload& work, const comm::Roles& roles,
             at::Device device);
  // ShardedModelOptions::recompute of a trained model of so many blocks, where the deck's
  // train.recompute is `wish`.
  int64_t recompute(int64_t wish, int64_t layers) const {
    return recompute_ < 0 ? wish : std::min(recompute_, layers);
  }
  bool keeps_caches() const { return keeps_caches_; }
  // Bytes, each the largest over ranks: PHASE_host_peak of every phase so far
  // (trace::phase_memory), planned_host_peak, and on GPUs PHASE_device_peak, planned_device_peak
  // and device_peak; of these by kind (plan::Kind) planned_device_KIND and device_KIND, and
  // device_reserved (DeviceKinds). Collective.
  std::map<std::string, int64_t> figures(const comm::CommView& world, at::Device device);
  // "memory: host peak 1.20 GB planned, 1.10 GB measured" and on GPUs the same of each kind, from
  // those and the measured host_peak.
  static std::string compare(const std::map<std::string, int64_t>& figures);

 private:
  // Keeps what figures() says of this rank's plan. Collective.
  void expect(const plan::Ledger& ledger, const comm::CommView& world);

  int64_t recompute_ = -1;  // blocks; -1: was not chosen
  bool keeps_caches_ = false;
  int64_t planned_host_ = 0, planned_device_ = 0;          // of the rank that has most
  std::array<int64_t, plan::kind_count> planned_kinds_{};  // on devices, likewise
  int64_t device_free_ = 0,
          device_peak_ = 0;  // of this rank: before the first weight; most that was taken since
};

}  // namespace trireme::machine
