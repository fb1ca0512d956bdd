// The tools of one process on made-up files: what they print, and what they refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/samples.hpp"
#include "tools/answer_file.hpp"
#include "trireme/base/files.hpp"
#include "trireme/tools/commands.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using config::error_of;
using testing::AllOf;
using testing::HasSubstr;

class Tools : public testing::Test {
 protected:
  void SetUp() override {
    if (test::world().size() > 1) GTEST_SKIP() << "one process";
  }
  fs::path file(const std::string& name, const std::string& content) const {
    std::ofstream(folder_.path() / name) << content;
    return folder_.path() / name;
  }
  std::string inspected(const std::string& name, const std::string& content) const {
    testing::internal::CaptureStdout();
    run_inspect({file(name, content)});
    return testing::internal::GetCapturedStdout();
  }
  std::string refused(ExitCode code, const std::string& name, const std::string& content) const {
    return error_of(code, [&] { run_inspect({file(name, content)}); });
  }

  const test::SharedFolder folder_;
};

TEST_F(Tools, InspectAddsUpTheSlicesOfATrace) {
  const std::string text = inspected(
      "trace.json", R"({"traceEvents":[{"ph":"X","name":"train","ts":1000000,"dur":500000},
    {"ph":"M","name":"process_name"},{"ph":"X","name":"train","ts":0,"dur":250000},{"ph":"X","name":"rollout","ts":2000000,"dur":2000000}]})");
  EXPECT_THAT(text, AllOf(HasSubstr("4 events, 4.0 s"), HasSubstr("train  2 x, 750"),
                          HasSubstr("rollout  1 x, 2.0 s")));
  EXPECT_THAT(inspected("list.json", R"([{"ph":"X","name":"a","ts":0,"dur":1e6}])"),
              HasSubstr("1 events, 1.0 s"))
      << "the other form";
  EXPECT_THAT(inspected("empty.json", R"({"traceEvents":[]})"), HasSubstr("0 events"));
}

TEST_F(Tools, InspectRefusesWhatIsNoTrace) {
  for (const char* text : {"", "{", "not json"})
    EXPECT_THAT(refused(ExitCode::bad_data, "a.json", text), HasSubstr("a.json is not JSON"));
  for (const char* text :
       {"5", "null", "{}", "[1]", R"({"traceEvents":5})", R"({"hidden_size":64})", R"([{"ph":1}])",
        R"([{"ph":"X","name":7}])", R"([{"ph":"X","ts":"soon"}])"}) {
    EXPECT_THAT(refused(ExitCode::bad_data, "a.json", text),
                HasSubstr("a.json is JSON but no trace"))
        << text;
  }
}

TEST_F(Tools, InspectSaysWhatItTakes) {
  EXPECT_THAT(refused(ExitCode::usage, "a.txt", ""),
              AllOf(HasSubstr("a.txt"), HasSubstr(".safetensors")));
  EXPECT_THAT(
      error_of(ExitCode::input_missing, [&] { run_inspect({folder_.path() / "gone.json"}); }),
      HasSubstr("gone.json does not exist"));
  refused(ExitCode::bad_data, "a.gguf", "GGUF");
  refused(ExitCode::bad_data, "a.safetensors", "1234567");
}

TEST_F(Tools, TokenizeThereAndBack) {
  const std::vector<std::string> texts{"1+1=2", " two  blanks ", "quotes \" and \\ and {}",
                                       "\xE7\xAF\x80\xE7\x82\xB9 \xF0\x9F\x9A\xA3", "line\nfeed\t"};
  std::string input;
  for (const auto& text : texts) input += nlohmann::json{{"text", text}}.dump() + "\n";
  const auto ids = folder_.path() / "ids.jsonl";
  const auto back = folder_.path() / "back.jsonl";
  EXPECT_EQ(
      run_tokenize(
          {.model = test::tokenizer_folder(), .input = file("texts.jsonl", input), .output = ids}),
      ExitCode::done);
  EXPECT_EQ(run_tokenize({.model = test::tokenizer_folder(),
                          .input = ids,
                          .output = back,
                          .mode = TokenizeMode::decode}),
            ExitCode::done);
  std::ifstream lines(back);
  for (const auto& text : texts) {
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    EXPECT_EQ(nlohmann::json::parse(line).at("text"), "<|bos|>" + text);
  }
}

