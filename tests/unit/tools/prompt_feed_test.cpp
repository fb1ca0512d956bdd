// What `trireme generate` reads and writes, piece by piece: prompts that are surveyed and dealt
// out, answers that are there, files that are not whole yet.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "support/samples.hpp"
#include "tools/answer_file.hpp"
#include "tools/prompt_feed.hpp"
#include "trireme/base/files.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using config::error_of;
using testing::AllOf;
using testing::HasSubstr;

class PromptFeeds : public testing::Test {
 protected:
  void SetUp() override {
    if (test::world().size() > 1) GTEST_SKIP() << "one process";
  }
  fs::path file(const std::string& content) const {
    std::ofstream(folder_.path() / "prompts.jsonl") << content;
    return folder_.path() / "prompts.jsonl";
  }
  static std::string lines(const std::vector<std::string>& texts) {
    std::string out;
    for (const auto& text : texts) out += base::text(R"({"text": ")", text, "\"}\n");
    return out;
  }
  PromptSurvey survey(const std::string& content, int64_t max_positions = 100) const {
    config::ModelShape model;
    model.max_positions = max_positions;
    model.vocab = 300;
    return survey_prompts(file(content), test::tokenizer(), text::SpecialTokens::once, no_adapters_,
                          model, test::world());
  }
  const AdapterList no_adapters_{{}, config::AdapterForm::apart};
  const test::SharedFolder folder_;
};

TEST_F(PromptFeeds, ASurveyCountsAndTellsTokensInAnotherOrderApart) {
  const PromptSurvey found = survey(lines({"a", "bcd", "ef"}));
  EXPECT_EQ(found.prompts, 3);
  EXPECT_EQ(found.longest - survey(lines({"a"})).longest, 2) << "each byte is a token";
  EXPECT_EQ(survey(lines({"a", "bcd", "ef"})).digest, found.digest);
  std::set<uint64_t> digests{found.digest};
  for (const auto& other : std::vector<std::vector<std::string>>{{"bcd", "a", "ef"},
                                                                 {"a", "bcd"},
                                                                 {"a", "bcd", "ef", "a"},
                                                                 {"a", "bc", "def"},
                                                                 {"a", "a"},
                                                                 {"a"}}) {
    EXPECT_TRUE(digests.insert(survey(lines(other)).digest).second)
        << testing::PrintToString(other);
  }
  EXPECT_THAT(error_of(ExitCode::bad_data, [&] { survey(""); }),
              HasSubstr("prompts.jsonl: no records"));
}

TEST_F(PromptFeeds, TokensMayHaveRowsOfTheModelThatTheTokenizerDoesNotName) {
  EXPECT_LT(test::tokenizer().vocab_size(), 300);
  EXPECT_EQ(survey("{\"input_ids\": [1, 299]}\n").prompts, 1);
  EXPECT_THAT(error_of(ExitCode::bad_data, [&] { survey("{\"input_ids\": [300]}\n"); }),
              HasSubstr("prompts.jsonl:1: token id 300 is outside the model's vocabulary of 300"));
}

TEST_F(PromptFeeds, ASurveyNamesTheLineThatHasNoRoom) {
  const int64_t three = survey(lines({"abc"})).longest;
  EXPECT_EQ(survey(lines({"a", "abc"}), three + 1).prompts, 2);
  EXPECT_THAT(error_of(ExitCode::bad_data,
                       [&] {
                         survey(lines({"a", "abc"}), three);
                       }),
              AllOf(HasSubstr("prompts.jsonl:2"),
                    HasSubstr(base::text("has ", three, " tokens, the model takes ", three))));
  EXPECT_THAT(error_of(ExitCode::bad_data, [&] { survey(lines({"a"}) + "{\"text\": 5}\n"); }),
              HasSubstr("prompts.jsonl:2"));
  EXPECT_THAT(error_of(ExitCode::bad_data,
                       [&] {
                         survey(lines({"a", "b"}) + "{\"text\": \"\xFF\"}\n");
                       }),
              HasSubstr("prompts.jsonl:3"));
}

