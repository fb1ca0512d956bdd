#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "driver/resume_point.hpp"
#include "trireme/driver/progress.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::driver {
namespace {

TEST(Progress, TextRoundTrip) {
  Progress progress;
  progress.iteration = 7;
  progress.version = 8;
  progress.training.actor_steps = 70;
  progress.training.kl_coefficient = 0.1 + 0.2;
  progress.metrics_cursor = int64_t{1} << 40;
  progress.carried = {{uint64_t{7} << 20 | 3, 12}, {uint64_t{1} << 43, 0}};
  progress.filter = {
      .share_before = 0.1, .drawn = 5, .draws = 2, .seen = 4, .informative = 1, .complaints = 3};
  progress.sampler = {{100, 20}, {64, 3}};
  progress.ptx_sampler = {{50}, {7}};
  progress.best = {"eval_loss", 6, 1.0 / 7};
  progress.rewards = {0.25, 1.0 / 3};
  progress.command = "ppo";
  progress.deck = "[run]\ndir = \"a b\"\n";
  EXPECT_EQ(progress_from_json(to_json(progress)), progress);
}

TEST(Progress, MalformedTextIsRefused) {
  const std::string whole = to_json(Progress{});
  EXPECT_THROW(progress_from_json(whole.substr(0, whole.size() / 2)), UserError);
  EXPECT_THROW(progress_from_json("{}"), UserError);
  EXPECT_THROW(progress_from_json("[]"), UserError);
}

TEST(Progress, WhatIsNoNumberStaysNone) {
  Progress progress;
  progress.training.kl_coefficient = std::nan("");
  progress.rewards = {0.5, std::nan(""), -1.5};
  const Progress back = progress_from_json(to_json(progress));
  ASSERT_EQ(back.rewards.size(), 3u);
  EXPECT_TRUE(std::isnan(back.rewards[1]));
  EXPECT_EQ(back.rewards[2], -1.5);
  EXPECT_TRUE(std::isnan(back.training.kl_coefficient));
}

TEST(Progress, APathOfAnyBytesIsKnownAgain) {
  Progress progress;
  progress.resumed_from = name_of_checkpoint("/scratch/m\xFCller/ckpt/./step-000002/");
  EXPECT_EQ(progress.resumed_from, "/scratch/m%FCller/ckpt/step-000002");
  EXPECT_EQ(progress_from_json(to_json(progress)), progress);
  EXPECT_EQ(name_of_checkpoint("/a/m\xC3\xBCller%/step-000002"), "/a/m\xC3\xBCller%/step-000002")
      << "texts stay as they are";
}

TEST(Progress, EveryTextComesBack) {
  for (const char* deck : {"", "a = \"quoted \\\\ \"\n\t# \xE7\xAF\x80", "\x01\x7f"}) {
    Progress progress;
    progress.deck = deck;
    progress.phase = deck;
    EXPECT_EQ(progress_from_json(to_json(progress)), progress);
  }
}

// A state that lacks a field or has a list in its place is malformed; only what the first
// checkpoints had not may be absent.
TEST(Progress, EveryFieldIsNeeded) {
  const auto whole = nlohmann::json::parse(to_json(Progress{}));
  for (const auto& [key, value] : whole.items()) {
    auto without = whole;
    without.erase(key);
    const bool optional = key == "inputs" || key == "unfinished_bytes" || key == "dispatch_bytes" ||
                          key == "informative_share" || key == "filter" || key == "carried" ||
                          key == "ptx_sampler" || key == "best" || key == "resumed_from" ||
                          key == "compute_type" || key == "date";
    if (optional) {
      EXPECT_EQ(progress_from_json(without.dump()), Progress{}) << key;
    } else {
      EXPECT_THAT(config::error_of(ExitCode::bad_data, [&] { progress_from_json(without.dump()); }),
                  testing::HasSubstr("state of the checkpoint"))
          << key;
    }
    auto wrong = whole;
    wrong[key] = nlohmann::json::array({nlohmann::json::object()});
    EXPECT_THROW(progress_from_json(wrong.dump()), UserError) << key;
  }
}

// A checkpoint from before there was a date renders its chats as that run did, without one.
TEST(Progress, KnowsTheDate) {
  Progress progress;
  progress.date = "2026-03-09";
  EXPECT_EQ(progress_from_json(to_json(progress)), progress);
  auto old = nlohmann::json::parse(to_json(progress));
  old.erase("date");
  EXPECT_EQ(progress_from_json(old.dump()).date, "");
}

TEST(Progress, KnowsTheComputeType) {
  Progress progress;
  progress.compute_type = "bf16";
  EXPECT_EQ(progress_from_json(to_json(progress)).compute_type, "bf16");
  std::string old = to_json(progress);
  const size_t at = old.find("\"compute_type\":\"bf16\",");
  ASSERT_NE(at, std::string::npos) << old;
  old.erase(at, std::string("\"compute_type\":\"bf16\",").size());
  EXPECT_EQ(progress_from_json(old).compute_type, "");
}

}  // namespace
}  // namespace trireme::driver
