// Cases of every weight sync, wherever the tensors are.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/sync_members.hpp"

namespace trireme::weightsync {

class SyncIn : public testing::TestWithParam<Home> {};

TEST_P(SyncIn, EveryMixOfRolesAndTransports) {
  for (const Roles& roles : role_mixes()) {
    const base::ShardLayout source = base::ShardLayout::by_rows(
        llama_tensors(odd_shape()), static_cast<int>(roles.members.sources[0].size()));
    const base::ShardLayout target =
        llama_slices(odd_shape(), static_cast<int>(roles.members.targets[0].size()));
    for (const Transport& transport : transports(GetParam().options, GetParam().bucket_bytes)) {
      SCOPED_TRACE(testing::Message() << roles.name << ", " << transport.name);
      Member member(source, target, roles.members, GetParam());
      WeightSync sync(world(), source, target, transport.of(roles.members), transport.options);
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

TEST_P(SyncIn, ADifferenceInMemoryIsFoundAndHealedByAWholeSync) {
  std::vector<int> all;
  for (int r = 0; r < world().size(); ++r) all.push_back(r);
  const Members members{{all}, {{world().size() - 1}}, {}};
  const base::ShardLayout source =
      base::ShardLayout::by_rows(llama_tensors(odd_shape()), world().size());
  const base::ShardLayout target = llama_slices(odd_shape(), 1);
  Member member(source, target, members, GetParam());
  WeightSync sync(world(), source, target, members, GetParam().options);
  const Sources sources = member.sources(1, false);
  const auto targets = member.targets();
  sync.run(1, sources, targets);
  EXPECT_EQ(sync.differences(sources, targets), "");
  if (member.is_target()) {
    auto values = member.slice(5);
    values[7] ^= 1;
    member.set_slice(5, values);
  }
  EXPECT_THAT(sync.differences(sources, targets), testing::HasSubstr(source.tensors()[5].name))
      << "on every rank";
  sync.forget();
  sync.run(1, sources, targets);
  EXPECT_EQ(sync.differences(sources, targets), "");
}

}  // namespace trireme::weightsync
