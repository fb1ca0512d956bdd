// What tests of weight syncs need: mixes of roles, transports, a rank's memory.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/world.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/topology.hpp"
#include "trireme/weightsync/sync.hpp"
#include "unit/weightsync/layouts.hpp"

namespace trireme::weightsync {

using test::world;

inline LlamaShape odd_shape() { return {2, 60, 6, 3, 8, 77, 131}; }

// bf16 bits of global element e of tensor i in a version; only a few change between versions where
// `sparse`.
inline uint16_t value(size_t tensor, int64_t element, int64_t version, bool sparse) {
  const bool changes = !sparse || element % 97 == 0;
  return static_cast<uint16_t>(static_cast<uint64_t>(element) * 40503u + tensor * 977u +
                               (changes ? static_cast<uint64_t>(version) * 7919u : 0u));
}

inline std::vector<std::vector<uint16_t>> tensors_of(const base::ShardLayout& layout, int index,
                                                     int64_t version, bool sparse) {
  std::vector<std::vector<uint16_t>> out;
  for (size_t i = 0; i < layout.tensors().size(); ++i) {
    const base::Block block = layout.block(i, index);
    auto& values = out.emplace_back();
    for (int64_t r = 0; r < block.rows; ++r) {
      for (int64_t c = 0; c < block.columns; ++c) {
        values.push_back(value(i,
                               (block.row + r) * layout.tensors()[i].columns() + block.column + c,
                               version, sparse));
      }
    }
  }
  return out;
}

struct Roles {
  const char* name;
  Members members;
};

// Every way to deal the ranks of this job out.
inline std::vector<Roles> role_mixes() {
  const int n = world().size();
  std::vector<int> all;
  for (int r = 0; r < n; ++r) all.push_back(r);
  std::vector<std::vector<int>> singles;
  for (const int r : all) singles.push_back({r});
  std::vector<Roles> out;
  out.push_back({"colocated, one replica of all", {{all}, {all}, {}}});
  out.push_back({"colocated, a replica a rank", {{all}, singles, {}}});
  out.push_back({"hybrid: every rank has all, a replica a rank", {singles, singles, {}}});
  if (n >= 2) {
    out.push_back({"one to the rest", {{{0}}, {std::vector<int>(all.begin() + 1, all.end())}, {}}});
    out.push_back({"the rest to one", {{std::vector<int>(all.begin() + 1, all.end())}, {{0}}, {}}});
    out.push_back({"one to replicas",
                   {{{0}}, std::vector<std::vector<int>>(singles.begin() + 1, singles.end()), {}}});
  }
  if (n >= 3) out.push_back({"overlapping", {{{0, 1}}, {{1, 2}}, {}}});
  if (n >= 4) out.push_back({"two to two replicas of one", {{{0, 1}}, {{2}, {3}}, {}}});
  for (Roles& roles : out) {  // tensor parallelism beyond the KV groups is refused upstream
    for (auto& replica : roles.members.targets) replica.resize(std::min<size_t>(replica.size(), 3));
  }
  return out;
}

struct Transport {
  const char* name;
  SyncOptions options;
  int ranks_of_node = 0;  // simulated nodes; 0: the machine's

  Members of(Members members) const {
    for (int r = 0; ranks_of_node > 0 && r < world().size(); ++r)
      members.node_of.push_back(r / ranks_of_node);
    return members;
  }
};
inline std::vector<Transport> transports(const SyncOptions& of_place = {},
                                         int64_t bucket_bytes = 1024) {
  SyncOptions small = of_place;
  small.plan.bucket_bytes = bucket_bytes;
  small.plan.node_bucket_bytes = bucket_bytes / 2;
  SyncOptions messages = small;
  messages.shared_memory = false;
  SyncOptions relay = messages;
  relay.plan.relay = PlanOptions::Relay::always;
  SyncOptions one_slot = messages;
  one_slot.in_flight = 1;
  SyncOptions relay_by_rings = small;
  relay_by_rings.plan.relay = PlanOptions::Relay::always;
  SyncOptions no_relay = small;
  no_relay.plan.relay = PlanOptions::Relay::never;
  if (of_place.plan.between_devices)  // one way of messages, passed on or not
    return {{"one node", small},
            {"nodes of one", no_relay, 1},
            {"nodes of two", no_relay, 2},
            {"relay, nodes of one", relay, 1},
            {"relay, nodes of two", relay, 2},
            {"defaults", of_place}};
  std::vector<Transport> out{{"rings", small},
                             {"messages", messages},
                             {"messages, nodes of one", messages, 1},
                             {"relay, nodes of one", relay, 1},
                             {"relay, nodes of two", relay, 2},
                             {"relay and rings, nodes of two", relay_by_rings, 2},
                             {"rings in nodes of two", no_relay, 2},
                             {"one in flight", one_slot, 1},
                             {"defaults", of_place}};
  if (!of_place.device) {
    SyncOptions deltas = small;
    deltas.delta = DeltaScope::everywhere;
    out.push_back({"deltas", deltas});
  }
  return out;
}

// Where a rank's tensors lie in a test: memory of the host, or of a device.
class Tensors {
 public:
  virtual ~Tensors() = default;
  virtual uint16_t* allocate(size_t elements) = 0;
  virtual void write(uint16_t* to, const uint16_t* from, size_t elements) = 0;
  virtual void read(uint16_t* to, const uint16_t* from, size_t elements) = 0;
};

class HostTensors final : public Tensors {
 public:
  uint16_t* allocate(size_t elements) override { return memory_.emplace_back(elements).data(); }
  void write(uint16_t* to, const uint16_t* from, size_t elements) override {
    std::copy_n(from, elements, to);
  }
  void read(uint16_t* to, const uint16_t* from, size_t elements) override {
    std::copy_n(from, elements, to);
  }

