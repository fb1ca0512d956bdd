// The ranks of a node share the work of encoding a data set: each ends with what it would have read
// alone.
#include <gtest/gtest.h>

#include <string>

#include "support/samples.hpp"
#include "support/world.hpp"
#include "trireme/learn/datasets.hpp"

namespace trireme::learn {
namespace {

using test::lines;
using test::tokenizer;
using test::world;

// Texts and chats, of which every 50th is too long.
std::string many_prompts(int count, const std::string& word) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    const std::string content = i % 50 == 49 ? std::string(100, 'x') : word + std::to_string(i);
    text += i % 3 == 0
                ? R"({"messages": [{"role": "user", "content": ")" + content + R"("}], "label": 7})"
                : R"({"prompt": ")" + content + R"(", "k": 1})";
    text += "\n";
  }
  return text;
}

void expect_same(const data::PromptSet& got, const data::PromptSet& want) {
  ASSERT_EQ(got.size(), want.size());
  EXPECT_EQ(got.counts().rows, want.counts().rows);
  EXPECT_EQ(got.counts().too_long, want.counts().too_long);
  for (int64_t row = 0; row < want.size(); ++row) {
    EXPECT_EQ(got[row].ids, want[row].ids) << row;
    EXPECT_EQ(got[row].prompt, want[row].prompt);
    EXPECT_EQ(got[row].messages.size(), want[row].messages.size());
    EXPECT_EQ(got[row].label, want[row].label);
    EXPECT_EQ(got[row].extra, want[row].extra);
    EXPECT_EQ(got[row].origin.line, want[row].origin.line);
  }
}

TEST(Datasets, PromptsAreThoseOfOneProcess) {
  config::Options options;
  options.data.max_len = 64;
  for (const int64_t most : {int64_t{100'000'000}, int64_t{8500},
                             int64_t{7}}) {  // in more than one block, and in a part of one
    options.data.max_samples = most;
    const auto files = lines(many_prompts(9000, "what is ")).files;
    expect_same(load_prompts(options, {files[0].string()}, tokenizer(), world()),
                data::PromptSet::load(set_options(options, {files[0].string()}, 63), tokenizer()));
  }
}

void expect_same(const TrainingSet& got, const TrainingSet& want) {
  ASSERT_EQ(got.size(), want.size());
  EXPECT_EQ(got.counts().too_long, want.counts().too_long);
  Samples all_got, all_wanted;
  for (int64_t row = 0; row < want.size(); ++row) {
    EXPECT_EQ(got.margin(row), want.margin(row)) << row;
    got.append(row, all_got);
    want.append(row, all_wanted);
  }
  EXPECT_EQ(all_got, all_wanted);
}

TEST(Datasets, TrainingSetsAreThoseOfOneProcess) {
  std::string examples, pairs;
  for (int i = 0; i < 200; ++i) {
    const std::string number = std::to_string(i), prompt = R"({"prompt": "what )" + number,
                      answer = i % 50 == 49 ? std::string(100, 'x') : "is " + number;
    examples += prompt + R"(", "response": ")" + answer + "\"}\n";
    pairs += prompt + R"(", "chosen": ")" + answer + R"(", "rejected": "none", "margin": )" +
             number + "}\n";
  }
  config::Options options;
  options.data.max_len = 64;
  const auto load = [&](const std::string& text, config::Command command) {
    return load_training(options, {lines(text).files[0].string()}, command, tokenizer(), world());
  };
  const auto wanted = [&](const std::string& text) {
    return set_options(options, {lines(text).files[0].string()}, 64);
  };
  expect_same(load(examples, config::Command::sft),
              TrainingSet(data::SftSet::load(wanted(examples), tokenizer())));
  expect_same(load(pairs, config::Command::dpo),
              TrainingSet(data::PreferenceSet::load(wanted(pairs), tokenizer())));
}

// Processes that do not read the same file, or one that cannot encode a line, keep in step.
TEST(Datasets, WhatOthersReadOtherwiseIsNotTaken) {
  data::EncodingTeam team{world().rank(), world().size(),
                          [](std::string_view mine) { return world().all_gather(mine); }};
  const auto set = lines(
      many_prompts(world().rank() == 0 ? 9000 : 20, world().rank() == 1 ? "else " : "what is "));
  expect_same(data::PromptSet::load(set, tokenizer(), team),
              data::PromptSet::load(set, tokenizer()));
}

}  // namespace
}  // namespace trireme::learn