// Whatever is answered, each replica gets its share of the others, each once and in order.
TEST_F(PromptFeeds, DealOutWhatLacksAnAnswer) {
  std::mt19937 random(3);
  std::vector<std::string> texts;
  for (int i = 0; i < 11; ++i)
    texts.push_back(std::string(static_cast<size_t>(i % 4), 'x') + static_cast<char>('a' + i));
  const fs::path prompts = file(lines(texts));
  for (int round = 0; round < 30; ++round) {
    const auto samples = static_cast<int64_t>(1 + random() % 3);
    const int replicas = 1 + static_cast<int>(random() % 4);
    AnswerSet done(11, samples);
    std::set<std::pair<int64_t, int64_t>> answered;
    for (size_t i = random() % 30; i > 0; --i) {
      const auto prompt = static_cast<int64_t>(random() % 13) - 1,
                 sample = static_cast<int64_t>(random() % 4) - 1;
      const bool there = prompt >= 0 && prompt < 11 && sample >= 0 && sample < samples;
      EXPECT_EQ(done.add(prompt, sample), there && answered.emplace(prompt, sample).second)
          << prompt << ", " << sample;
    }
    EXPECT_EQ(done.size(), std::ssize(answered));
    EXPECT_EQ(done.wanted(), 11 * samples);
    for (int replica = 0; replica < replicas; ++replica) {
      PromptFeed feed(prompts, test::tokenizer(), text::SpecialTokens::once, no_adapters_, 11,
                      PromptFeed::Share{replica, replicas});
      for (int64_t index = replica; index < 11; index += replicas) {
        int64_t has = 0;
        for (int64_t sample = 0; sample < samples; ++sample) {
          EXPECT_EQ(done.has(index, sample), answered.contains({index, sample}));
          has += answered.contains({index, sample}) ? 1 : 0;
        }
        EXPECT_EQ(done.has_all(index), has == samples);
        if (has == samples) continue;
        const auto prompt = feed.next(done);
        ASSERT_TRUE(prompt) << index;
        EXPECT_EQ(prompt->index, index);
        EXPECT_EQ(test::tokenizer().decode(prompt->ids, text::Skip::special),
                  texts[static_cast<size_t>(index)]);
      }
      EXPECT_FALSE(feed.next(done));
      EXPECT_FALSE(feed.next(done)) << "the end stays the end";
    }
  }
}

TEST_F(PromptFeeds, LinesBehindTheSurveyedOnesAreNotRead) {
  PromptFeed feed(file(lines({"a", "b"}) + "no JSON\n"), test::tokenizer(),
                  text::SpecialTokens::once, no_adapters_, 2, PromptFeed::Share{0, 1});
  const AnswerSet none(2, 1);
  EXPECT_TRUE(feed.next(none));
  EXPECT_TRUE(feed.next(none));
  EXPECT_FALSE(feed.next(none));
}

TEST_F(PromptFeeds, AnOutputHasItsNameWhenItIsWhole) {
  const fs::path path = folder_.path() / "out.jsonl",
                 partial = folder_.path() / "out.jsonl.partial";
  std::ofstream(path) << "old\n";
  {
    OutputFile cut_off(path, Existing::replaced);
    cut_off.write("one\n");
    EXPECT_THAT(error_of(ExitCode::locked, [&] { OutputFile second(path, Existing::replaced); }),
                HasSubstr("out.jsonl.partial"));
    EXPECT_EQ(base::read_file(partial), "one\n") << "the second one has left it alone";
  }
  EXPECT_FALSE(fs::exists(partial)) << "nothing stays of what failed";
  for (const char* line : {"one\n", "two\nthree\n"}) {
    OutputFile kept(path, Existing::replaced, OutputFile::Leftover::kept);
    kept.write(line);
  }
  {
    OutputFile kept(path, Existing::replaced, OutputFile::Leftover::kept);
    kept.cut(8);
    kept.write("four\n");
    EXPECT_EQ(base::read_file(partial), "one\ntwo\nfour\n") << "lines come behind what is kept";
  }
  OutputFile fresh(path, Existing::replaced);
  EXPECT_EQ(base::read_file(path), "old\n");
  fresh.write("new\n");
  fresh.finish({});
  EXPECT_EQ(base::read_file(path), "new\n");
  EXPECT_FALSE(fs::exists(partial));
  EXPECT_THROW(OutputFile(folder_.path() / "no" / "folder", Existing::refused), std::exception);
}

TEST_F(PromptFeeds, AJobFileThatIsDamagedIsNamed) {
  const fs::path path = folder_.path() / "answers.jsonl";
  const ToolJob job{{"seed", "1"}, {"stop", "\"quoted\"\n\xC3\xA9"}};
  const std::string line = "{\"index\": 0, \"sample\": 0}\n";
  AnswerSet done(2, 1);
  { AnswerFile(path, job, done).write(line); }
  EXPECT_EQ(done.size(), 0);
  { const AnswerFile again(path, job, done); }
  EXPECT_EQ(done.size(), 1) << "the same settings, as they are written to a file and read";
  for (const char* damaged : {"", "{\"seed\": \"1\"", "[]"}) {
    std::ofstream(folder_.path() / "answers.jsonl.job") << damaged;
    AnswerSet other(2, 1);
    EXPECT_THROW(AnswerFile(path, job, other), UserError) << damaged;
    EXPECT_EQ(other.size(), 0) << damaged;
    EXPECT_EQ(base::read_file(folder_.path() / "answers.jsonl.partial"), line) << "nothing is lost";
  }
  AnswerSet anew(2, 1);
  { const AnswerFile forced(path, job, anew, Existing::replaced); }
  EXPECT_EQ(anew.size(), 0);
  EXPECT_EQ(base::read_file(folder_.path() / "answers.jsonl.partial"), "") << "--force begins anew";
}

}  // namespace
}  // namespace trireme::tools
