// Real syncs between the ranks of the job: every mix of roles, both transports, deltas, and faults.
#include "trireme/weightsync/sync.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/sync_cases.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/fault_point.hpp"

namespace {
bool memory_can_be_shared = true;
}

// In place of the C library's: a system that gives no memory to share (containers without /proc of
// each other, memory short).
extern "C" int memfd_create(const char* name, unsigned flags) noexcept {
  if (!memory_can_be_shared) {
    errno = ENOMEM;
    return -1;
  }
  return static_cast<int>(syscall(SYS_memfd_create, name, flags));
}

namespace trireme::weightsync {
namespace {

INSTANTIATE_TEST_SUITE_P(Host, SyncIn, testing::Values(host, windows), name_of);

// Two trainers and a replica of two on one node, or on two simulated ones: what the sources'
// windows hold is copied from there, by both ways the same.
TEST(Sync, ReadsInPlaceWhatLiesInWindows) {
  if (world().size() < 4) GTEST_SKIP() << "needs four ranks";
  const base::ShardLayout source = base::ShardLayout::by_rows(llama_tensors(odd_shape()), 2);
  const base::ShardLayout target = llama_slices(odd_shape(), 2);
  const auto all_bytes = [&](const SyncCounters& counters, int64_t SyncCounters::*what) {
    return world().sum<int64_t>(counters.*what);
  };
  struct Windows {
    const char* name;
    std::vector<int> nodes;
    bool in_windows, in_place;
    int share;  // of the bytes that are read in place, in halves
    bool threads = false;
  };
  const auto on_two_threads = [](int64_t count, const std::function<void(int64_t, int64_t)>& body) {
    std::thread other([&] { body(count / 2, count); });
    body(0, count / 2);
    other.join();
  };
  for (const Windows& one : {Windows{"windows", {0, 0, 0, 0}, true, true, 2},
                             Windows{"windows, two threads", {0, 0, 0, 0}, true, true, 2, true},
                             Windows{"buckets", {0, 0, 0, 0}, true, false, 0},
                             Windows{"own memory", {0, 0, 0, 0}, false, true, 0},
                             Windows{"two nodes, each with a trainer and half of the replica",
                                     {0, 1, 0, 1},
                                     true,
                                     true,
                                     1}}) {
    SCOPED_TRACE(one.name);
    const Members members{{{0, 1}}, {{2, 3}}, one.nodes};
    SyncOptions options;
    options.in_place = one.in_place;
    if (one.threads) options.parallel_for = on_two_threads;
    options.plan.node_bucket_bytes = 1024;
    WeightSync sync(world(), source, target, members, options);
    std::optional<Member> member(std::in_place, source, target, members,
                                 one.in_windows ? windows : host);
    for (const int64_t version : {1, 2, 3}) {
      if (version == 3)
        member.emplace(source, target, members,
                       one.in_windows ? windows : host);  // the tensors lie elsewhere now
      const SyncCounters counters =
          sync.run(version, member->sources(version, false), member->targets());
      member->expect_version(version, false);
      const int64_t received = all_bytes(counters, &SyncCounters::bytes_received),
                    in_place = all_bytes(counters, &SyncCounters::bytes_in_place);
      EXPECT_EQ(in_place, one.share == 2   ? received
                          : one.share == 1 ? all_bytes(counters, &SyncCounters::bytes_in_node)
                                           : 0);
      EXPECT_EQ(in_place > 0, one.share > 0);
      EXPECT_EQ(sync.totals(counters).in_place, in_place);
      EXPECT_EQ(counters.messages > 0, one.share == 1 && member->is_source());
    }
  }
}

// Ranks whose node cannot share memory send messages, those of other nodes go on sharing it, and
// the weights are the same.
TEST(Sync, GoesOnWithMessagesWhereMemoryCannotBeShared) {
  const int n = world().size();
  if (n < 2) GTEST_SKIP() << "needs two ranks";
  for (const bool two_nodes : {false, true}) {
    if (two_nodes && n < 4) continue;
    for (Roles roles : role_mixes()) {
      SCOPED_TRACE(testing::Message() << roles.name << (two_nodes ? ", two nodes" : ""));
      for (int r = 0; r < n; ++r) roles.members.node_of.push_back(two_nodes ? r / 2 : 0);
      memory_can_be_shared = two_nodes && world().rank() < 2;
      const base::ShardLayout source = base::ShardLayout::by_rows(
          llama_tensors(odd_shape()), static_cast<int>(roles.members.sources[0].size()));
      const base::ShardLayout target =
          llama_slices(odd_shape(), static_cast<int>(roles.members.targets[0].size()));
      WeightSync sync(world(), source, target, roles.members, {});
      memory_can_be_shared = true;
      Member member(source, target, roles.members, host);
      for (const int64_t version : {1, 2}) {
        sync.run(version, member.sources(version, false), member.targets());
        member.expect_version(version, false);
      }
      for (const Flow& flow : sync.plan().receives) {
        if (!two_nodes || flow.from / 2 != 0 || world().rank() >= 2) {
          EXPECT_EQ(flow.route, Route::message) << "from " << flow.from;
        } else {
          EXPECT_EQ(flow.route, Route::node) << "from " << flow.from;
        }
      }
    }
  }
}

// Made-up nodes: each takes the weights once from others, a part by each of its ranks, whole and as
// deltas, whether its ranks share memory or not.
TEST(Sync, ANodeTakesEveryByteOnce) {
  if (world().size() < 4) GTEST_SKIP() << "needs four ranks";
  struct Nodes {
    const char* name;
    Members members;
  };
  for (const auto& [name, members] :
       {Nodes{"two replicas on a node", {{{0, 1}}, {{2}, {3}}, {0, 0, 1, 1}}},
        Nodes{"relay to a node of two and one of one", {{{0}}, {{1}, {2}, {3}}, {0, 1, 1, 2}}}}) {
    for (const bool shared_memory : {true, false}) {
      SCOPED_TRACE(testing::Message() << name << (shared_memory ? "" : ", messages"));
      const base::ShardLayout source = base::ShardLayout::by_rows(
          llama_tensors(odd_shape()), static_cast<int>(members.sources[0].size()));
      const base::ShardLayout target = llama_slices(odd_shape(), 1);
      SyncOptions options;
      options.shared_memory = shared_memory;
      options.plan.bucket_bytes = 1024;
      WeightSync sync(world(), source, target, members, options);
      Member member(source, target, members, host);
      const int64_t whole = source.total_elements() * 2;
      for (const int64_t version : {1, 2, 3}) {
        if (version == 3) sync.forget();
        const SyncCounters counters =
            sync.run(version, member.sources(version, true), member.targets());
        member.expect_version(version, true);
        std::vector<int64_t> of_node(3);
        const auto all = world().gather_values(counters);
        int64_t sent = 0;
        for (size_t rank = 0; rank < all.size(); ++rank) {
          of_node[static_cast<size_t>(members.node_of[rank])] += all[rank].network_received;
          if (member.is_source() && members.node_of[rank] == 0) sent += all[rank].network_sent;
          EXPECT_EQ(all[rank].bytes_received, all[rank].network_received + all[rank].bytes_in_node);
        }
        EXPECT_EQ(of_node[0], 0);
        EXPECT_EQ(sync.totals(counters).busiest_node, std::max(of_node[1], of_node[2]));
        for (int node = 1; node <= members.node_of.back(); ++node) {
          const int64_t taken = of_node[static_cast<size_t>(node)];
          if (version == 2) {
            EXPECT_LT(taken * 20, whole) << "a delta to node " << node;
          } else {
            EXPECT_EQ(taken, whole) << "node " << node;
          }
        }
        if (member.is_source()) {
          EXPECT_EQ(sent, of_node[1]) << "each trainer sends its shard once";
        }
        if (member.is_target() && version == 1 &&
            members.node_of[static_cast<size_t>(world().rank())] == 1) {
          EXPECT_GT(counters.network_received, whole / 3);
          EXPECT_LT(counters.network_received, whole * 2 / 3);
        }
      }
      const Sources sources = member.sources(3, true);
      EXPECT_EQ(sync.differences(sources, member.targets()), "");
    }
  }
}

TEST(Sync, MessagesAreOfTheOrderOfPeersTimesBuckets) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  const Roles roles = role_mixes()[3];
  const base::ShardLayout source = base::ShardLayout::by_rows(llama_tensors(odd_shape()), 1);
  const base::ShardLayout target =
      llama_slices(odd_shape(), static_cast<int>(roles.members.targets[0].size()));
  SyncOptions options;
  options.shared_memory = false;
  options.plan.bucket_bytes = 4096;
  WeightSync sync(world(), source, target, roles.members, options);
  Member member(source, target, roles.members, host);
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
  const SyncTotals totals = sync.totals(counters);
  EXPECT_EQ(totals.messages, world().sum(buckets));
  EXPECT_EQ(totals.network, 0) << "all ranks are on this machine";
  EXPECT_EQ(totals.in_node, totals.sent);
  EXPECT_THAT(describe(totals), testing::HasSubstr("GB/s"));
}

// Marked by the sources: every 3rd element of tensors of the group "few", all of "all", and bits
// behind the last element, which count nothing.
TEST(Sync, TotalsHaveTheChangedShareOfEachGroup) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  const Roles roles = role_mixes()[4];  // the rest to one
  const int shards = static_cast<int>(roles.members.sources[0].size());
  const base::ShardLayout source = base::ShardLayout::by_rows(llama_tensors(odd_shape()), shards);
  const base::ShardLayout target = llama_slices(odd_shape(), 1);
  SyncOptions options;
  const size_t tensors = source.tensors().size();
  for (size_t i = 0; i < tensors; ++i) options.groups.push_back(i % 2 == 0 ? "few" : "all");
  WeightSync sync(world(), source, target, roles.members, options);
  Member member(source, target, roles.members, host);
  std::vector<std::vector<uint64_t>> bits(tensors);
  int64_t few = 0, of = 0;
  for (int shard = 0; shard < shards; ++shard) {
    for (size_t i = 0; i < tensors; ++i) {
      const int64_t elements = source.block(i, shard).elements();
      const bool all = i % 2 == 1;
      std::vector<uint64_t> words(static_cast<size_t>(elements / 64 + 1), uint64_t{0});
      for (int64_t e = 0; e < elements; e += all ? 1 : 3) {
        words[static_cast<size_t>(e / 64)] |= uint64_t{1} << (e % 64);
        if (!all) ++few;
      }
      words.back() |= ~uint64_t{0} << (elements % 64);
      if (roles.members.sources[0][static_cast<size_t>(shard)] == world().rank()) bits[i] = words;
      if (!all) of += elements;
    }
  }
  Sources sources = member.sources(1, false);
  const auto unmarked = sync.totals(sync.run(1, sources, member.targets()));
  EXPECT_TRUE(unmarked.changed.empty()) << "nobody said what changed";
  if (!sources.data.empty()) {
    for (const auto& words : bits) sources.changed.push_back(words.data());
  }
  const auto totals = sync.totals(sync.run(2, sources, member.targets()));
  ASSERT_EQ(totals.changed.size(), 2u);
  EXPECT_EQ(totals.changed[0].group, "few");
  EXPECT_DOUBLE_EQ(totals.changed[0].share, static_cast<double>(few) / static_cast<double>(of));
  EXPECT_EQ(totals.changed[1].group, "all");
  EXPECT_EQ(totals.changed[1].share, 1);
  EXPECT_THAT(describe(totals), testing::HasSubstr("all 100.00 %"));
}

