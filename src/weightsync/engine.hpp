// An engine carries a plan out, one sync after the other: by buckets in host memory
// (bucket_engine.hpp) or from device to device (device_engine.hpp). Both have one rank's plan, its
// tensors in the current sync, and the agreement at its end.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/weightsync/sync.hpp"

namespace trireme::weightsync {

class Engine {
 public:
  Engine(const Engine&) = delete;
  virtual ~Engine() = default;

  virtual SyncCounters run(int64_t version, Sources sources, std::vector<void*> targets) = 0;
  std::string differences(const Sources& sources, std::span<void* const> targets) const;

  void forget() { version_ = never; }
  int64_t version() const { return version_; }
  const Plan& plan() const { return plan_; }
  SyncTotals totals(const SyncCounters& counters) const;

 protected:
  static constexpr int64_t never = -1;

  // `shares_memory`: ranks with the others of their node.
  Engine(const comm::CommView& comm, const base::ShardLayout& source, const Members& members,
         const SyncOptions& options, bool shares_memory);

  // Of a sync: run() is begin(), the engine's own work, agree(), end().
  void begin(int64_t version, Sources sources, std::vector<void*> targets);
  void agree();
  SyncCounters end();

  bool leaves_node(const Flow& flow) const;
  virtual std::vector<ChangedShare> changed_shares() const {
    return {};
  }  // of the last; collective

  const comm::CommView comm_;
  SyncOptions options_;
  Members members_;
  std::vector<base::TensorSpec> tensors_;
  std::vector<int64_t> shard_elements_;  // of this rank's shard, by tensor; empty: it has none
  Plan plan_;
  int64_t element_bytes_;

  // Of the sync in progress.
  bool running_ = false;
  int64_t version_ = never;
  int64_t next_version_ = 0;
  Sources sources_;
  std::vector<void*> targets_;
  SyncCounters counters_;
  base::Stopwatch watch_;
  std::optional<UserError> error_;  // the first that this rank met; all of them throw it at the end
};

}  // namespace trireme::weightsync
