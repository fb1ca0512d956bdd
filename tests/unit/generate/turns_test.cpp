// Sequences in turns: whenever they are paused and resumed and whatever else the engine does
// meanwhile, they have the bits of one request per turn, whose prompt is all that came before it.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "tiny_model.hpp"

namespace trireme::test {
namespace {

using config::DType;
using generate::Engine;
using generate::EngineOptions;
using generate::Request;
using generate::Result;
using generate::WrittenTurn;

constexpr auto MiB = int64_t{1} << 20;
constexpr int turns = 3;
constexpr uint64_t episodes = 9;

EngineOptions small_options() {
  EngineOptions o;
  o.kv_bytes = 8 * MiB;
  o.max_batch = 4;
  o.threads = 1;
  return o;
}

std::vector<int32_t> observation(uint64_t id, int turn) {
  return tiny_prompt(1 + static_cast<int64_t>(id * 7 % 40),
                     1000 + id * 10 + static_cast<uint64_t>(turn));
}

// Stops at every fifth token that it sees: what it saw in an earlier turn would show.
std::function<bool(int32_t)> fifth_token() {
  return [seen = std::make_shared<int>(0)](int32_t) { return ++*seen % 5 == 0; };
}

// Pairs of episodes share their prompts.
Request episode(uint64_t id) {
  Request r;
  r.id = id;
  r.prompt = tiny_prompt(20 + 9 * static_cast<int64_t>(id / 2), id / 2);
  r.sampling.temperature = id % 4 == 0 ? 0 : 1;
  r.sampling.top_p = id % 3 == 0 ? 0.9 : 1;
  r.sampling.repetition_penalty = id % 4 == 1 ? 1.3 : 1;
  r.sampling.max_new_tokens = 10;
  r.sampling.min_new_tokens = id % 3 == 1 ? 2 : 0;
  r.sampling.seed = 5;
  for (int32_t token = 0; token < 500; token += id % 2 == 0 ? 4 : 9)
    r.sampling.stop_ids.push_back(token);
  if (id % 3 == 2) r.stop = fifth_token();
  r.longest = 300;
  return r;
}

std::function<bool(int32_t)> stop_of(uint64_t id) {
  return id % 3 == 2 ? fifth_token() : std::function<bool(int32_t)>{};
}

// One request a turn.
Results turn_by_turn(const model::ModelSpec& spec, const generate::GeneratorWeights& weights) {
  Results out;
  for (uint64_t id = 0; id < episodes; ++id) {
    Result& all = out[id];
    all.id = id;
    Request request = episode(id);
    request.longest = 0;
    for (int turn = 0; turn < turns; ++turn) {
      Engine engine(spec, weights, small_options());
      request.stop = stop_of(id);
      const Result one = run_all(engine, {request}).at(id);
      const auto append = [](auto& to, const auto& from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      append(all.output_ids, one.output_ids);
      append(all.log_probs, one.log_probs);
      append(all.sample_log_probs, one.sample_log_probs);
      append(all.versions, one.versions);
      all.finish_reason = one.finish_reason;
      if (one.finish_reason == FinishReason::length || turn + 1 == turns) break;
      const auto seen = observation(id, turn);
      append(request.prompt, one.output_ids);
      append(request.prompt, seen);
      append(all.output_ids, seen);
      all.log_probs.resize(all.output_ids.size());
      if (!one.sample_log_probs.empty()) all.sample_log_probs.resize(all.output_ids.size());
      all.versions.resize(all.output_ids.size(), -1);
    }
  }
  return out;
}

// Answers each turn `delay` steps after it was written, or as soon as nothing else is left to do.
class Play {
 public:
  Play(Engine& engine, int delay) : engine_(engine), delay_(delay) {}

  void step() {
    ++now_;
    std::vector<Waiting> later;
    for (Waiting& one : std::exchange(waiting_, {})) {
      if (now_ < one.due && !engine_.idle()) later.push_back(std::move(one));
      else answer(one.turn);
    }
    waiting_.insert(waiting_.begin(), later.begin(), later.end());
    auto out = engine_.step();
    for (Result& result : out.finished) keep(std::move(result));
    for (WrittenTurn& written : out.paused) waiting_.push_back({std::move(written), now_ + delay_});
  }
  void run() {
    while (engine_.unfinished() > 0) step();
  }
  Results results;
  std::map<uint64_t, int> turn;  // by episode

 private:
  struct Waiting {
    WrittenTurn turn;
    int due;
  };
  void keep(Result result) { results.emplace(result.id, std::move(result)); }
  void answer(const WrittenTurn& written) {
    const uint64_t id = written.request;
    const auto standing = engine_.standing();
    const auto& so_far = std::ranges::find(standing, id, &Result::id)->output_ids;
    EXPECT_TRUE(std::equal(written.ids.rbegin(), written.ids.rend(), so_far.rbegin()));
    const int ended = turn[id]++;
    if (ended + 1 == turns) return keep(engine_.finish(id));
    engine_.resume(id, observation(id, ended), stop_of(id));
  }
  Engine& engine_;
  int delay_, now_ = 0;
  std::vector<Waiting> waiting_;
};

class Turns : public testing::TestWithParam<DType> {};

TEST_P(Turns, HaveTheBitsOfOneRequestEach) {
  const auto spec = tiny_spec();
  const auto weights = tiny_weights(spec, GetParam());
  const Results want = turn_by_turn(spec, weights);
  int64_t cut = 0, long_ones = 0;
  for (const auto& [id, result] : want) {
    cut += result.finish_reason == FinishReason::length;
    long_ones += std::ranges::count(result.versions, -1) > 0;
  }
  ASSERT_GT(long_ones, 5) << "or this says nothing";
  ASSERT_GT(cut, 0);
  const auto check = [&](const char* what, int delay, const EngineOptions& options) {
    SCOPED_TRACE(testing::Message() << what << ", delay " << delay);
    Engine engine(spec, weights, options);
    for (uint64_t id = 0; id < episodes; ++id) engine.submit(episode(id));
    Play play(engine, delay);
    play.run();
    expect_same(want, play.results);
    EXPECT_EQ(engine.counters().pages_used, 0);
    EXPECT_EQ(engine.counters().finished, static_cast<int64_t>(episodes));
    EXPECT_TRUE(engine.idle());
    return engine.counters();
  };
  for (const int delay : {0, 1, 6, 1000}) check("as it is", delay, small_options());
  EngineOptions o = small_options();
  o.max_batch = 1;
  check("one slot", 2, o);
  o = small_options();
  o.prefill_chunk_tokens = 7;
  check("small chunks", 2, o);
  o = small_options();
  o.speculation_tokens = 4;
  check("guesses", 2, o);
  o = small_options();
  o.prefix_sharing = false;
  const int64_t computed_again = check("no pages are found again", 2, o).prefill_tokens;
  o.prefix_sharing = true;
  const int64_t found = check("pages are found again", 2, o).prefill_tokens;
  EXPECT_LT(found, computed_again);
  // Room for one sequence: others take the pages of those that are paused.
  Engine probe(spec, weights, small_options());
  o = small_options();
  o.kv_bytes = 19 * probe.counters().page_bytes;
  const auto counters = check("few pages", 3, o);
  EXPECT_GT(counters.prefill_tokens, found);
}

INSTANTIATE_TEST_SUITE_P(Types, Turns, testing::Values(DType::f32, DType::bf16));

// What a checkpoint and a smaller or larger rollout do with sequences in turns.
TEST(Turns, GoOnInAnotherEngineAndAreCancelled) {
  const auto spec = tiny_spec();
  const auto weights = tiny_weights(spec, DType::f32);
  const Results want = turn_by_turn(spec, weights);
  for (const int steps : {1, 6, 13, 25}) {
    SCOPED_TRACE(testing::Message() << steps << " steps");
    Engine first(spec, weights, small_options());
    for (uint64_t id = 0; id < episodes; ++id) first.submit(episode(id));
    Play before(first, 2);
    for (int step = 0; step < steps; ++step) before.step();
    std::vector<uint64_t> queue = first.queue();
    EXPECT_EQ(std::ssize(queue), first.unfinished());
    EXPECT_EQ(first.standing().size(), queue.size());
    std::vector<uint64_t> longer = first.longer(8), expected;
    for (const Result& result : first.standing())
      if (std::ssize(result.output_ids) >= 8) expected.push_back(result.id);
    std::ranges::sort(longer);
    EXPECT_EQ(longer, expected);
    // Sequences that are inside a turn continue; those that are paused are cancelled and begin
    // again.
    Engine second(spec, weights, small_options());
    Play after(second, 1);
    for (Result& result : first.standing()) {
      Request request = episode(result.id);
      const auto last = std::find(result.versions.rbegin(), result.versions.rend(), -1);
      const auto turn_begin = last.base() - result.versions.begin();
      const bool ended = turn_begin < std::ssize(result.output_ids) &&
                         result.finish_reason != FinishReason::length;
      if (!ended) {
        after.turn[result.id] = before.turn[result.id];
        request.begun = std::move(result);
        request.turn_begin = turn_begin;
      }
      second.submit(std::move(request));
    }
    for (const auto& [id, result] : before.results) after.results[id] = result;
    int64_t tokens = 0;
    for (const Result& result : first.standing()) tokens += std::ssize(result.output_ids);
    EXPECT_EQ(first.cancel(queue), tokens);
    EXPECT_EQ(first.unfinished(), 0);
    EXPECT_EQ(first.counters().pages_used, 0);
    after.run();
    expect_same(want, after.results);
  }
}

// New weights while an episode waits: its next turn is computed with the new ones.
TEST(Turns, AreWrittenWithTheWeightsOfTheirTime) {
  const auto spec = tiny_spec();
  auto weights = tiny_weights(spec, DType::f32);
  const auto other = tiny_weights(spec, DType::f32, 0, 1, 2);
  Engine engine(spec, weights, small_options());
  engine.submit(episode(0));
  std::vector<WrittenTurn> paused;
  while (paused.empty()) paused = engine.step().paused;
  std::vector<int32_t> ids = episode(0).prompt;
  const auto append = [&](const auto& more) { ids.insert(ids.end(), more.begin(), more.end()); };
  append(paused.front().ids);
  append(observation(0, 0));
  std::vector<const std::byte*> pointers;
  for (size_t p = 0; p < spec.parameters.size(); ++p) pointers.push_back(other.data(p));
  weights.alias(pointers);
  weights.set_version(1);
  engine.resume(0, observation(0, 0));
  paused.clear();
  std::vector<Result> finished;
  while (paused.empty() && finished.empty()) {
    auto out = engine.step();
    paused = std::move(out.paused);
    finished = std::move(out.finished);
  }
  const Result got = finished.empty() ? engine.finish(0) : finished.front();
  Engine fresh(spec, other, small_options());
  Request request = episode(0);
  request.longest = 0;
  request.prompt = ids;
  const Result want = run_all(fresh, {request}).at(0);
  const auto tokens = std::ssize(want.output_ids);
  EXPECT_TRUE(
      std::equal(want.output_ids.begin(), want.output_ids.end(), got.output_ids.end() - tokens));
  EXPECT_TRUE(
      std::equal(want.log_probs.begin(), want.log_probs.end(), got.log_probs.end() - tokens));
  EXPECT_EQ(got.versions.back(), 1);
  EXPECT_EQ(got.versions.front(), 0);
}

}  // namespace
}  // namespace trireme::test
