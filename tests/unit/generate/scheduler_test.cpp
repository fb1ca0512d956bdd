// Who begins when, without a model.
#include "generate/scheduler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace trireme::test {
namespace {

using generate::Scheduler;
using generate::Sequence;
using generate::StepPlan;

constexpr int64_t slots = 16, prompt_tokens = 20;

generate::EngineOptions options() {
  generate::EngineOptions out;
  out.max_batch = slots;
  return out;
}

// Sequences of one prompt each, or of a prompt that several have; the i-th writes 10 + 3 i tokens.
struct Writing {
  Writing(int64_t together, int64_t sequences, int64_t samples)
      : scheduler(options(), 4096, [](int32_t, int32_t) {}) {
    scheduler.begin_together(together);
    for (int64_t i = 0; i < sequences; ++i) {
      generate::Request request;
      request.id = static_cast<uint64_t>(i);
      request.prompt.assign(prompt_tokens, static_cast<int32_t>(i / samples));
      scheduler.add(std::move(request), 10'000);
    }
    while (!scheduler.idle() && steps < 10'000) step();
  }
  void step() {
    const int64_t waited = std::ssize(scheduler.queue()) - scheduler.counters().running;
    const StepPlan plan = scheduler.plan();
    const bool prompts = std::ranges::any_of(
        plan.rows, [](const auto& planned) { return !planned.sequence->decoding(); });
    const auto begun = std::ranges::count_if(
        plan.rows, [](const auto& planned) { return !planned.sequence->decoding(); });
    if (prompts) smallest_burst = std::min<int64_t>(smallest_burst, begun);
    steps_with_prompts += prompts;
    // Samples of a prompt that is computed have no reason to wait.
    const int64_t room = slots - scheduler.counters().running;
    slots_left_by_samples =
        std::max(slots_left_by_samples, waited > 0 && !plan.forked.empty() ? room : 0);
    scheduler.computed(plan, [](const Sequence&) { return nullptr; });
    std::vector<Sequence*> drawn = plan.forked;
    for (const auto& planned : plan.rows) {
      if (planned.draws) drawn.push_back(planned.sequence);
    }
    for (Sequence* s : drawn) draw(*s);
    ++steps;
  }
  void draw(Sequence& s) {
    s.tokens.push_back(1000);
    s.result.output_ids.push_back(1000);
    if (s.turn_tokens() < 10 + 3 * static_cast<int64_t>(s.result.id)) {
      scheduler.settle(s, 0, 0);
    } else {
      ++finished;
      scheduler.retire(&s);
    }
  }

  Scheduler scheduler;
  int64_t steps = 0, steps_with_prompts = 0, finished = 0, smallest_burst = slots,
          slots_left_by_samples = 0;
};

TEST(Scheduler, BeginsPromptsTogether) {
  constexpr int64_t sequences = 64;
  const Writing one(1, sequences, 1), four(4, sequences, 1);
  for (const Writing* run : {&one, &four}) EXPECT_EQ(run->finished, sequences);
  EXPECT_EQ(one.smallest_burst, 1);
  EXPECT_EQ(four.smallest_burst, 4);
  EXPECT_EQ(one.steps_with_prompts, 1 + sequences - slots) << "one ends at a time";
  EXPECT_EQ(four.steps_with_prompts, 1 + (sequences - slots) / 4);
  EXPECT_LT(four.steps, one.steps + one.steps / 10);
}

// The last ones begin, however few they are; so do all where nothing runs.
TEST(Scheduler, BeginsWhatIsLeft) {
  const Writing run(4, slots + 3, 1);
  EXPECT_EQ(run.finished, slots + 3);
  EXPECT_EQ(run.smallest_burst, 3);
  const Writing never_full(100, 2 * slots, 1);
  EXPECT_EQ(never_full.finished, 2 * slots);
  EXPECT_EQ(never_full.steps_with_prompts, 2);
}

TEST(Scheduler, SamplesOfAComputedPromptDoNotWait) {
  constexpr int64_t samples = 8, sequences = 8 * samples;
  const Writing one(1, sequences, samples), four(4, sequences, samples);
  for (const Writing* run : {&one, &four}) EXPECT_EQ(run->finished, sequences);
  EXPECT_LE(four.steps_with_prompts, one.steps_with_prompts);
  EXPECT_LT(four.slots_left_by_samples, 4);
  EXPECT_LT(four.steps, one.steps + one.steps / 10);
}

}  // namespace
}  // namespace trireme::test
