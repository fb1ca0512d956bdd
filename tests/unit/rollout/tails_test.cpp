// 10^5 episodes with long tails - of turns, of their lengths, of the environment's answers -
// through the episodes of a replica and the scheduler of an engine without a model: each is
// finished once, and slots stay in use while environments think.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <queue>
#include <unordered_map>

#include "generate/scheduler.hpp"
#include "rollout/episodes.hpp"
#include "support/source_folder.hpp"

namespace trireme::test {
namespace {

using rollout::Episodes;
using rollout::Move;

constexpr int64_t episodes = 100'000, batch = 1'000, batches_in_flight = 3, slots = 128;
constexpr int64_t limit = 512;

uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b << 32)) * 0xD6E8FEB86659FD93ull + 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 32)) * 0xBF58476D1CE4E5B9ull;
  return x ^ (x >> 29);
}

// Pareto, from `least` on, cut at `most`: a few are a hundred times as long as most.
int64_t with_tail(uint64_t random, double least, double shape, int64_t most) {
  const double uniform = (static_cast<double>(random >> 11) + 1) * 0x1p-53;
  const double value = least * std::pow(uniform, -1 / shape);
  return value > static_cast<double>(most) ? most : static_cast<int64_t>(value);
}

const text::Tokenizer& tokenizer() {
  static const auto one =
      text::Tokenizer::load(source_folder() / "tests/gold/parity/tokenizers/qwen2_nfc");
  return one;
}

data::PromptSet prompts() {
  const auto file = std::filesystem::path(testing::TempDir()) / "tails.jsonl";
  std::ofstream(file)
      << "{\"prompt\": \"one question of several tokens\"}\n{\"prompt\": \"another\"}\n";
  data::SetOptions options;
  options.files = {file};
  auto set = data::PromptSet::load(options, tokenizer());
  std::filesystem::remove(file);
  return set;
}

// Answers after a time of its own, in steps of the engine.
class SlowEnvironment : public environment::Environments {
 public:
  void reset(const environment::Reset& reset) override {
    EXPECT_TRUE(open_.emplace(reset.episode, 0).second) << "begun twice";
    answer(reset.episode, 0, false);
  }
  void step(const environment::Step& step) override {
    const auto turns = with_tail(mixed(step.episode, 7), 1, 1.2, 8);
    EXPECT_EQ(open_.at(step.episode)++, step.turn);
    answer(step.episode, step.turn + 1, step.turn + 1 >= turns);
  }
  void close(uint64_t episode) override { open_.erase(episode); }
  int64_t pending() const override { return static_cast<int64_t>(waiting_.size()); }
  std::vector<environment::Reply> poll() override {
    std::vector<environment::Reply> out;
    for (; !waiting_.empty() && waiting_.top().at <= now; waiting_.pop()) {
      const Waiting& next = waiting_.top();
      environment::Reply reply;
      reply.episode = next.episode;
      reply.turn = std::max<int64_t>(0, next.turn - 1);
      reply.done = next.done;
      if (next.turn > 0 && !next.done) reply.text = " go on";
      if (next.done) open_.erase(next.episode);
      out.push_back(std::move(reply));
    }
    return out;
  }
  size_t open() const { return open_.size(); }

  int64_t now = 0;

 private:
  struct Waiting {
    int64_t at;
    uint64_t episode;
    int64_t turn;
    bool done;
    bool operator<(const Waiting& other) const {
      return std::pair(at, episode) > std::pair(other.at, other.episode);  // the earliest on top
    }
  };
  void answer(uint64_t episode, int64_t turn, bool done) {
    const auto random = mixed(episode, 100 + static_cast<uint64_t>(turn));
    waiting_.push({now + with_tail(random, 3, 1.3, 150), episode, turn, done});
  }
  std::unordered_map<uint64_t, int64_t> open_;
  std::priority_queue<Waiting> waiting_;
};

// The engine's part, with draws by id and position: Engine::Impl::step() without a model.
class Replica {
 public:
  Replica(SlowEnvironment& environment, const data::PromptSet& set)
      : set_(set),
        episodes_(tokenizer(), end_ids_, environment, limit),
        scheduler_(options(), pages, [](int32_t, int32_t) {}) {}

  void begin(uint64_t id) {
    episodes_.begin(id, set_, static_cast<int64_t>(id % 2), mixed(id, 1), std::nullopt);
  }
  void step() {
    episodes_.poll();
    const std::vector<Move> moves = episodes_.take_moves();
    for (const Move& move : moves) carry_out(move);
    if (!moves.empty()) {  // Generator::arrange_episodes()
      std::vector<uint64_t> ids = scheduler_.queue();
      std::ranges::sort(ids);
      scheduler_.arrange(ids);
    }
    const generate::StepPlan plan = scheduler_.plan();
    scheduler_.computed(plan, [](const generate::Sequence&) { return nullptr; });
    for (const auto& planned : plan.rows) {
      if (planned.draws) draw(*planned.sequence);
    }
    ++steps;
  }
  int64_t pages_in_use() const { return scheduler_.pool().used(); }
  bool idle() const { return scheduler_.unfinished() == 0; }

