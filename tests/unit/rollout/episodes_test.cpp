// Random episodes with an environment in memory and a policy that draws at random: what is trained
// on is what was sampled and nothing else, and a start from any point gives the same sequences.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "rollout/episodes.hpp"
#include "support/source_folder.hpp"

namespace trireme::test {
namespace {

using environment::Reply;
using rollout::Episodes;
using rollout::Move;
using text::Tokenizer;

constexpr int64_t limit = 160;
constexpr int64_t longest_turn = 9;

uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t x =
      (a + 0x9E3779B97F4A7C15ull) * 0xD6E8FEB86659FD93ull ^ (b + 1) * 0xBF58476D1CE4E5B9ull;
  x ^= x >> 29;
  return x * 0x94D049BB133111EBull >> 11;
}

// Answers by the seed and the turns alone, in an order of its own.
class Fake : public environment::Environments {
 public:
  explicit Fake(uint64_t salt) : random_(salt) {}

  void reset(const environment::Reset& reset) override {
    EXPECT_TRUE(open_.emplace(reset.episode, Told{mixed(reset.seed, nonsense), 0}).second);
    Reply reply;
    reply.episode = reset.episode;
    if (reset.seed % 3 == 1) reply.messages = {message("user", "go")};
    if (breaks && reset.seed % 11 == 3) return end(reply, "no");
    answers_.push_back(std::move(reply));
  }
  void step(const environment::Step& step) override {
    Told& told = open_.at(step.episode);
    EXPECT_EQ(step.turn, told.turns++);
    told.state = mixed(told.state, std::hash<std::string>{}(step.text));
    Reply reply;
    reply.episode = step.episode;
    reply.turn = step.turn;
    reply.reward = static_cast<double>(told.state % 7) / 2 - 1;
    reply.metrics["calls"] = 1;
    turns_told.push_back(step.text);
    repeated_[step.episode] = step.repeated;
    if (breaks && told.state % 13 == 0) return end(reply, "it died");
    if (told.state % 4 == 0 || told.turns == 6) {
      reply.truncated = told.turns == 6;
      return end(reply, "");
    }
    const std::string words[] = {"one", "two three", "<|im_end|> four", "5 6 7 8 9 10 11 12 13"};
    if (told.state % 5 == 0) reply.text = words[told.state % 3];
    else reply.messages = {message("user", words[told.state % 4])};
    answers_.push_back(std::move(reply));
  }
  void close(uint64_t episode) override {
    EXPECT_EQ(open_.erase(episode), 1u);
    std::erase_if(answers_, [episode](const Reply& reply) { return reply.episode == episode; });
  }
  std::vector<Reply> poll() override {
    std::shuffle(answers_.begin(), answers_.end(), random_);
    const auto some = answers_.size() - answers_.size() / 3;
    std::vector<Reply> out(answers_.begin(), answers_.begin() + static_cast<std::ptrdiff_t>(some));
    for (const Reply& reply : out) {
      if (reply.done) open_.erase(reply.episode);
      answered_turns += reply.turn >= 0 && !repeated_[reply.episode];
    }
    answers_.erase(answers_.begin(), answers_.begin() + static_cast<std::ptrdiff_t>(some));
    return out;
  }
  int64_t pending() const override { return std::ssize(answers_); }

  bool breaks = true;
  uint64_t nonsense = 0;  // another one: it answers otherwise
  std::vector<std::string> turns_told;
  int64_t answered_turns = 0;  // but those that an earlier run had the answers to
  size_t open_episodes() const { return open_.size(); }