 private:
  std::vector<std::vector<uint16_t>> memory_;
};

// A source's tensors in windows that its node's other ranks can map, some in each: a window takes
// milliseconds to make.
class WindowTensors final : public Tensors {
 public:
  WindowTensors() : alone_(comm::Comm::split(world(), world().rank(), 0, "alone")) {}
  uint16_t* allocate(size_t elements) override {
    if (windows_.empty() || used_ + elements > window_elements) {
      used_ = 0;
      windows_.emplace_back(
          alone_.view(),
          static_cast<int64_t>(std::max(elements, window_elements) * sizeof(uint16_t)), "tensors");
    }
    uint16_t* place = reinterpret_cast<uint16_t*>(windows_.back().part(0)) + used_;
    used_ += (elements + 31) / 32 * 32;  // whole cache lines
    return place;
  }
  void write(uint16_t* to, const uint16_t* from, size_t elements) override {
    std::copy_n(from, elements, to);
  }
  void read(uint16_t* to, const uint16_t* from, size_t elements) override {
    std::copy_n(from, elements, to);
  }

 private:
  static constexpr size_t window_elements = 16384;
  comm::Comm alone_;
  std::vector<comm::SharedWindow> windows_;
  size_t used_ = 0;  // of the last one
};

struct Home {
  std::string name;
  SyncOptions options;
  int64_t bucket_bytes = 0;  // of transports with small buckets
  std::function<std::unique_ptr<Tensors>()> make;
};
inline const Home host{"host", SyncOptions{}, 1024, [] { return std::make_unique<HostTensors>(); }};
inline const Home windows{"windows", SyncOptions{}, 1024,
                          [] { return std::make_unique<WindowTensors>(); }};
inline std::string name_of(const testing::TestParamInfo<Home>& info) { return info.param.name; }

// A rank's memory in a sync.
class Member {
 public:
  Member(const base::ShardLayout& source, const base::ShardLayout& target, const Members& members,
         const Home& home)
      : source_(source), target_(target), memory_(home.make()) {
    for (const auto& group : members.sources) find(group, shard_);
    for (const auto& replica : members.targets) find(replica, slice_);
    for (size_t i = 0; i < target.tensors().size(); ++i) {
      if (shard_ >= 0) shards_.push_back(memory_->allocate(elements(source, i, shard_)));
      if (slice_ < 0) continue;
      slices_.push_back(memory_->allocate(elements(target, i, slice_)));
      const std::vector<uint16_t> nothing(elements(target, i, slice_), uint16_t{0xdead});
      memory_->write(slices_.back(), nothing.data(), nothing.size());
    }
  }
  Sources sources(int64_t version, bool sparse) {
    Sources out;
    if (shard_ < 0) return out;
    const auto values = tensors_of(source_, shard_, version, sparse);
    for (size_t i = 0; i < values.size(); ++i)
      memory_->write(shards_[i], values[i].data(), values[i].size());
    out.data.assign(shards_.begin(), shards_.end());
    return out;
  }
  std::vector<void*> targets() { return {slices_.begin(), slices_.end()}; }
  void expect_version(int64_t version, bool sparse) const {
    if (slice_ < 0) return;
    const auto expected = tensors_of(target_, slice_, version, sparse);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(slice(i) == expected[i]) << target_.tensors()[i].name << " version " << version;
  }
  std::vector<uint16_t> slice(size_t tensor) const {
    std::vector<uint16_t> values(elements(target_, tensor, slice_));
    memory_->read(values.data(), slices_[tensor], values.size());
    return values;
  }
  void set_slice(size_t tensor, const std::vector<uint16_t>& values) {
    memory_->write(slices_[tensor], values.data(), values.size());
  }
  bool is_source() const { return shard_ >= 0; }
  bool is_target() const { return slice_ >= 0; }

 private:
  static size_t elements(const base::ShardLayout& layout, size_t tensor, int index) {
    return static_cast<size_t>(std::max<int64_t>(0, layout.block(tensor, index).elements()));
  }
  static void find(const std::vector<int>& ranks, int& index) {
    const auto at = std::find(ranks.begin(), ranks.end(), world().rank());
    if (at != ranks.end()) index = static_cast<int>(at - ranks.begin());
  }
  const base::ShardLayout& source_;
  const base::ShardLayout& target_;
  std::unique_ptr<Tensors> memory_;
  int shard_ = -1;
  int slice_ = -1;
  std::vector<uint16_t*> shards_, slices_;
};

}  // namespace trireme::weightsync
