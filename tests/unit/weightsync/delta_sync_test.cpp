// Syncs that send what has changed only.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "support/sync_members.hpp"

namespace trireme::weightsync {
namespace {

class DeltasIn : public testing::TestWithParam<Home> {};
INSTANTIATE_TEST_SUITE_P(Host, DeltasIn, testing::Values(host, windows), name_of);

TEST_P(DeltasIn, AreSmallAndExact) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  const Members members{{{0}}, {{1}}, {}};
  const base::ShardLayout source = base::ShardLayout::by_rows(llama_tensors(odd_shape()), 1);
  const base::ShardLayout target = llama_slices(odd_shape(), 1);
  for (const bool with_bitmap : {false, true}) {
    SyncOptions options = GetParam().options;
    options.delta = DeltaScope::everywhere;
    WeightSync sync(world(), source, target, members, options);
    Member member(source, target, members, GetParam());
    std::vector<std::vector<uint64_t>> bits;
    for (const auto& tensor : source.tensors()) {
      auto& words = bits.emplace_back(static_cast<size_t>(tensor.elements() / 64 + 1));
      for (int64_t e = 0; e < tensor.elements(); e += 97)
        words[static_cast<size_t>(e / 64)] |= uint64_t{1} << (e % 64);
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

}  // namespace
}  // namespace trireme::weightsync