 private:
  struct Told {
    uint64_t state;
    int64_t turns;
  };
  static text::Message message(const std::string& role, const std::string& content) {
    return {.role = role, .content = content, .extra = {}};
  }
  void end(Reply& reply, const std::string& error) {
    reply.done = true;
    reply.error = error;
    answers_.push_back(reply);
  }
  std::mt19937_64 random_;
  std::map<uint64_t, Told> open_;
  std::map<uint64_t, bool> repeated_;  // the last turn of an episode
  std::vector<Reply> answers_;
};

const Tokenizer& tokenizer() {
  static const Tokenizer one =
      Tokenizer::load(source_folder() / "tests/gold/parity/tokenizers/qwen2_nfc");
  return one;
}
const std::vector<int32_t>& end_ids() {
  static const std::vector<int32_t> ids(tokenizer().eos_ids().begin(), tokenizer().eos_ids().end());
  return ids;
}

data::PromptSet prompts() {
  const auto file = std::filesystem::path(testing::TempDir()) /
                    ("episodes_" + std::to_string(std::random_device{}()) + ".jsonl");
  {
    std::ofstream out(file);
    for (int i = 0; i < 5; ++i)
      out << R"({"messages": [{"role": "user", "content": "question )" << i << R"("}]})"
          << "\n";
  }
  data::SetOptions options;
  options.files = {file};
  auto set = data::PromptSet::load(options, tokenizer());
  std::filesystem::remove(file);
  return set;
}

bool has_actions(const Samples& samples) { return std::ranges::count(samples.action_mask, 1) > 0; }

// An engine whose next token is a function of the id and the position.
class Policy {
 public:
  Policy(Fake& environment, const data::PromptSet& set)
      : set_(set),
        environment_(environment),
        episodes_(tokenizer(), end_ids(), environment, limit) {}

  void begin(uint64_t id, std::optional<Samples> recorded = std::nullopt) {
    episodes_.begin(id, set_, row_of(id), mixed(id / 4, 1), recorded);
    if (recorded && has_actions(*recorded)) recorded_[id] = std::move(*recorded);
    unfinished_.insert(id);
  }
  void round() {
    episodes_.poll();
    for (const Move& move : episodes_.take_moves()) carry_out(move);
    std::vector<uint64_t> running;
    for (const auto& [id, one] : engine_)
      if (one.runs) running.push_back(id);
    for (const uint64_t id : running) write(id);
  }
  bool done() const { return unfinished_.empty(); }
  // Of all that is unfinished, as a checkpoint has it.
  std::map<uint64_t, Samples> standing() const {
    std::map<uint64_t, Samples> out;
    for (const uint64_t id : unfinished_) {
      generate::Result result;
      if (const auto one = engine_.find(id); one != engine_.end()) result = one->second.result;
      const auto parts = episodes_.standing(id, result);
      result.finish_reason = FinishReason::unfinished;
      out[id] = Samples::from_bytes(
          sequence_of(std::move(result), parts, row_of(id), false, limit).to_bytes());
    }
    return out;
  }

  std::map<uint64_t, Samples> finished;
  std::map<uint64_t, std::vector<std::vector<int32_t>>> sampled;  // turns, since the start
  Episodes& episodes() { return episodes_; }