TEST_F(Tools, TokenizeNamesTheLineAndLeavesNoResult) {
  const auto output = folder_.path() / "out.jsonl";
  const auto refusal = [&](TokenizeMode mode, const char* second) {
    const auto input =
        file("in.jsonl",
             std::string(mode == TokenizeMode::encode ? R"({"text": "a"})" : R"({"ids": [65]})") +
                 "\n" + second + "\n");
    return error_of(ExitCode::bad_data, [&] {
      run_tokenize(
          {.model = test::tokenizer_folder(), .input = input, .output = output, .mode = mode});
    });
  };
  EXPECT_THAT(refusal(TokenizeMode::encode, R"({"ids": [1]})"),
              AllOf(HasSubstr("in.jsonl:2"), HasSubstr("`text`")));
  EXPECT_THAT(refusal(TokenizeMode::decode, R"({"text": "a"})"),
              AllOf(HasSubstr("in.jsonl:2"), HasSubstr("`ids`")));
  EXPECT_THAT(refusal(TokenizeMode::chat, R"({"text": "a"})"),
              AllOf(HasSubstr("in.jsonl:1"), HasSubstr("`messages`")));
  EXPECT_FALSE(fs::exists(output)) << "a file with its final name is whole";
}

// What `trireme generate` finds of a run that was cut off.
class Answers : public Tools {
 protected:
  static constexpr int64_t prompts = 5, samples = 2;
  fs::path output() const { return folder_.path() / "answers.jsonl"; }
  static std::string line(int prompt, int sample) {
    return base::text(R"({"index": )", prompt, R"(, "sample": )", sample, R"(, "text": "x"})",
                      "\n");
  }
  // The answers that there are after a start which finds `partial`, and what then is in the file.
  std::pair<int64_t, std::string> found(const std::string& partial) const {
    AnswerSet none(prompts, samples), done(prompts, samples);
    { const AnswerFile first(output(), job_, none); }
    file("answers.jsonl.partial", partial);
    AnswerFile again(output(), job_, done);
    again.write("|");
    return {done.size(), base::read_file(folder_.path() / "answers.jsonl.partial")};
  }
  const AnswerJob job_{{"seed", "1"}, {"model", "a b"}};
};

TEST_F(Answers, KeepsTheLinesThatAreWhole) {
  const std::string three = line(0, 1) + line(4, 1) + line(2, 0);
  EXPECT_EQ(found(three), std::pair(int64_t{3}, three + "|"));
  EXPECT_EQ(found(three + R"({"index": 3, "sam)"), std::pair(int64_t{3}, three + "|"));
  EXPECT_EQ(found(three + R"({"index": 3, "sample": 0})"), std::pair(int64_t{3}, three + "|"))
      << "only the end of the line says that it is whole";
  EXPECT_EQ(found(three + std::string(512, '\0')), std::pair(int64_t{3}, three + "|"))
      << "after a loss of power";
  for (const std::string& bad :
       {std::string("x\n"), std::string("[1]\n"), line(0, 1), line(5, 0), line(0, 2), line(-1, 0),
        std::string("\n"), std::string("{\"index\": \"0\", \"sample\": 0}\n")}) {
    EXPECT_EQ(found(three + bad + line(1, 1)), std::pair(int64_t{3}, three + "|")) << bad;
  }
}

TEST_F(Answers, OfAnotherJobAreNotMixed) {
  found(line(0, 0));
  AnswerSet done(prompts, samples);
  const AnswerJob other{{"seed", "2"}, {"model", "a b"}};
  EXPECT_THAT(error_of(ExitCode::configuration, [&] { AnswerFile(output(), other, done); }),
              HasSubstr("(seed: 1 -> 2)"));
  fs::remove(folder_.path() / "answers.jsonl.job");
  EXPECT_THAT(error_of(ExitCode::configuration, [&] { AnswerFile(output(), job_, done); }),
              HasSubstr("without"));
  fs::remove(folder_.path() / "answers.jsonl.partial");
  AnswerFile one(output(), other, done);
  EXPECT_THAT(error_of(ExitCode::locked, [&] { AnswerFile(output(), other, done); }),
              HasSubstr("another process"));
  one.write(line(1, 1));
  one.finish();
  EXPECT_EQ(base::read_file(output()), line(1, 1));
  EXPECT_FALSE(fs::exists(folder_.path() / "answers.jsonl.job"));
}

}  // namespace
}  // namespace trireme::tools
