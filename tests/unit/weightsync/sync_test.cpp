// Real syncs between the ranks of the job: every mix of roles, both transports, deltas, and faults.
#include "trireme/weightsync/sync.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "layouts.hpp"
#include "support/world.hpp"
#include "trireme/base/error.hpp"

namespace {
bool memory_can_be_shared = true;
}

// In place of the C library's: a system that gives no memory to share (containers without /proc of each other, memory short).
extern "C" int memfd_create(const char* name, unsigned flags) noexcept {
  if (!memory_can_be_shared) {
    errno = ENOMEM;
    return -1;
  }
  return static_cast<int>(syscall(SYS_memfd_create, name, flags));
}

namespace trireme::weightsync {
namespace {

using test::world;

LlamaShape odd_shape() { return {2, 60, 6, 3, 8, 77, 131}; }

// bf16 bits of global element e of tensor i in a version; only a few change between versions where `sparse`.
uint16_t value(size_t tensor, int64_t element, int64_t version, bool sparse) {
  const bool changes = !sparse || element % 97 == 0;
  return static_cast<uint16_t>(static_cast<uint64_t>(element) * 40503u + tensor * 977u + (changes ? static_cast<uint64_t>(version) * 7919u : 0u));
}

std::vector<std::vector<uint16_t>> tensors_of(const base::ShardLayout& layout, int index, int64_t version, bool sparse) {
  std::vector<std::vector<uint16_t>> out;
  for (size_t i = 0; i < layout.tensors().size(); ++i) {
    const base::Block block = layout.block(i, index);
    auto& values = out.emplace_back();
    for (int64_t r = 0; r < block.rows; ++r) {
      for (int64_t c = 0; c < block.columns; ++c) {
        values.push_back(value(i, (block.row + r) * layout.tensors()[i].columns() + block.column + c, version, sparse));
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
std::vector<Roles> role_mixes() {
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
    out.push_back({"one to replicas", {{{0}}, std::vector<std::vector<int>>(singles.begin() + 1, singles.end()), {}}});
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
};
std::vector<Transport> transports() {
  SyncOptions small;
  small.plan.bucket_bytes = 1024;
  small.plan.node_bucket_bytes = 512;
  SyncOptions messages = small;
  messages.shared_memory = false;
  SyncOptions relay = messages;
  relay.plan.relay = PlanOptions::Relay::always;
  SyncOptions deltas = small;
  deltas.delta = DeltaScope::everywhere;
  SyncOptions one_slot = messages;
  one_slot.in_flight = 1;
  return {{"rings", small}, {"messages", messages}, {"relay", relay}, {"deltas", deltas}, {"one in flight", one_slot}, {"defaults", SyncOptions{}}};
}

// A rank's memory in a sync.
class Member {
 public:
  Member(const base::ShardLayout& source, const base::ShardLayout& target, const Members& members) : source_(source), target_(target) {
    for (const auto& group : members.sources) find(group, shard_);
    for (const auto& replica : members.targets) find(replica, slice_);
    if (slice_ >= 0) {
      for (size_t i = 0; i < target.tensors().size(); ++i) {
        slices_.emplace_back(static_cast<size_t>(std::max<int64_t>(0, target.block(i, slice_).elements())), uint16_t{0xdead});
      }
    }
  }
  Sources sources(int64_t version, bool sparse) {
    Sources out;
    if (shard_ < 0) return out;
    shards_ = tensors_of(source_, shard_, version, sparse);
    for (const auto& tensor : shards_) out.data.push_back(tensor.data());
    return out;
  }
  std::vector<void*> targets() {
    std::vector<void*> out;
    for (auto& tensor : slices_) out.push_back(tensor.data());
    return out;
  }
  void expect_version(int64_t version, bool sparse) const {
    if (slice_ < 0) return;
    const auto expected = tensors_of(target_, slice_, version, sparse);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(slices_[i] == expected[i]) << target_.tensors()[i].name << " version " << version;
  }
  std::vector<std::vector<uint16_t>>& shards() { return shards_; }
  bool is_source() const { return shard_ >= 0; }
  bool is_target() const { return slice_ >= 0; }

 private:
  static void find(const std::vector<int>& ranks, int& index) {
    const auto at = std::find(ranks.begin(), ranks.end(), world().rank());
    if (at != ranks.end()) index = static_cast<int>(at - ranks.begin());
  }
  const base::ShardLayout& source_;
  const base::ShardLayout& target_;
  int shard_ = -1;
  int slice_ = -1;
  std::vector<std::vector<uint16_t>> shards_;
  std::vector<std::vector<uint16_t>> slices_;
};

TEST(Sync, EveryMixOfRolesAndTransports) {
  for (const Roles& roles : role_mixes()) {
    const base::ShardLayout source = base::ShardLayout::by_rows(llama_tensors(odd_shape()), static_cast<int>(roles.members.sources[0].size()));
    const base::ShardLayout target = llama_slices(odd_shape(), static_cast<int>(roles.members.targets[0].size()));
    for (const Transport& transport : transports()) {
      SCOPED_TRACE(testing::Message() << roles.name << ", " << transport.name);
      WeightSync sync(world(), source, target, roles.members, transport.options);
      Member member(source, target, roles.members);
      for (const int64_t version : {3, 4, 9}) {
        const Sources sources = member.sources(version, version > 3);
        const auto targets = member.targets();
        sync.run(version, sources, targets);
        member.expect_version(version, version > 3);
        EXPECT_EQ(sync.differences(sources, targets), "");
        EXPECT_EQ(sync.version(), version);
      }
    }
  }
}

// Ranks whose node cannot share memory send messages, those of other nodes go on sharing it, and the weights are the same.
TEST(Sync, GoesOnWithMessagesWhereMemoryCannotBeShared) {
  const int n = world().size();
  if (n < 2) GTEST_SKIP() << "needs two ranks";
  for (const bool two_nodes : {false, true}) {
    if (two_nodes && n < 4) continue;
    for (Roles roles : role_mixes()) {
      SCOPED_TRACE(testing::Message() << roles.name << (two_nodes ? ", two nodes" : ""));
      for (int r = 0; r < n; ++r) roles.members.node_of.push_back(two_nodes ? r / 2 : 0);
      memory_can_be_shared = two_nodes && world().rank() < 2;
      const base::ShardLayout source = base::ShardLayout::by_rows(llama_tensors(odd_shape()), static_cast<int>(roles.members.sources[0].size()));
      const base::ShardLayout target = llama_slices(odd_shape(), static_cast<int>(roles.members.targets[0].size()));
      WeightSync sync(world(), source, target, roles.members, {});
      memory_can_be_shared = true;
      Member member(source, target, roles.members);
      int64_t shared = 0;
      for (const int64_t version : {1, 2}) {
        const SyncCounters counters = sync.run(version, member.sources(version, false), member.targets());
        member.expect_version(version, false);
        shared += counters.bytes_in_node;
      }
      if (!two_nodes || world().rank() >= 2) {
        EXPECT_EQ(shared, 0);
      }
      for (const Flow& flow : sync.plan().receives) {
        if (flow.from != world().rank() && (!two_nodes || flow.from / 2 != 0 || world().rank() >= 2)) {
          EXPECT_EQ(flow.route, Route::message) << "from " << flow.from;
        }
      }
    }
  }
}

TEST(Sync, MessagesAreOfTheOrderOfPeersTimesBuckets) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  const Roles roles = role_mixes()[3];
  const base::ShardLayout source = base::ShardLayout::by_rows(llama_tensors(odd_shape()), 1);
  const base::ShardLayout target = llama_slices(odd_shape(), static_cast<int>(roles.members.targets[0].size()));
  SyncOptions options;
  options.shared_memory = false;
  options.plan.bucket_bytes = 4096;
  WeightSync sync(world(), source, target, roles.members, options);
  Member member(source, target, roles.members);
  const SyncCounters counters = sync.run(1, member.sources(1, false), member.targets());
  int64_t buckets = 0;
  for (const Flow& flow : sync.plan().sends) buckets += static_cast<int64_t>(flow.buckets.size());
  EXPECT_EQ(counters.messages, buckets);
  if (world().rank() == 0) {
    const int64_t peers = static_cast<int64_t>(roles.members.targets[0].size());
    EXPECT_LE(buckets, peers * (source.total_elements() * 2 / 4096 / peers + 20));
    EXPECT_LT(buckets, static_cast<int64_t>(source.tensors().size()) * peers * 4);
    int64_t slices = 0;
    for (int k = 0; k < peers; ++k) slices += target.elements(k);
    EXPECT_EQ(counters.bytes_sent, slices * 2);
  }
  EXPECT_THAT(sync.describe(counters), testing::HasSubstr("GB/s"));
}

TEST(Sync, DeltasAreSmallAndExact) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  const Members members{{{0}}, {{1}}, {}};
  const base::ShardLayout source = base::ShardLayout::by_rows(llama_tensors(odd_shape()), 1);
  const base::ShardLayout target = llama_slices(odd_shape(), 1);
  for (const bool with_bitmap : {false, true}) {
    SyncOptions options;
    options.delta = DeltaScope::everywhere;
    WeightSync sync(world(), source, target, members, options);
    Member member(source, target, members);
    std::vector<std::vector<uint64_t>> bits;
    for (const auto& tensor : source.tensors()) {
      auto& words = bits.emplace_back(static_cast<size_t>(tensor.elements() / 64 + 1));
      for (int64_t e = 0; e < tensor.elements(); e += 97) words[static_cast<size_t>(e / 64)] |= uint64_t{1} << (e % 64);
    }
    for (const int64_t version : {1, 2, 3}) {
      Sources sources = member.sources(version, true);
      if (with_bitmap && member.is_source()) {
        for (const auto& words : bits) sources.changed.push_back(words.data());
      }
      const SyncCounters counters = sync.run(version, sources, member.targets());
      member.expect_version(version, true);
      if (!member.is_source()) continue;
      if (version == 1) {
        EXPECT_EQ(counters.bytes_sent, counters.full_bytes);
      } else {
        EXPECT_LT(counters.bytes_sent * 20, counters.full_bytes);
        EXPECT_GT(counters.delta_buckets, 0);
      }
    }
    // Nothing is assumed about the targets after forget().
    sync.forget();
    const SyncCounters counters = sync.run(4, member.sources(4, true), member.targets());
    EXPECT_EQ(counters.bytes_sent, counters.full_bytes);
    member.expect_version(4, true);
  }
}

// A byte changed on the way: every rank learns of it, and the next sync is whole again.
TEST(Sync, CorruptionIsFoundByEverybody) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  const Members members{{{0}}, {{1}}, {}};
  const base::ShardLayout source = base::ShardLayout::by_rows(llama_tensors(odd_shape()), 1);
  const base::ShardLayout target = llama_slices(odd_shape(), 1);
  for (const Transport& transport : transports()) {
    SCOPED_TRACE(transport.name);
    WeightSync sync(world(), source, target, members, transport.options);
    Member member(source, target, members);
    sync.run(1, member.sources(1, true), member.targets());
    if (world().rank() == 0) sync.corrupt_next(0);
    try {
      sync.run(2, member.sources(2, true), member.targets());
      ADD_FAILURE() << "not found";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::internal);
      EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("digest"), testing::HasSubstr("embed_tokens"), testing::HasSubstr("rank 1")));
    }
    const SyncCounters counters = sync.run(3, member.sources(3, true), member.targets());
    EXPECT_EQ(counters.delta_buckets, 0);
    member.expect_version(3, true);
  }
}

