// Weight sync: trainers' shards -> generators' slices, through the plan: pack runs into buckets,
// move them, unpack. Several buckets are in flight per flow; a rank that has both roles copies what
// it needs from itself and sends nothing. Buckets travel as messages between nodes and through a
// shared window inside a node; a node takes a byte from others once. What lies in a shared window
// itself is copied by who wants it.
//
// Memory on both sides is the host's, or that of this rank's device: then its copy engines fill and
// empty the buckets, which are host memory. Or buckets go from device to device in rounds
// (comm/device_messages.hpp), and the host sees none of them.
//
// In host memory every bucket carries version, number and (with verify) XXH3 of its payload; of
// what is read in place a sample is compared. A sync moves O(peers x buckets) messages, none per
// tensor, and ends with one agreement: either all ranks have the new version, or all throw.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/comm.hpp"
#include "trireme/comm/shard_exchange.hpp"
#include "trireme/weightsync/plan.hpp"

namespace trireme::weightsync {

enum class DeltaScope : uint8_t { off, between_nodes, everywhere };

struct SyncOptions {
  // Inside a node a plain copy is faster than finding out what changed; everywhere is for
  // measurements.
  DeltaScope delta = DeltaScope::between_nodes;
  bool verify = true;         // digest of every bucket
  bool shared_memory = true;  // where it can be had; false: messages inside a node, too
  bool in_place = true;       // targets copy from sources of their node whose tensors all lie in
                              // SharedWindows; not to relays, nor with DeltaScope::everywhere
  bool device = false;  // tensors lie on this rank's current device (enable_device_exchange()); its
                        // default stream is waited for. Without deltas; with
                        // plan.between_devices nothing goes through the host
  int in_flight = trireme::plan::buckets_in_flight;  // buckets per flow
  PlanOptions plan;
  comm::ParallelFor parallel_for{};  // for copies from sources in place, and of this rank to
                                     // itself, on the host; empty: this thread only
  std::vector<std::string>
      groups{};  // [tensors] each one's group, for SyncTotals::changed; empty: not counted
  std::vector<size_t> tensors{};  // that move after a sync of all: the others stay as they are (are
                                  // frozen); empty: all
};

struct SyncCounters {
  int64_t version = 0;
  int64_t bytes_sent =
      0;  // payload that left this rank, after delta encoding, once for each rank that takes it
  int64_t bytes_received = 0;
  int64_t bytes_local = 0;            // copied inside the rank
  int64_t bytes_gathered = 0;         // that came with the trainers' gathers
  int64_t bytes_between_devices = 0;  // of bytes_sent: from device to device
  int64_t bytes_in_node = 0;          // of bytes_received: from ranks of the node
  int64_t bytes_in_place = 0;  // of bytes_in_node: from the sources' memory, without a bucket
  int64_t network_sent = 0;    // of bytes_sent: to other nodes
  int64_t network_received = 0;
  int64_t full_bytes = 0;  // what bytes_sent would be without deltas
  int64_t messages = 0;    // MPI messages sent by this rank, the agreement apart
  int64_t delta_buckets = 0;
  int64_t changed_elements = 0;
  double seconds = 0;
  double stall = 0;  // nothing to pack or unpack: waiting for others
};

// How many of a group's elements changed between two syncs, 0 ... 1.
struct ChangedShare {
  std::string group;
  double share = 0;
};

// A sync of all ranks, the same on every one of them.
struct SyncTotals {
  int64_t version = 0;
  int64_t weights = 0;          // bytes of all tensors, once
  int64_t network = 0;          // bytes between nodes
  int64_t busiest_node = 0;     // most of them that one node took
  int64_t busiest_rank = 0;     // most of them that one rank sent or took
  int64_t bound = 0;            // the least that the busiest rank can have without deltas
  int64_t in_node = 0;          // bytes passed between ranks of a node
  int64_t in_place = 0;         // of these, read where the sources have them
  int64_t local = 0;            // bytes copied inside ranks
  int64_t gathered = 0;         // bytes that trainers' gathers brought to ranks
  int64_t between_devices = 0;  // bytes that went from device to device
  int64_t sent = 0;             // bytes after delta encoding
  int64_t full = 0;             // and what they would be without
  int64_t messages = 0;
  double seconds = 0;                   // of the slowest rank
  double stall = 0;                     // most that one rank waited for others
  std::vector<ChangedShare> changed{};  // by group, in order of their tensors; empty unless every
                                        // source says what changed
  bool moved() const { return sent > 0 || local > 0 || gathered > 0; }
};

// "weight sync 12: 269 MB in 41 ms, 6.5 GB/s, 3 ms of it waiting; ..." for the log.
std::string describe(const SyncTotals& totals);

// The weights that this rank gives. `changed` are bitmaps over the stored shards, bit i (least
// significant first) set when element i may have changed since the last sync that succeeded;
// without them the sender keeps a copy of what it sent last.
struct Sources {
  std::vector<const void*> data;  // [tensors] this rank's shard, dense; empty vector: not a source
  std::vector<const uint64_t*> changed;  // [tensors] or empty; null of what is frozen
};

// Where every target reads its sources' memory nothing moves: the ranks agree on the version, and
// on a sample of the bytes of the whole tensors that they read (empty spans on ranks that read
// none). The counters say that nothing was copied. Collective; throws internal.
SyncCounters sync_shared(const comm::CommView& comm, int64_t version,
                         std::span<const void* const> tensors, std::span<const int64_t> bytes);

class DeviceWay;
class Engine;

class WeightSync {
 public:
  // Collective over `comm`, which holds every member (and may hold ranks without a role). Allocates
  // shared windows and staging. On nodes where memory cannot be shared (one container per rank, not
  // enough of it) ranks send messages; rank 0 warns.
  WeightSync(const comm::CommView& comm, const base::ShardLayout& source,
             const base::ShardLayout& target, const Members& members,
             const SyncOptions& options = {});
  WeightSync(const WeightSync&) = delete;
  ~WeightSync();  // collective (frees shared windows)

  // Collective over the communicator. `targets`: [tensors] this rank's slice, dense; empty: not a
  // target. With deltas the targets must hold what the last sync left there; call forget()
  // otherwise. Throws internal on every rank when a bucket's digest, number or version does not
  // fit.
  SyncCounters run(int64_t version, const Sources& sources, std::span<void* const> targets);

  // Collective. Compares digests (sums of bits, where it lies on a device) of every piece that the
  // last sync moved in the sources' memory and in the targets' memory, buckets that were passed on
  // with their origin.
  // "" when they agree; else which rank differs in which tensors, the same on every rank.
  std::string differences(const Sources& sources, std::span<void* const> targets);

  // The next sync sends everything, frozen tensors, too. The same on every rank.
  void forget();
  int64_t version() const;
  const Plan& plan() const;
  // Collective.
  SyncTotals totals(const SyncCounters& counters) const;

 private:
  void set_up(const std::vector<size_t>& tensors);
  Sources moved(const Sources& sources) const;
  std::vector<void*> moved(std::span<void* const> targets) const;

  comm::CommView comm_;
  base::ShardLayout source_, target_;
  Members members_;
  SyncOptions options_;
  std::vector<size_t> moving_;      // empty: all
  bool all_arrived_ = false;        // once
  std::unique_ptr<DeviceWay> way_;  // null: through host memory
  std::unique_ptr<Engine> engine_;
};

}  // namespace trireme::weightsync
