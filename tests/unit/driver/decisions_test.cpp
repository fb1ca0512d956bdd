// The memory plan and the program decide alike over random decks, at np 1, 2 and 4: which memory
// the trainers' weights are in, and whether generators have a copy of their own.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "driver/weight_bridge.hpp"
#include "trireme/base/error.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/plan/job.hpp"
#include "unit/driver/tiny_actor.hpp"
#include "unit/plan/layouts.hpp"

namespace trireme::driver {
namespace {

using test::world;

// The same deck on all ranks. Some do not fit the number of ranks.
std::vector<std::string> random_deck(std::mt19937& random) {
  const auto one_of = [&](std::vector<std::string> words) {
    return words[random() % words.size()];
  };
  const int count = world().size();
  const std::string last = std::to_string(count - 1), half = std::to_string(count / 2);
  const std::vector<std::string> places{"all", "0", last, "0-" + half, half + "-" + last};
  return {"ranks.trainer=" + one_of(places),
          "ranks.generator=" + one_of(places),
          "train.shard_group=" + one_of({"0", "1", "2"}),
          "train.async_depth=" + one_of({"0", "1"}),
          "train.node_weights=" + one_of({"true", "false"}),
          "weightsync.shared_memory=" + one_of({"auto", "auto", "buckets", "never"}),
          "weightsync.delta=" + one_of({"true", "false"}),
          "generate.tensor_parallel=" + one_of({"1", "1", "1", "2"})};
}

bool has(const plan::Ledger& ledger, const std::string& owner, const std::string& what) {
  return std::ranges::any_of(ledger.entries(), [&](const plan::Entry& entry) {
    return entry.owner == owner && entry.what == what && entry.bytes > 0;
  });
}

struct Decisions {
  bool window = false;  // the trainers' weights are in shared memory of the node
  bool copy = false;    // a generator has weights of its own
  bool operator==(const Decisions&) const = default;
};

Decisions planned(const config::Options& options, const comm::Roles& roles,
                  const model::ModelSpec& spec) {
  const plan::JobModels models{test::layout(spec),
                               model::tensor_parallel_layout(spec, roles.tensor_parallel()),
                               {},
                               {},
                               {},
                               {}};
  const plan::Job job{options, roles.map, roles.topology.node_of, models, {}, config::DType::f32};
  const plan::Ledger ledger = plan::memory_of_rank(job, world().rank());
  return {has(ledger, "actor", "weights, share of the node's"),
          has(ledger, "generator", "weights")};
}

Decisions taken(const config::Options& options, const comm::Roles& roles,
                const model::ModelSpec& spec) {
  std::unique_ptr<zero::ShardedModel> actor;
  if (roles.trainer) {
    actor = learn::make_sharded(roles.trainers, spec, at::kCPU,
                                {.compute = config::DType::f32,
                                 .node_weights = options.train.node_weights,
                                 .rings = roles.rings});
  }
  const auto shared = shared_weights(options, roles, actor.get());
  return {actor && actor->exchange_kind().starts_with("shared window"),
          roles.generator && shared.empty()};
}

TEST(Decisions, PlanAndProgramAgreeOverRandomDecks) {
  const model::ModelSpec spec =
      model::describe(test::tiny_shape(test::Tied::no), model::HeadKind::language);
  std::mt19937 random(20261127);
  int compared = 0, windows = 0, copies = 0;
  for (int deck = 0; deck < 2000 && compared < 30; ++deck) {
    const std::vector<std::string> overrides = random_deck(random);
    const config::Options options = config::parse_deck("", "deck", overrides);
    std::optional<comm::Roles> roles;
    try {
      roles.emplace(comm::make_roles(options, world()));
    } catch (const UserError&) {
      continue;  // on all ranks
    }
    std::string text;
    for (const auto& one : overrides) text += one + " ";
    const Decisions wanted = planned(options, *roles, spec), found = taken(options, *roles, spec);
    EXPECT_EQ(wanted.window, found.window) << text;
    EXPECT_EQ(wanted.copy, found.copy) << text;
    ++compared;
    windows += found.window;
    copies += found.copy;
  }
  EXPECT_EQ(compared, 30);
  EXPECT_GT(world().sum(windows), 0);
  EXPECT_GT(world().sum(copies), 0);
}

}  // namespace
}  // namespace trireme::driver