TEST(Sync, ADifferenceInMemoryIsFoundAndHealedByAWholeSync) {
  std::vector<int> all;
  for (int r = 0; r < world().size(); ++r) all.push_back(r);
  const Members members{{all}, {{world().size() - 1}}, {}};
  const base::ShardLayout source = base::ShardLayout::by_rows(llama_tensors(odd_shape()), world().size());
  const base::ShardLayout target = llama_slices(odd_shape(), 1);
  WeightSync sync(world(), source, target, members);
  Member member(source, target, members);
  const Sources sources = member.sources(1, false);
  const auto targets = member.targets();
  sync.run(1, sources, targets);
  EXPECT_EQ(sync.differences(sources, targets), "");
  if (member.is_target()) static_cast<uint16_t*>(targets[5])[7] ^= 1;
  EXPECT_THAT(sync.differences(sources, targets), testing::HasSubstr(source.tensors()[5].name)) << "on every rank";
  sync.forget();
  sync.run(1, sources, targets);
  EXPECT_EQ(sync.differences(sources, targets), "");
}

TEST(Sync, RanksThatDisagreeOnTheVersionAllThrow) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  const Members members{{{0}}, {{1}}, {}};
  const base::ShardLayout source = base::ShardLayout::by_rows(llama_tensors(odd_shape()), 1);
  const base::ShardLayout target = llama_slices(odd_shape(), 1);
  WeightSync sync(world(), source, target, members);
  Member member(source, target, members);
  EXPECT_THROW(sync.run(world().rank() == 1 ? 8 : 7, member.sources(7, false), member.targets()), InternalError);
}

TEST(SharedSync, AgreesOnVersionAndBytesAndCopiesNothing) {
  auto weights = tensors_of(llama_slices(odd_shape(), 1), 0, 5, false);
  std::vector<const void*> whole;
  std::vector<int64_t> bytes;
  const bool reads = world().rank() != 1;  // a rank without a role in it
  for (const auto& tensor : weights) {
    if (!reads) break;
    whole.push_back(tensor.data());
    bytes.push_back(static_cast<int64_t>(tensor.size() * 2));
  }
  const SyncCounters counters = sync_shared(world(), 5, whole, bytes);
  EXPECT_EQ(counters.version, 5);
  EXPECT_EQ(counters.bytes_local + counters.bytes_sent + counters.bytes_received, 0);
  if (world().size() == 1) return;
  EXPECT_THROW(sync_shared(world(), world().rank(), whole, bytes), UserError);
  if (world().size() < 4) return;
  if (world().rank() == 3) weights[3].back() ^= 1;
  EXPECT_THROW(sync_shared(world(), 6, whole, bytes), UserError);
}

}  // namespace
}  // namespace trireme::weightsync