  std::unordered_map<uint64_t, int64_t> finished;  // times, by id
  int64_t steps = 0, written = 0, trained_on = 0, turns = 0;

 private:
  static constexpr int64_t pages = 4096;
  static generate::EngineOptions options() {
    generate::EngineOptions out;
    out.max_batch = slots;
    out.sample_sharing = false;
    return out;
  }
  void carry_out(const Move& move) {
    if (move.kind == Move::Kind::finish) return finish(move.id);
    if (move.kind == Move::Kind::resume) return scheduler_.resume(move.id, move.tokens, {});
    generate::Request request;
    request.id = move.id;
    request.prompt = move.tokens;
    request.longest = limit;
    scheduler_.add(std::move(request), limit);
    in_engine_[move.id] = true;
  }
  void finish(uint64_t id) {
    generate::Result result;
    if (in_engine_.at(id)) result = scheduler_.finish(id);
    in_engine_.erase(id);
    const auto parts = episodes_.take(id, result);
    const Samples samples = sequence_of(std::move(result), parts, 0, false, limit);
    trained_on += std::ranges::count(samples.action_mask, 1);
    turns += std::ssize(samples.turns.front());
    ++finished[id];
  }
  void draw(generate::Sequence& s) {
    const uint64_t id = s.result.id;
    const auto turn = mixed(id, 1000 + static_cast<uint64_t>(s.request.turn_begin));
    const bool ends = s.turn_tokens() + 1 >= with_tail(turn, 4, 1.4, 100);
    const int32_t token =
        ends ? end_ids_.front() : 40 + static_cast<int32_t>(mixed(id, s.tokens.size()) % 800);
    s.tokens.push_back(token);
    s.result.output_ids.push_back(token);
    s.result.log_probs.push_back(-1);
    s.result.versions.push_back(1);
    ++written;
    if (ends) {
      const generate::WrittenTurn ended{
          id, {s.result.output_ids.end() - s.turn_tokens(), s.result.output_ids.end()}};
      scheduler_.pause(&s);
      episodes_.turn(ended);
    } else if (s.length() == limit) {
      s.result.finish_reason = FinishReason::length;
      in_engine_[id] = false;
      episodes_.last_turn(scheduler_.retire(&s));
    } else {
      scheduler_.settle(s, 0, 0);
    }
  }
  const data::PromptSet& set_;
  std::vector<int32_t> end_ids_{*tokenizer().eos_id()};
  Episodes episodes_;
  generate::Scheduler scheduler_;
  std::unordered_map<uint64_t, bool> in_engine_;
};

// Batches are learned from in their order, three in flight: the program with partial rollouts and
// train.async_depth = 2.
TEST(Tails, EpisodesAreNeitherLostNorDoubledAndSlotsStayInUse) {
  const auto set = prompts();
  SlowEnvironment environment;
  Replica replica(environment, set);
  int64_t begun = 0, learned = 0;
  const auto batch_is_done = [&] {
    for (int64_t id = learned; id < learned + batch; ++id) {
      if (!replica.finished.contains(static_cast<uint64_t>(id))) return false;
    }
    return true;
  };
  for (; learned < episodes; environment.now = replica.steps) {
    for (; begun < std::min(episodes, learned + batches_in_flight * batch); ++begun)
      replica.begin(static_cast<uint64_t>(begun));
    replica.step();
    ASSERT_LT(replica.steps, 200'000);
    if (replica.steps % 8 == 0 && batch_is_done()) learned += batch;
  }
  ASSERT_EQ(std::ssize(replica.finished), episodes);
  for (const auto& [id, times] : replica.finished) EXPECT_EQ(times, 1) << id;
  EXPECT_EQ(environment.open(), 0u);
  EXPECT_EQ(environment.pending(), 0);
  EXPECT_TRUE(replica.idle());
  EXPECT_EQ(replica.pages_in_use(), 0);
  EXPECT_EQ(replica.trained_on, replica.written) << "each sampled token, once";
  EXPECT_GT(replica.turns, 2 * episodes);
  const double occupancy =
      static_cast<double>(replica.written) / static_cast<double>(replica.steps * slots);
  RecordProperty("occupancy", std::to_string(occupancy));
  EXPECT_GE(occupancy, 0.85) << replica.steps << " steps, " << replica.written << " tokens";
}

}  // namespace
}  // namespace trireme::test
