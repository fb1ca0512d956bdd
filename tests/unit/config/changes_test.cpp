// Keys that differ between two decks: all of them, with both values, and whether they change what
// is computed.
#include "trireme/config/changes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/config/deck.hpp"

namespace trireme::config {
namespace {

Options start() {
  Options options;
  options.model.path = "model";
  options.reward.source.resize(2);
  return options;
}

TEST(Changes, NoneBetweenEqualDecks) {
  EXPECT_TRUE(changed_keys(start(), start()).empty());
  EXPECT_TRUE(changed_keys(start(), parse_deck(dump_deck(start()))).empty());
}

TEST(Changes, MeaningAndConductApart) {
  Options now = start();
  now.run.seed = 9;
  now.run.iterations = 77;
  now.actor.adam.lr = 1;
  now.ckpt.interval = 3;
  now.reward.source[1].weight = 0.5;
  now.reward.source[1].timeout = {5};
  const auto changes = changed_keys(start(), now);
  EXPECT_EQ(describe(changes, KeyKind::meaning),
            "run.seed: 42 -> 9\nactor.adam.lr: 1e-06 -> 1.0\nreward.source.1.weight: 1.0 -> 0.5");
  EXPECT_THAT(describe(changes, KeyKind::conduct),
              testing::AllOf(testing::HasSubstr("run.iterations: "), testing::HasSubstr(" -> 77"),
                             testing::HasSubstr("ckpt.interval: 10 -> 3"),
                             testing::HasSubstr("reward.source.1.timeout: ")));
}

TEST(Changes, RewardSourcesThatComeAndGo) {
  Options now = start();
  now.reward.source.pop_back();
  EXPECT_THAT(describe(changed_keys(start(), now), KeyKind::meaning),
              testing::ContainsRegex("^reward.source.1: .* -> \\(none\\)$"));
  EXPECT_THAT(describe(changed_keys(now, start()), KeyKind::meaning),
              testing::ContainsRegex("^reward.source.1: \\(none\\) -> "));
}

}  // namespace
}  // namespace trireme::config
