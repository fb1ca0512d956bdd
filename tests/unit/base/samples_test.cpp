#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "trireme/base/error.hpp"
#include "trireme/base/samples.hpp"

namespace trireme {
namespace {

Samples some(int64_t count) {
  Samples samples;
  for (int64_t i = 0; i < count; ++i) {
    samples.id.push_back(request_id(3, (count - i) % 7, i));
    samples.prompt_row.push_back(10 * i);
    samples.prompt_len.push_back(static_cast<int32_t>(i));
    samples.finish_reason.push_back(i % 2 ? FinishReason::stop : FinishReason::length);
    for (int64_t t = 0; t < 2 * i; ++t) {
      samples.ids.push_back(static_cast<int32_t>(100 * i + t));
      samples.action_mask.push_back(t >= i);
      samples.log_probs.push_back(-0.5f * static_cast<float>(t));
      samples.version.push_back(t >= i ? 4 : -1);
      samples.sample_log_probs.push_back(-0.25f * static_cast<float>(t));
    }
    samples.cu_seqlens.push_back(static_cast<int64_t>(samples.ids.size()));
  }
  samples.reward.assign(static_cast<size_t>(count), 1.5f);
  samples.reward_parts.assign(2, std::vector<float>(static_cast<size_t>(count), 0.25f));
  samples.reward_metrics["judge/format"].assign(static_cast<size_t>(count), 1);
  samples.reward_metrics["judge/right"].assign(static_cast<size_t>(count), 0.5f);
  return samples;
}

TEST(Samples, BytesRoundTrip) {
  for (int64_t count : {0, 1, 9}) {
    const auto samples = some(count);
    samples.check();
    EXPECT_EQ(Samples::from_bytes(samples.to_bytes()), samples);
  }
}

// With and without turns; a rank whose samples have none, and a damaged form.
TEST(Samples, JudgementsGoWithTheirSequences) {
  Samples samples = some(3);
  samples.judgements["strict"] = {R"({"question": "a"})", "", R"({"question": "c"})"};
  samples.check();
  const std::string bytes = samples.to_bytes();
  EXPECT_EQ(bytes.substr(0, 8), "TSAMPL05");
  EXPECT_EQ(Samples::from_bytes(bytes), samples);
  Samples all = some(2);
  all.append(samples, 2);
  all.append(some(1), 0);
  all.check();
  EXPECT_EQ(Samples::from_bytes(all.to_bytes()), all);
  EXPECT_EQ(all.judgements.at("strict"),
            (std::vector<std::string>{"", "", R"({"question": "c"})", ""}));
  EXPECT_EQ(all.select(std::vector<int64_t>{2}).judgements.at("strict").front(),
            R"({"question": "c"})");
  EXPECT_TRUE(all.unscored().judgements.empty());
  std::string without = some(3).to_bytes();
  without.replace(0, 8, "TSAMPL05");
  EXPECT_THROW(Samples::from_bytes(without), UserError);
}

// Sources of other ranks, and other answers, may say other things.
TEST(Samples, ASequenceWithoutAMetricHasNaN) {
  Samples all = some(2);
  Samples other = some(3);
  other.reward_metrics.erase("judge/right");
  other.reward_metrics["critic/length"] = {7, 8, 9};
  all.append(other, 2);
  all.append(some(2), 0);
  all.check();
  const auto& length = all.reward_metrics.at("critic/length");
  const auto& right = all.reward_metrics.at("judge/right");
  ASSERT_EQ(length.size(), 4u);
  EXPECT_TRUE(std::isnan(length[0]) && std::isnan(length[1]) && std::isnan(length[3]));
  EXPECT_EQ(length[2], 9);
  EXPECT_TRUE(std::isnan(right[2]));
  EXPECT_EQ(right[1], 0.5f);
  EXPECT_EQ(right[3], 0.5f);
  EXPECT_EQ(all.reward_metrics.at("judge/format"), std::vector<float>(4, 1));
  EXPECT_TRUE(std::isnan(Samples::from_bytes(all.to_bytes()).reward_metrics["judge/right"][2]));
  EXPECT_TRUE(all.unscored().reward_metrics.empty());
}

// As in checkpoints of earlier versions, whose digests of data sets are those of these bytes.
TEST(Samples, BytesWithoutMetricsAreThoseOfEarlierVersions) {
  Samples samples = some(3);
  ASSERT_FALSE(samples.reward_metrics.empty());
  EXPECT_EQ(samples.to_bytes().substr(0, 8), "TSAMPL03");
  samples.reward_metrics.clear();
  std::string bytes = samples.to_bytes();
  EXPECT_EQ(bytes.substr(0, 8), "TSAMPL02");
  EXPECT_EQ(Samples::from_bytes(bytes), samples);
  EXPECT_THROW(Samples::from_bytes(bytes + std::string(8, '\0')), UserError);
  bytes[7] = '3';
  EXPECT_THROW(Samples::from_bytes(bytes + std::string(8, '\0')), UserError) << "two forms of one";
}

// Episodes beside sequences of a run that had no environment yet.
TEST(Samples, TurnsAndTheirMetricsStayWithTheirSequence) {
  SequenceRecord record{
      .id = 7, .ids = {1, 2, 3, 4, 5, 6, 7}, .action_ranges = {{2, 4}, {5, 6}, {6, 7}}};
  const std::vector<Turn> two{{4, 0.5f}, {6, -1, FinishReason::stop_string}};
  record.turns = two;  // the third turn has not ended
  Samples samples;
  samples.add(record, 5);
  samples.episode_metrics["calls"] = {2};
  record.turns = std::vector<Turn>{};
  samples.add(record);
  samples.check();
  EXPECT_EQ(samples.turns, (std::vector<std::vector<Turn>>{two, {}}));
  EXPECT_EQ(samples.action_mask, (std::vector<uint8_t>{0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 1, 1}));
  const std::string bytes = samples.to_bytes();
  EXPECT_EQ(bytes.substr(0, 8), "TSAMPL04");
  EXPECT_EQ(Samples::from_bytes(bytes).to_bytes(), bytes);
  Samples all = some(2);
  all.reward.clear();
  all.reward_parts.clear();
  all.reward_metrics.clear();
  all.sample_log_probs.clear();
  const Samples before = all;
  all.append(samples);
  all.append(before, 1);
  all.check();
  all = Samples::from_bytes(all.unscored().to_bytes()).select(std::vector<int64_t>{4, 2, 0, 3});
  EXPECT_EQ(all.turns, (std::vector<std::vector<Turn>>{{}, two, {}, {}}));
  const auto& calls = all.episode_metrics.at("calls");
  EXPECT_EQ(calls[1], 2);
  EXPECT_TRUE(std::isnan(calls[0]) && std::isnan(calls[2]) && std::isnan(calls[3]));
  EXPECT_FALSE(before.to_bytes().starts_with("TSAMPL04"));
  all.turns.pop_back();
  EXPECT_THROW(all.check(), InternalError);
  samples.turns.front() = {{6, 1.f}, {4, 1.f}};
  EXPECT_THROW(Samples::from_bytes(samples.to_bytes()), UserError) << "turns backwards";
}

TEST(Samples, MalformedBytesAreRefused) {
  Samples episodes = some(2);
  episodes.turns = {{{1, 2.f}}, {{1, 0.f}, {2, 1.f}}};
  const std::string of_episodes = episodes.to_bytes();
  for (size_t cut = 0; cut < of_episodes.size(); cut += 3)
    EXPECT_THROW(Samples::from_bytes(of_episodes.substr(0, cut)), UserError);
  const auto bytes = some(4).to_bytes();
  for (size_t cut = 0; cut < bytes.size(); cut += 3)
    EXPECT_THROW(Samples::from_bytes(bytes.substr(0, cut)), UserError);
  EXPECT_THROW(Samples::from_bytes(bytes + "x"), UserError);
}

TEST(Samples, SelectAndSortKeepColumnsTogether) {
  const auto samples = some(6);
  const auto sorted = samples.sorted();
  sorted.check();
  EXPECT_TRUE(std::is_sorted(sorted.id.begin(), sorted.id.end()));
  for (int64_t i = 0; i < sorted.size(); ++i) {
    const auto row = sorted.prompt_row[static_cast<size_t>(i)] / 10;
    EXPECT_EQ(sorted.length(i), samples.length(row));
    EXPECT_TRUE(sorted.length(i) == 0 || sorted.tokens_of(i)[0] == 100 * row);
  }
}

TEST(Samples, RequestIdsSortByIterationThenPromptThenSample) {
  EXPECT_LT(request_id(1, 1000, 100, 3), request_id(2, 0, 0));
  EXPECT_LT(request_id(1, 5, 4095), request_id(1, 6, 0));
  EXPECT_LT(request_id(1, 5, 3, 7), request_id(1, 5, 4, 0));
  EXPECT_THROW(request_id(1, 1 << 20, 0), UserError);
  EXPECT_THROW(request_id(1, 0, 4096), UserError);
}

// Tokens of a sequence as one comparable row.
std::vector<std::vector<int32_t>> texts(const Samples& samples) {
  std::vector<std::vector<int32_t>> out;
  for (int64_t i = 0; i < samples.size(); ++i)
    out.emplace_back(samples.tokens_of(i).begin(), samples.tokens_of(i).end());
  return out;
}

TEST(Samples, SelectTakesAnyRowsInAnyOrder) {
  auto samples = some(6);
  for (int64_t i = 0; i < samples.size(); ++i)
    samples.reward[static_cast<size_t>(i)] = static_cast<float>(i);
  samples.ref_log_probs = samples.log_probs;
  const auto all = texts(samples);
  for (const auto& rows :
       std::vector<std::vector<int64_t>>{{}, {5}, {0, 0, 0}, {5, 1, 3, 1}, {0, 1, 2, 3, 4, 5}}) {
    const Samples got = samples.select(rows);
    got.check();
    ASSERT_EQ(got.size(), static_cast<int64_t>(rows.size()));
    EXPECT_EQ(got.ref_log_probs, got.log_probs);
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(texts(got)[i], all[static_cast<size_t>(rows[i])]);
      EXPECT_EQ(got.reward[i], static_cast<float>(rows[i]));
      EXPECT_EQ(got.response_len(static_cast<int64_t>(i)), rows[i]);
    }
  }
  EXPECT_EQ(samples.select(std::vector<int64_t>{0, 1, 2, 3, 4, 5}), samples);
}

TEST(Samples, WhatWasDrawnFromTheFullDistributionMixesWithOther) {
  const Samples truncated = some(4);
  Samples full = some(4);
  full.sample_log_probs.clear();
  for (const bool first_is_full : {true, false}) {
    Samples mixed = first_is_full ? full : truncated;
    mixed.append(first_is_full ? truncated : full);
    mixed.check();
    std::vector<float> expected = first_is_full ? full.log_probs : truncated.sample_log_probs;
    const std::vector<float>& rest = first_is_full ? truncated.sample_log_probs : full.log_probs;
    expected.insert(expected.end(), rest.begin(), rest.end());
    EXPECT_EQ(mixed.sample_log_probs, expected);
  }
}

TEST(Samples, SortingKeepsEqualIdsInTheirOrder) {
  auto samples = some(60);
  for (auto& id : samples.id) id = id % 2;
  const auto sorted = samples.sorted();
  EXPECT_TRUE(std::is_sorted(sorted.id.begin(), sorted.id.end()));
  for (size_t i = 1; i < sorted.id.size(); ++i) {
    const bool equal = sorted.id[i] == sorted.id[i - 1];
    EXPECT_TRUE(!equal || sorted.prompt_row[i - 1] < sorted.prompt_row[i]) << i;
  }
}

TEST(Samples, ColumnsThatDoNotFitAreRefused) {
  const std::vector<std::pair<const char*, std::function<void(Samples&)>>> damages{
      {"column id", [](Samples& s) { s.id.pop_back(); }},
      {"column prompt_row", [](Samples& s) { s.prompt_row.push_back(1); }},
      {"column finish_reason", [](Samples& s) { s.finish_reason.clear(); }},
      {"column reward", [](Samples& s) { s.reward.pop_back(); }},
      {"column reward_parts", [](Samples& s) { s.reward_parts[1].pop_back(); }},
      {"column reward_metrics", [](Samples& s) { s.reward_metrics["judge/right"].pop_back(); }},
      {"column judgements", [](Samples& s) { s.judgements["strict"] = {"{}"}; }},
      {"column ids", [](Samples& s) { s.ids.pop_back(); }},
      {"column action_mask", [](Samples& s) { s.action_mask.push_back(1); }},
      {"column log_probs", [](Samples& s) { s.log_probs.clear(); }},
      {"column version", [](Samples& s) { s.version.pop_back(); }},
      {"column sample_log_probs", [](Samples& s) { s.sample_log_probs.pop_back(); }},
      {"column ref_log_probs", [](Samples& s) { s.ref_log_probs = {1.f}; }},
      {"cu_seqlens", [](Samples& s) { s.cu_seqlens.clear(); }},
      {"cu_seqlens", [](Samples& s) { s.cu_seqlens[0] = 1; }},
      {"cu_seqlens", [](Samples& s) { std::swap(s.cu_seqlens[2], s.cu_seqlens[3]); }},
      {"prompt_len 7 of sequence 3", [](Samples& s) { s.prompt_len[3] = 7; }},
      {"prompt_len -1 of sequence 0", [](Samples& s) { s.prompt_len[0] = -1; }},
      {"finish reason 5", [](Samples& s) { s.finish_reason[1] = static_cast<FinishReason>(5); }},
      {"column turns", [](Samples& s) { s.turns.resize(2); }},
      {"column episode_metrics", [](Samples& s) { s.episode_metrics["calls"] = {1}; }}};
  for (const auto& [word, damage] : damages) {
    auto samples = some(5);
    damage(samples);
    try {
      Samples::from_bytes(samples.to_bytes());
      ADD_FAILURE() << "taken with a damaged " << word;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  }
}

// Whatever byte is wrong: refused, or read as other samples that fit together.
TEST(Samples, ADamagedByteNeverGivesColumnsThatDoNotFit) {
  const auto bytes = some(3).to_bytes();
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const char flip : {'\x01', '\x80', '\xff'}) {
      auto damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      try {
        const Samples got = Samples::from_bytes(damaged);
        EXPECT_EQ(got.to_bytes(), damaged);
        for (int64_t i = 0; i < got.size(); ++i) EXPECT_GE(got.response_len(i), 0);
      } catch (const UserError& error) {
        EXPECT_EQ(error.code(), ExitCode::bad_data) << "byte " << at;
      }
    }
  }
}

TEST(Samples, RequestIdsHoldTheirPartsUpToTheLimits) {
  EXPECT_EQ(request_id(0xabcdef, 0x12345, 0x678, 0x9a), 0xabcdef123456789au);
  EXPECT_EQ(request_id((1 << 24) - 1, (1 << 20) - 1, 4095, 255), ~uint64_t{0});
  const std::vector<std::pair<std::array<int64_t, 4>, const char*>> beyond{
      {{1 << 24, 0, 0, 0}, "iteration 16777216"},
      {{0, 1 << 20, 0, 0}, "prompts of one batch 1048576"},
      {{0, 0, 4096, 0}, "samples of one prompt 4096"},
      {{0, 0, 0, 256}, "attempts 256"},
      {{-1, 0, 0, 0}, "iteration -1"}};
  for (const auto& [parts, says] : beyond) {
    try {
      request_id(parts[0], parts[1], parts[2], parts[3]);
      ADD_FAILURE() << says;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::configuration);
      EXPECT_TRUE(std::string(error.what()).starts_with(says)) << error.what();
    }
  }
}

}  // namespace
}  // namespace trireme
