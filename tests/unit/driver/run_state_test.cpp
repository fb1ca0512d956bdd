#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "driver/resume_point.hpp"
#include "trireme/driver/run_state.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::driver {
namespace {

TEST(RunState, TextRoundTrip) {
  RunState state;
  state.iteration = 7;
  state.version = 8;
  state.training.actor_steps = 70;
  state.training.kl_coefficient = 0.1 + 0.2;
  state.metrics_cursor = int64_t{1} << 40;
  state.carried = {{uint64_t{7} << 20 | 3, 12}, {uint64_t{1} << 43, 0}};
  state.filter = {
      .share_before = 0.1, .drawn = 5, .draws = 2, .seen = 4, .informative = 1, .complaints = 3};
  state.sampler = {{100, 20}, {64, 3}};
  state.ptx_sampler = {{50}, {7}};
  state.best = {"eval_loss", 6, 1.0 / 7};
  state.outcome = {.curve = 1.0 / 3, .kl = {}, .entropy = -0.5};
  state.rewards = {0.25, 1.0 / 3};
  state.command = "ppo";
  state.deck = "[run]\ndir = \"a b\"\n";
  EXPECT_EQ(run_state_from_json(to_json(state)), state);
}

// Every field that a checkpoint has, one at a time: none is left out of the text or taken from
// another's place.
TEST(RunState, EachFieldComesBackAlone) {
  const std::vector<void (*)(RunState&)> fields{
      [](RunState& s) { s.iteration = 7; },
      [](RunState& s) { s.phase = phase::train; },
      [](RunState& s) { s.mini_batch = 5; },
      [](RunState& s) { s.version = 8; },
      [](RunState& s) { s.training.actor_steps = 70; },
      [](RunState& s) { s.training.critic_steps = 71; },
      [](RunState& s) { s.training.kl_coefficient = 0.1 + 0.2; },
      [](RunState& s) { s.schedule_steps = 1000; },
      [](RunState& s) { s.metrics_cursor = int64_t{1} << 40; },
      [](RunState& s) { s.skipped_prompts = 11; },
      [](RunState& s) { s.filter.share_before = 0.1; },
      [](RunState& s) { s.filter.drawn = 12; },
      [](RunState& s) { s.filter.draws = 13; },
      [](RunState& s) { s.filter.seen = 14; },
      [](RunState& s) { s.filter.informative = 15; },
      [](RunState& s) { s.filter.complaints = 16; },
      [](RunState& s) { s.pending_bytes = 17; },
      [](RunState& s) { s.unfinished_bytes = 18; },
      [](RunState& s) { s.dispatch_bytes = 19; },
      [](RunState& s) {
        s.carried = {{uint64_t{1} << 43, 3}};
      },
      [](RunState& s) {
        s.sampler = {{100}, {64}};
      },
      [](RunState& s) {
        s.ptx_sampler = {{50}, {7}};
      },
      [](RunState& s) { s.best.metric = "eval_loss"; },
      [](RunState& s) { s.best.iteration = 6; },
      [](RunState& s) { s.best.value = 1.0 / 7; },
      [](RunState& s) { s.outcome.curve = 1.0 / 3; },
      [](RunState& s) { s.outcome.kl = 0.25; },
      [](RunState& s) { s.outcome.entropy = -0.5; },
      [](RunState& s) { s.rewards = {0.25}; },
      [](RunState& s) { s.command = "ppo"; },
      [](RunState& s) { s.deck = "[run]\n"; },
      [](RunState& s) {
        s.inputs = {{"data.dataset", "digest"}};
      },
      [](RunState& s) { s.resumed_from = "/a/step-000001"; },
      [](RunState& s) { s.compute_type = "bf16"; },
      [](RunState& s) { s.date = "2026-03-09"; }};
  for (size_t i = 0; i < fields.size(); ++i) {
    RunState state;
    fields[i](state);
    EXPECT_NE(state, RunState{}) << i;
    EXPECT_EQ(run_state_from_json(to_json(state)), state) << i;
  }
  RunState judged;
  judged.outcome.judged = 0.5;
  EXPECT_EQ(run_state_from_json(to_json(judged)), RunState{}) << "of this iteration alone";
}

TEST(RunState, ACheckpointHasTheNumberOfTheIterationThatItLiesIn) {
  RunState state;
  state.iteration = 4;
  EXPECT_FALSE(state.inside_iteration());
  EXPECT_EQ(state.checkpoint_step(), 4);
  for (const char* inside : {phase::reward, phase::train, phase::evaluate}) {
    state.phase = inside;
    EXPECT_TRUE(state.inside_iteration());
    EXPECT_EQ(state.checkpoint_step(), 5) << inside;
  }
}

TEST(RunState, MalformedTextIsRefused) {
  const std::string whole = to_json(RunState{});
  EXPECT_THROW(run_state_from_json(whole.substr(0, whole.size() / 2)), UserError);
  EXPECT_THROW(run_state_from_json("{}"), UserError);
  EXPECT_THROW(run_state_from_json("[]"), UserError);
}

TEST(RunState, WhatIsNoNumberStaysNone) {
  RunState state;
  state.training.kl_coefficient = std::nan("");
  state.rewards = {0.5, std::nan(""), -1.5};
  const RunState back = run_state_from_json(to_json(state));
  ASSERT_EQ(back.rewards.size(), 3u);
  EXPECT_TRUE(std::isnan(back.rewards[1]));
  EXPECT_EQ(back.rewards[2], -1.5);
  EXPECT_TRUE(std::isnan(back.training.kl_coefficient));
}

TEST(RunState, APathOfAnyBytesIsKnownAgain) {
  RunState state;
  state.resumed_from = name_of_checkpoint("/scratch/m\xFCller/ckpt/./step-000002/");
  EXPECT_EQ(state.resumed_from, "/scratch/m%FCller/ckpt/step-000002");
  EXPECT_EQ(run_state_from_json(to_json(state)), state);
  EXPECT_EQ(name_of_checkpoint("/a/m\xC3\xBCller%/step-000002"), "/a/m\xC3\xBCller%/step-000002")
      << "texts stay as they are";
}

TEST(RunState, EveryTextComesBack) {
  for (const char* deck : {"", "a = \"quoted \\\\ \"\n\t# \xE7\xAF\x80", "\x01\x7f"}) {
    RunState state;
    state.deck = deck;
    state.phase = deck;
    EXPECT_EQ(run_state_from_json(to_json(state)), state);
  }
}

// A state that lacks a field or has a list in its place is malformed; only what the first
// checkpoints had not may be absent.
TEST(RunState, EveryFieldIsNeeded) {
  const auto whole = nlohmann::json::parse(to_json(RunState{}));
  for (const auto& [key, value] : whole.items()) {
    auto without = whole;
    without.erase(key);
    const bool optional = key == "inputs" || key == "unfinished_bytes" || key == "dispatch_bytes" ||
                          key == "informative_share" || key == "filter" || key == "carried" ||
                          key == "ptx_sampler" || key == "best" || key == "outcome" ||
                          key == "resumed_from" || key == "compute_type" || key == "date";
    if (optional) {
      EXPECT_EQ(run_state_from_json(without.dump()), RunState{}) << key;
    } else {
      EXPECT_THAT(
          config::error_of(ExitCode::bad_data, [&] { run_state_from_json(without.dump()); }),
          testing::HasSubstr("state of the checkpoint"))
          << key;
    }
    auto wrong = whole;
    wrong[key] = nlohmann::json::array({nlohmann::json::object()});
    EXPECT_THROW(run_state_from_json(wrong.dump()), UserError) << key;
  }
}

// A checkpoint from before there was a date renders its chats as that run did, without one.
TEST(RunState, KnowsTheDate) {
  RunState state;
  state.date = "2026-03-09";
  EXPECT_EQ(run_state_from_json(to_json(state)), state);
  auto old = nlohmann::json::parse(to_json(state));
  old.erase("date");
  EXPECT_EQ(run_state_from_json(old.dump()).date, "");
}

TEST(RunState, KnowsTheComputeType) {
  RunState state;
  state.compute_type = "bf16";
  EXPECT_EQ(run_state_from_json(to_json(state)).compute_type, "bf16");
  std::string old = to_json(state);
  const size_t at = old.find("\"compute_type\":\"bf16\",");
  ASSERT_NE(at, std::string::npos) << old;
  old.erase(at, std::string("\"compute_type\":\"bf16\",").size());
  EXPECT_EQ(run_state_from_json(old).compute_type, "");
}

}  // namespace
}  // namespace trireme::driver
