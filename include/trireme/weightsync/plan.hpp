// M x N weight sync as integer arithmetic: which runs of which tensor go from a rank that stores a
// trainer's shard to one that stores a generator's slice. Every rank computes its own part from the
// two layouts; no message, no server.
//
// Flows: the data from one rank to another is one flow, cut into buckets in tensor order. A node
// takes a byte from the network once: where k replicas of a node want a slice of a shard that is
// not there, bucket b goes to one of them, (b + shard) mod k, its home, which passes it on inside
// the node. With more nodes of generators than of trainers (relay) it goes to one replica of them
// all, which passes it on to one of every other node, too: each trainer sends its shard once
// (performance bound max(S/M, S/max(t,g))/B of docs/design/0008).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/shard_layout.hpp"
#include "trireme/plan/sync_buckets.hpp"

namespace trireme::weightsync {

// Which rank of the sync's communicator holds what. A rank may appear once among the sources and
// once among the targets.
struct Members {
  std::vector<std::vector<int>> sources;  // [replica group of a hybrid trainer][shard]
  std::vector<std::vector<int>> targets;  // [generator replica][tensor-parallel rank]
  std::vector<int> node_of;  // [rank of the communicator]; empty: every rank is a node of its own
  std::vector<bool> shares_memory{};  // [rank] with the others of its node; empty: all do
};

struct PlanOptions {
  int64_t bucket_bytes = int64_t{8} << 20;        // between nodes
  int64_t node_bucket_bytes = plan::node_bucket;  // inside a node
  int64_t element_bytes = 2;
  bool between_devices = false;  // from GPU to GPU: all flows under way at a time, in buckets of
                                 // plan::device_bucket()
  enum class Relay : uint8_t {
    automatic,
    never,
    always
  } relay = Relay::automatic;  // automatic: more nodes of targets than of sources
};

// Part of a tensor in a bucket. The run's offsets count from the tensor's storage on either side.
struct Piece {
  uint32_t tensor = 0;
  base::CopyRun run;
};

struct Bucket {
  size_t first = 0;  // pieces [first, last) of the flow
  size_t last = 0;
  int64_t elements = 0;
  int32_t number = 0;  // within (shard, slice): the same on every rank
};

// How a flow's bytes move.
enum class Route : uint8_t { local, node, message };

struct Flow {
  int from = 0;
  std::vector<int> to;  // one rank; several inside a node, where a replica passes on what it got:
                        // all read the same memory
  int shard = 0;        // sent: shard x slice
  int slice = 0;
  int origin = 0;  // rank that holds the shard; == from, unless a replica passes on what it got
  int home = 0;    // rank that gets it from the origin; == to[0], unless passed on
  Route route = Route::message;
  std::vector<Piece> pieces;
  std::vector<Bucket> buckets;
  bool passed_on() const { return from != origin; }
  int64_t elements() const;
};

// This rank's part of the plan.
struct Plan {
  std::vector<Flow> sends;  // local flows stand here only
  std::vector<Flow> receives;
  int64_t total_bytes = 0;   // S: of all tensors
  int64_t memory_bytes = 0;  // that the plan itself takes
  bool relay = false;        // between nodes, too
  bool passes_messages =
      false;  // some rank of the job passes on by messages: it needs all its flows open at a time
  int sources = 0;  // M: trainer ranks of one group
  int slices = 0;   // t
  int replicas = 0;
  int targets_per_node = 1;  // g
  // The least that a NIC must carry, bytes: max(S / M, S / max(t, g)).
  int64_t bound_bytes() const;
};

// `source` has as many ranks as a source group, `target` as many as a replica; both list the same
// tensors. `rank` is this rank in the communicator. Throws configuration, naming what does not fit.
// Deterministic; not collective.
Plan make_plan(const base::ShardLayout& source, const base::ShardLayout& target,
               const Members& members, int rank, const PlanOptions& options = {});

}  // namespace trireme::weightsync