// Frozen tensors move with the first sync, and with one after forget(); all bytes are those of what
// moves.
TEST(Sync, MovesSomeTensorsAfterAllOfThem) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  const base::ShardLayout target = llama_slices(odd_shape(), 1);
  const std::vector<size_t> some{1, 2, 4, target.tensors().size() - 1};
  int64_t elements = 0;
  for (const size_t t : some) elements += target.tensors()[t].elements();
  for (const size_t mix : {1, 4}) {  // colocated, and the rest to one
    const Roles roles = role_mixes()[mix];
    const int shards = static_cast<int>(roles.members.sources[0].size());
    const base::ShardLayout source = base::ShardLayout::by_rows(llama_tensors(odd_shape()), shards);
    for (const size_t how : {0, 1, 3, 7}) {  // rings, messages, relay, deltas
      const Transport transport = transports()[how];
      SCOPED_TRACE(testing::Message() << roles.name << " " << transport.name);
      SyncOptions options = transport.options;
      const Members members = transport.of(roles.members);
      WeightSync whole(world(), source, target, members, options);
      options.tensors = some;
      WeightSync part(world(), source, target, members, options);
      Member got(source, target, roles.members, host), old(source, target, roles.members, host),
          fresh(source, target, roles.members, host);
      whole.run(1, old.sources(1, false), old.targets());
      whole.forget();
      whole.run(3, fresh.sources(3, false), fresh.targets());
      EXPECT_EQ(part.totals(part.run(1, got.sources(1, false), got.targets())).weights,
                2 * target.total_elements());
      got.expect_version(1, false);
      for (const int64_t version : {2, 3}) {
        const auto counters = part.run(version, got.sources(version, false), got.targets());
        EXPECT_EQ(part.totals(counters).weights, 2 * elements);
        EXPECT_EQ(part.differences(got.sources(version, false), got.targets()), "");
      }
      const auto targets = got.targets();
      for (size_t t = 0; t < targets.size(); ++t) {
        const bool moves = std::ranges::find(some, t) != some.end();
        EXPECT_EQ(std::memcmp(targets[t], (moves ? fresh : old).targets()[t],
                              static_cast<size_t>(2 * target.block(t, 0).elements())),
                  0)
            << target.tensors()[t].name;
      }
      part.forget();
      part.run(4, got.sources(4, false), got.targets());
      got.expect_version(4, false);
    }
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
    Member member(source, target, members, host);
    sync.run(1, member.sources(1, true), member.targets());
    if (world().rank() == 0) base::install_faults({{"nan", "bucket", 1, 0}});
    try {
      sync.run(2, member.sources(2, true), member.targets());
      ADD_FAILURE() << "not found";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::internal);
      EXPECT_THAT(error.what(),
                  testing::AllOf(testing::HasSubstr("digest"), testing::HasSubstr("embed_tokens"),
                                 testing::HasSubstr("rank 1")));
    }
    const SyncCounters counters = sync.run(3, member.sources(3, true), member.targets());
    EXPECT_EQ(counters.delta_buckets, 0);
    member.expect_version(3, true);
  }
}

TEST(Sync, RanksThatDisagreeOnTheVersionAllThrow) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  const Members members{{{0}}, {{1}}, {}};
  const base::ShardLayout source = base::ShardLayout::by_rows(llama_tensors(odd_shape()), 1);
  const base::ShardLayout target = llama_slices(odd_shape(), 1);
  // Rank 1 sees it in what it receives; rank 2 has no part in the sync, so the versions are
  // compared.
  const std::vector<std::string> messages{
      "rank 1: weight sync 8, bucket 0 from rank 0 with model.embed_tokens.weight: it is bucket 0 "
      "of version 7",
      "rank 2: weight sync of version 8 while rank 0 syncs version 7"};
  for (int other = 1; other < std::min(world().size(), 3); ++other) {
    WeightSync sync(world(), source, target, members);
    Member member(source, target, members, host);
    try {
      sync.run(world().rank() == other ? 8 : 7, member.sources(7, false), member.targets());
      ADD_FAILURE() << "rank " << world().rank() << " went on";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::internal);
      EXPECT_EQ(error.what(), messages[static_cast<size_t>(other - 1)]);
    }
  }
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
