// One sync in progress on one rank through buckets in host memory: channels for its flows, and a
// loop that moves whatever can move.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "channel.hpp"
#include "engine.hpp"
#include "in_place.hpp"
#include "packing.hpp"
#include "trireme/comm/topology.hpp"

namespace trireme::weightsync {

// A flow that this rank sends: packed from its tensors, or passed on from a flow that it receives.
struct Outgoing {
  const Flow* flow = nullptr;
  comm::Tag tag = comm::Tag::first_flow;  // of a message
  std::byte* ring = nullptr;              // inside a node
  size_t next = 0;                        // bucket
  std::unique_ptr<SendChannel> channel;
  bool in_place = false;  // the readers copy it; the ring says when
  bool finished = false;
  bool posted_all() const { return next == flow->buckets.size(); }
};

struct Incoming {
  const Flow* flow = nullptr;
  comm::Tag tag = comm::Tag::first_flow;
  std::byte* ring = nullptr;
  size_t next = 0;
  std::unique_ptr<ReceiveChannel> channel;
  const std::vector<const void*>* in_place =
      nullptr;  // [tensors] the sender's, to copy from; null: they come in buckets
  std::vector<Outgoing*> passes;  // flows that are fed by this one
  std::vector<bool> passed;       // for the bucket that is being passed on
  bool unpacked = false;          // the bucket at hand is in the targets already
  bool done() const { return next == flow->buckets.size(); }
};

class BucketEngine final : public Engine {
 public:
  BucketEngine(const comm::CommView& comm, const base::ShardLayout& source,
               const base::ShardLayout& target, const Members& members, const SyncOptions& options);

  SyncCounters run(int64_t version, Sources sources, std::vector<void*> targets) override;

 private:
  std::vector<ChangedShare> changed_shares() const override;

  // Set-up (bucket_engine.cpp)
  bool set_up(const base::ShardLayout& source, const base::ShardLayout& target);
  void list_flows();
  void connect_passes();
  void open_rings();
  void look_for_sources_in_place();
  int node_rank(int rank) const {
    return static_cast<int>(std::ranges::find(node_ranks_, rank) - node_ranks_.begin());
  }
  void size_buffers();
  int64_t slot_bytes(const Flow& flow) const;

  // Moves (moves.cpp); each returns whether anything moved.
  void begin_flows();
  void begin_in_place();
  bool step();
  bool activate();
  bool copy_local_buckets();
  size_t copy_some_buckets(const Flow& flow, size_t first,
                           const std::vector<const void*>& from) const;
  bool send(Outgoing& out);
  bool receive(Incoming& in);
  bool copy_in_place(Incoming& in);
  bool pass_on(Incoming& in, const std::byte* slot, int64_t payload_bytes);
  bool finished() const;
  bool waits_for_messages() const;
  void take_in(const Flow& flow, const Bucket& bucket, const std::byte* slot);
  int64_t fill(const Flow& flow, const Bucket& bucket, std::byte* slot);
  int64_t encode(const Flow& flow, const Bucket& bucket, std::byte* payload);
  bool sends_deltas(const Flow& flow) const;
  bool may_send_deltas(const Flow& flow) const;
  void count_sent(const Outgoing& out, int64_t payload_bytes, int64_t full_bytes);
  void count_changes();
  void remember();

  comm::Comm node_comm_;
  std::vector<int32_t> node_ranks_;  // [rank in node_comm_] in comm_
  std::optional<SourcesInPlace> in_place_;
  const Copier& copier_;
  const Copier& target_copier_;  // of whole buckets to the targets
  comm::SharedWindow window_;
  comm::LockedPages window_lock_;  // where a device copies from and to the window
  std::unique_ptr<BufferPool> pool_;
  size_t most_active_ = 2;  // message flows at a time, per direction

  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;

  // Of the sync in progress.
  size_t local_flow_ = 0;  // the local flow and bucket to copy next
  size_t local_bucket_ = 0;
  std::vector<int64_t>
      changed_elements_;  // [tensors] of this rank's shard; empty where that is not known
  std::vector<std::vector<std::byte>>
      previous_;  // this rank's shard as sent last, where deltas need it
};

}  // namespace trireme::weightsync
