// What the engines of all ranks did, against what each puts in.
#include "torch/torch.hpp"

#include "trireme/rollout/generation_metrics.hpp"

#include <gtest/gtest.h>

#include "support/world.hpp"

namespace trireme::rollout {
namespace {

using test::world;

// Rank r wrote 10 (r + 1) tokens in 5 (r + 1) steps of 4 slots.
TEST(GenerationMetrics, AreOfAllReplicas) {
  const int64_t place = world().rank() + 1, n = world().size();
  const GeneratorWork work{.steps = 5 * place,
                           .tokens = 10 * place,
                           .preemptions = place,
                           .shared_tokens = 3,
                           .seconds = 2,
                           .page_room = 16 * place,
                           .page_room_unused = 4 * place};
  report::IterationMetrics metrics;
  add_generation_metrics(world(), &work, 4, metrics);
  const int64_t tokens = 10 * n * (n + 1) / 2;
  EXPECT_EQ(metrics.generation.at("tokens"), tokens);
  EXPECT_EQ(metrics.generation.at("steps"), 5 * n);
  EXPECT_DOUBLE_EQ(metrics.generation.at("occupancy"),
                   static_cast<double>(tokens) / static_cast<double>(5 * n * 4 * n));
  EXPECT_DOUBLE_EQ(metrics.generation.at("busiest_replica"),
                   static_cast<double>(10 * n * n) / static_cast<double>(tokens));
  EXPECT_EQ(metrics.generation.at("preemptions"), n * (n + 1) / 2);
  EXPECT_EQ(metrics.generation.at("shared_tokens"), 3 * n);
  EXPECT_DOUBLE_EQ(metrics.generation.at("tokens_per_second"), static_cast<double>(tokens) / 2);
  EXPECT_DOUBLE_EQ(metrics.generation.at("unused_cache"), 0.25);
  EXPECT_FALSE(metrics.generation.contains("proposed_tokens")) << "nothing was guessed";
  EXPECT_FALSE(metrics.generation.contains("dropped_tokens"));
  report::IterationMetrics dropped;
  const GeneratorWork begun_again{.steps = 5, .tokens = 12, .dropped_tokens = place};
  add_generation_metrics(world(), &begun_again, 4, dropped);
  EXPECT_EQ(dropped.generation.at("dropped_tokens"), n * (n + 1) / 2);
  const GeneratorWork guessing{
      .steps = 5, .tokens = 12, .proposed_tokens = 9, .accepted_tokens = 2};
  report::IterationMetrics guessed;
  add_generation_metrics(world(), &guessing, 4, guessed);
  EXPECT_EQ(guessed.generation.at("proposed_tokens"), 9 * n);
  EXPECT_EQ(guessed.generation.at("accepted_tokens"), 2 * n);
  EXPECT_DOUBLE_EQ(guessed.generation.at("occupancy"), 0.5) << "ten tokens of 20 places";
  report::IterationMetrics nothing;
  add_generation_metrics(world(), nullptr, 4, nothing);
  EXPECT_TRUE(nothing.generation.empty()) << "nobody wrote";
}

}  // namespace
}  // namespace trireme::rollout
