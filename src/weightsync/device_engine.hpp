// A plan carried out from device to device: bucket i of every flow goes in round i, so that all
// ranks come to their rounds in one order and each one's messages match. A bucket that is one run
// in its tensor goes from there, or comes there; others are packed on the device, in two halves of
// memory that rounds use in turn. What a rank passes on goes two rounds later, from its targets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine.hpp"
#include "packing.hpp"
#include "trireme/comm/device_messages.hpp"

namespace trireme::weightsync {

// Messages of the ranks that have a part in syncs; others have none.
class DeviceWay {
 public:
  // Collective over `comm`.
  DeviceWay(const comm::CommView& comm, const Members& members);
  comm::DeviceMessages* messages() const { return messages_.get(); }
  int peer(int rank) const;  // its number among them

 private:
  std::vector<int> ranks_;  // ascending
  comm::Comm part_;
  std::unique_ptr<comm::DeviceMessages> messages_;
};

class DeviceEngine final : public Engine {
 public:
  // `way` must outlive it.
  DeviceEngine(const comm::CommView& comm, const base::ShardLayout& source,
               const base::ShardLayout& target, const Members& members, const SyncOptions& options,
               const DeviceWay& way);

  SyncCounters run(int64_t version, Sources sources, std::vector<void*> targets) override;

 private:
  // A bucket of one of this rank's flows.
  struct Move {
    const Flow* flow = nullptr;
    const Bucket* bucket = nullptr;
    std::optional<OneRun> run = std::nullopt;  // nothing: it is packed
    int64_t packed = 0;                        // where, in the round's half
  };
  struct Round {
    std::vector<Move> sends, receives;
  };

  void add(const Flow& flow, bool sends);
  void place(size_t number);
  void copy_local();
  void pack_round(size_t number);
  void begin_round(size_t number);
  void unpack_round(size_t number);
  std::byte* at(size_t number, const Move& move, std::span<const void* const> tensors) const;
  // The tensors that a flow is sent from: a rank passes on from its targets.
  std::span<const void* const> tensors_of(const Flow& flow) const;
  int64_t bytes_of(const Bucket& bucket) const { return bucket.elements * element_bytes_; }

  const DeviceWay& way_;
  std::vector<Round> rounds_;
  std::array<int64_t, 2> half_bytes_{};  // of what is packed
  std::byte* packed_ = nullptr;          // both halves
};

}  // namespace trireme::weightsync