 private:
  struct Running {
    std::vector<int32_t> prompt;
    generate::Result result;
    size_t turn_begin = 0;
    bool runs = true;
  };
  int64_t row_of(uint64_t id) const { return static_cast<int64_t>(id % 5); }
  void carry_out(const Move& move) {
    if (move.kind == Move::Kind::again) {
      recorded_.erase(move.id);
      sampled[move.id].clear();
      return;
    }
    if (move.kind == Move::Kind::finish) return finish(move.id);
    Running& one = engine_[move.id];
    one.result.id = move.id;
    one.runs = true;
    if (move.kind == Move::Kind::submit) {
      one.prompt = move.tokens;
      return;
    }
    if (const auto old = recorded_.find(move.id); old != recorded_.end()) {
      const Samples& samples = old->second;
      one.prompt.assign(samples.ids.begin(), samples.ids.begin() + samples.prompt_len.front());
      one.result = rollout::result_of(samples, 0);
      recorded_.erase(old);
    }
    if (move.kind == Move::Kind::resume) append(one, move.tokens);
    const auto observed =
        std::find(one.result.versions.rbegin(), one.result.versions.rend(), -1).base();
    one.turn_begin = static_cast<size_t>(observed - one.result.versions.begin());
  }
  static void append(Running& one, const std::vector<int32_t>& observed) {
    auto& result = one.result;
    result.output_ids.insert(result.output_ids.end(), observed.begin(), observed.end());
    result.log_probs.resize(result.output_ids.size());
    result.versions.resize(result.output_ids.size(), -1);
  }
  void write(uint64_t id) {
    Running& one = engine_.at(id);
    auto& result = one.result;
    const uint64_t drawn = mixed(id, one.prompt.size() + result.output_ids.size());
    const bool ends = drawn % 6 == 0;
    result.output_ids.push_back(ends ? end_ids().front() : static_cast<int32_t>(40 + drawn % 800));
    result.log_probs.push_back(-1 - static_cast<float>(drawn % 100));
    result.versions.push_back(3);
    const auto written = result.output_ids.size() - one.turn_begin;
    const auto length = one.prompt.size() + result.output_ids.size();
    if (!ends && written < longest_turn && length < limit) return;
    sampled[id].emplace_back(result.output_ids.end() - static_cast<std::ptrdiff_t>(written),
                             result.output_ids.end());
    one.runs = false;
    if (ends) {
      episodes_.turn({id, sampled[id].back(), FinishReason::stop});
    } else {
      episodes_.last_turn(std::move(result));
      engine_.erase(id);
    }
  }
  void finish(uint64_t id) {
    generate::Result result;
    if (auto one = engine_.extract(id)) result = std::move(one.mapped().result);
    const auto parts = episodes_.take(id, result);
    finished[id] = sequence_of(std::move(result), parts, row_of(id), false, limit);
    unfinished_.erase(id);
  }
  const data::PromptSet& set_;
  Fake& environment_;
  Episodes episodes_;
  std::map<uint64_t, Running> engine_;
  std::map<uint64_t, Samples> recorded_;
  std::set<uint64_t> unfinished_;
};

constexpr uint64_t count = 400;

TEST(Episodes, TrainOnWhatWasSampledAndNothingElse) {
  const auto set = prompts();
  Fake fake(1);
  Policy policy(fake, set);
  for (uint64_t id = 0; id < count; ++id) policy.begin(id);
  for (int round = 0; !policy.done(); ++round) {
    ASSERT_LT(round, 10000);
    policy.round();
  }
  EXPECT_EQ(fake.open_episodes(), 0u) << "each ended or was closed";
  ASSERT_EQ(policy.finished.size(), count);
  std::map<FinishReason, int> reasons;
  int64_t turns = 0;
  for (const auto& [id, samples] : policy.finished) {
    samples.check();
    ++reasons[samples.finish_reason.front()];
    std::vector<int32_t> actions, sampled;
    for (size_t t = 0; t < samples.ids.size(); ++t) {
      EXPECT_EQ(samples.action_mask[t] != 0, samples.version[t] == 3);
      EXPECT_EQ(samples.action_mask[t] != 0, samples.log_probs[t] != 0);
      if (samples.action_mask[t]) actions.push_back(samples.ids[t]);
    }
    for (const auto& turn : policy.sampled[id])
      sampled.insert(sampled.end(), turn.begin(), turn.end());
    EXPECT_EQ(actions, sampled);
    EXPECT_EQ(samples.turns.front().size(), policy.sampled[id].size());
    EXPECT_LE(samples.tokens(), limit);
    turns += std::ssize(samples.turns.front());
    if (samples.turns.front().empty()) continue;
    EXPECT_EQ(samples.episode_metrics.at("calls").front(),
              static_cast<float>(samples.turns.front().size()));
  }
  EXPECT_EQ(turns, std::ssize(fake.turns_told));
  for (const auto reason : {FinishReason::stop, FinishReason::length, FinishReason::broken})
    EXPECT_GT(reasons[reason], 10) << to_string(reason);
}

// Stored after any number of rounds and taken up by a program with another environment process.
TEST(Episodes, ContinueFromACheckpointAsIfNothingHadHappened) {
  const auto set = prompts();
  Fake undisturbed(1);
  Policy whole(undisturbed, set);
  for (uint64_t id = 0; id < count; ++id) whole.begin(id);
  while (!whole.done()) whole.round();
  for (const int rounds : {0, 1, 4, 11, 30, 70}) {
    SCOPED_TRACE(testing::Message() << rounds << " rounds");
    Fake fake(2);
    Policy first(fake, set);
    for (uint64_t id = 0; id < count; ++id) first.begin(id);
    for (int round = 0; round < rounds; ++round) first.round();
    auto stored = first.standing();
    Fake other(3);
    Policy second(other, set);
    for (auto& [id, samples] : stored) second.begin(id, samples);
    // A checkpoint before the environment has answered again has the same.
    EXPECT_EQ(second.standing().size(), stored.size());
    for (const auto& [id, samples] : second.standing()) {
      if (!has_actions(samples)) continue;
      EXPECT_EQ(samples.to_bytes(), stored[id].to_bytes()) << id;
    }
    while (!second.done()) second.round();
    EXPECT_EQ(fake.answered_turns + other.answered_turns, undisturbed.answered_turns)
        << "an answer counts once";
    second.finished.merge(first.finished);
    ASSERT_EQ(second.finished.size(), count);
    for (const auto& [id, samples] : whole.finished)
      EXPECT_EQ(second.finished[id].to_bytes(), samples.to_bytes()) << id;
    EXPECT_EQ(second.episodes().take_counters().begun_again, 0);
  }
}

// An environment that answers otherwise than before: those episodes begin again and are whole.
TEST(Episodes, BeginAgainWhereTheEnvironmentAnswersOtherwise) {
  const auto set = prompts();
  Fake fake(2);
  fake.breaks = false;
  Policy first(fake, set);
  for (uint64_t id = 0; id < count; ++id) first.begin(id);
  for (int round = 0; round < 25; ++round) first.round();
  int64_t answered = 0;
  for (const auto& [id, samples] : first.standing())
    answered +=
        !samples.turns.front().empty() && samples.turns.front().front().end < samples.tokens();
  ASSERT_GT(answered, 20);
  Fake other(3), again(4);
  other.breaks = again.breaks = false;
  other.nonsense = again.nonsense = 1;
  Policy second(other, set), fresh(again, set);
  for (auto& [id, samples] : first.standing()) {
    second.begin(id, samples);
    fresh.begin(id);
  }
  while (!second.done()) second.round();
  while (!fresh.done()) fresh.round();
  const int64_t begun_again = second.episodes().take_counters().begun_again;
  EXPECT_GT(begun_again, answered / 2);
  EXPECT_LE(begun_again, answered);
  int64_t equal = 0;
  for (const auto& [id, samples] : fresh.finished)
    equal += second.finished.at(id).to_bytes() == samples.to_bytes();
  EXPECT_GE(equal, begun_again);
}

// Over-sampling leaves episodes at any point; what comes for them later has no effect.
TEST(Episodes, AreLeftAtAnyPoint) {
  const auto set = prompts();
  Fake fake(5);
  Policy policy(fake, set);
  for (uint64_t id = 0; id < 60; ++id) policy.begin(id);
  for (int round = 0; round < 12; ++round) policy.round();
  const size_t open = fake.open_episodes();
  ASSERT_GT(open, 5u);
  const auto standing = policy.standing();
  for (const auto& [id, samples] : standing) {
    (void)samples;
    policy.episodes().close(id);
  }
  EXPECT_EQ(fake.open_episodes(), 0u);
  EXPECT_EQ(policy.episodes().poll(), 0);
  EXPECT_TRUE(policy.episodes().take_moves().empty());
}

}  // namespace
}  // namespace trireme::test
