// The tools of one process on artificial files: what they print, and what they refuse.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "support/samples.hpp"
#include "tools/answer_file.hpp"
#include "tools/job_record.hpp"
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
  const ToolJob job_{{"seed", "1"}, {"model", "a b"}};
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
  const ToolJob other{{"seed", "2"}, {"model", "a b"}};
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
  EXPECT_TRUE(fs::exists(folder_.path() / "answers.jsonl.done"));
}

TEST_F(Answers, AFinishedOutputOfTheSameJobIsDone) {
  EXPECT_FALSE(is_done(output(), job_, Existing::refused)) << "nothing is there";
  EXPECT_FALSE(is_done("-", job_, Existing::refused));
  {
    AnswerSet done(prompts, samples);
    AnswerFile file(output(), job_, done);
    file.write(line(0, 0));
    file.finish();
  }
  EXPECT_TRUE(is_done(output(), job_, Existing::refused));
  EXPECT_FALSE(is_done(output(), job_, Existing::replaced));
  file("answers.jsonl.job", "ended between its last two steps");
  EXPECT_TRUE(is_done(output(), job_, Existing::refused));
  EXPECT_EQ(setting_of_earlier_run(output(), "seed", Existing::replaced), "");
}

TEST_F(Answers, ForceBeginsAnewOverAnotherJob) {
  found(line(0, 0));
  const ToolJob other{{"seed", "2"}, {"model", "a b"}};
  file("answers.jsonl", "before\n");
  AnswerSet done(prompts, samples);
  {
    AnswerFile forced(output(), other, done, Existing::replaced);
    forced.write(line(1, 1));
    EXPECT_EQ(base::read_file(output()), "before\n") << "until the new one is whole";
  }
  EXPECT_EQ(done.size(), 0);
  AnswerFile again(output(), other, done, Existing::replaced);
  EXPECT_EQ(done.size(), 1) << "its own part is continued";
  again.finish();
  EXPECT_EQ(base::read_file(output()), line(1, 1));
}

// What a tool may write, beside what it reads.
class Outputs : public Tools {
 protected:
  fs::path at(const std::string& name) const { return folder_.path() / name; }
  static std::string refusal(const fs::path& output, const InputPaths& inputs,
                             Existing existing = Existing::refused) {
    return error_of(ExitCode::usage, [&] { check_output_file(output, inputs, existing); });
  }
};

TEST_F(Outputs, AnInputIsNeverWrittenOver) {
  file("in.jsonl", "x");
  fs::create_symlink(at("in.jsonl"), at("link.jsonl"));
  fs::create_hard_link(at("in.jsonl"), at("hard.jsonl"));
  fs::create_directories(at("model"));
  file("model/tokenizer.json", "x");
  fs::create_directory_symlink(at("model"), at("linked"));
  for (const Existing existing : {Existing::refused, Existing::replaced}) {
    for (const char* name : {"in.jsonl", "link.jsonl", "hard.jsonl", "./in.jsonl",
                             "model/../in.jsonl", "linked/tokenizer.json"})
      EXPECT_THAT(refusal(at(name), {at("in.jsonl"), at("model")}, existing),
                  HasSubstr("would destroy what is read"))
          << name;
    EXPECT_THAT(refusal(at("in.jsonl"), {at("link.jsonl")}, existing), HasSubstr("is an input"));
  }
  file("a.jsonl.partial", "x");
  EXPECT_THAT(refusal(at("a.jsonl"), {at("a.jsonl.partial")}), HasSubstr("is an input"))
      << "it is written beside";
}

// A batch script answers.job, a mark answers.done, somebody's answers.partial.
TEST_F(Outputs, FilesOfOthersBesideItStay) {
  const ToolJob job{{"seed", "1"}};
  AnswerSet none(1, 1);
  for (const char* ending : {".job", ".done", ".partial"}) {
    const std::string other = std::string("answers") + ending;
    file(other, "#!/bin/bash\nsrun trireme generate\n");
    EXPECT_THAT(error_of(ExitCode::usage, [&] { OutputFile(at("answers"), Existing::refused); }),
                HasSubstr("--force"))
        << ending;
    EXPECT_THROW(AnswerFile(at("answers"), job, none), UserError) << ending;
    EXPECT_EQ(base::read_file(at(other)), "#!/bin/bash\nsrun trireme generate\n");
    OutputFile(at("answers"), Existing::replaced).finish(job);
    for (const auto& entry : fs::directory_iterator(folder_.path())) fs::remove(entry.path());
  }
}

// The answers of a generation that was cut off are not another tool's to drop.
TEST_F(Outputs, UnfinishedAnswersStayBesideAnotherTool) {
  const ToolJob job{{"seed", "1"}};
  const std::string line = "{\"index\": 0, \"sample\": 0}\n";
  {
    AnswerSet done(2, 1);
    AnswerFile(at("out"), job, done).write(line);
  }
  EXPECT_THAT(error_of(ExitCode::usage, [&] { OutputFile(at("out"), Existing::refused); }),
              HasSubstr("trireme generate"));
  AnswerSet done(2, 1);
  { const AnswerFile again(at("out"), job, done); }
  EXPECT_EQ(done.size(), 1);
  OutputFile(at("out"), Existing::replaced).finish(job);
  EXPECT_FALSE(fs::exists(at("out.job")));
}

// A killed tool that keeps nothing leaves lines that any tool may drop.
TEST_F(Outputs, LinesThatNobodyContinuesAreDropped) {
  const ToolJob job{{"seed", "1"}};
  const auto kill = [&] {
    OutputFile killed(at("out"), Existing::refused);
    killed.write("x\n");
    fs::copy(at("out.partial"), at("left.partial"), fs::copy_options::overwrite_existing);
    fs::copy(at("out.job"), at("left.job"), fs::copy_options::overwrite_existing);
  };
  const auto leave = [&] {
    kill();
    EXPECT_FALSE(fs::exists(at("out.job"))) << "of one that ends by an error nothing stays";
    fs::rename(at("left.partial"), at("out.partial"));
    fs::rename(at("left.job"), at("out.job"));
  };
  leave();
  OutputFile(at("out"), Existing::refused).finish(job);
  EXPECT_EQ(base::read_file(at("out")), "");
  fs::remove(at("out"));
  leave();
  AnswerSet done(1, 1);
  AnswerFile(at("out"), job, done).finish();
  EXPECT_EQ(base::read_file(at("out")), "");
}

TEST_F(Outputs, AReportIsWrittenOverAPageOnly) {
  fs::create_directories(at("run"));
  const std::string metrics = "{\"iteration\": 1, \"reward\": 0.5}\n";
  file("run/metrics.jsonl", metrics);
  file("notes.html", "<html>mine</html>");
  testing::internal::CaptureStdout();
  for (const char* other : {"notes.html", "run/metrics.jsonl", "run"})
    EXPECT_THAT(error_of(ExitCode::usage,
                         [&] {
                           run_report({{at("run")}, at(other)});
                         }),
                HasSubstr("is not a page"))
        << other;
  EXPECT_EQ(base::read_file(at("notes.html")), "<html>mine</html>");
  EXPECT_EQ(base::read_file(at("run/metrics.jsonl")), metrics);
  for (int time = 0; time < 2; ++time) run_report({{at("run")}, {}});
  EXPECT_THAT(base::read_file(at("run/report.html")), HasSubstr("<!DOCTYPE html>"));
  testing::internal::GetCapturedStdout();
  testing::internal::CaptureStdout();
  run_report({{at("run")}, "-"});
  EXPECT_THAT(testing::internal::GetCapturedStdout(), testing::StartsWith("<!DOCTYPE html>"));
}

TEST_F(Outputs, WhatTheShellHasOpenedIsWrittenTo) {
  file("shell.jsonl", "before\n");
  const int shell = ::open(at("shell.jsonl").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  const fs::path name = "/dev/fd/" + std::to_string(shell);
  EXPECT_TRUE(is_stream(name));
  EXPECT_TRUE(is_stream("/dev/stdout"));
  EXPECT_FALSE(is_stream("/dev/fd/x"));
  check_output_file(name, {}, Existing::refused);
  OutputFile output(name, Existing::refused);
  output.write("after\n");
  output.finish({});
  ::close(shell);
  EXPECT_EQ(base::read_file(at("shell.jsonl")), "before\nafter\n");
}

TEST_F(Outputs, WhatIsThereNeedsForce) {
  file("out.jsonl", "x");
  fs::create_symlink(at("out.jsonl"), at("to-out"));
  EXPECT_THAT(refusal(at("out.jsonl"), {}), HasSubstr("is there already"));
  EXPECT_THAT(refusal(at("to-out"), {}), HasSubstr("is there already"));
  EXPECT_THAT(refusal(folder_.path(), {}, Existing::replaced), HasSubstr("is a folder"));
  check_output_file(at("out.jsonl"), {}, Existing::replaced);
  check_output_file(at("new.jsonl"), {}, Existing::refused);
  check_output_file("-", {}, Existing::refused);
  check_output_file("/dev/null", {}, Existing::refused);
  {
    OutputFile null("/dev/null", Existing::refused);
    null.write("a");
    null.finish({});
  }
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(Outputs, AFileAppearsWholeThroughALink) {
  file("out.jsonl", "old");
  fs::create_symlink(at("out.jsonl"), at("to-out"));
  {
    OutputFile output(at("to-out"), Existing::replaced);
    output.write("new");
    EXPECT_EQ(base::read_file(at("out.jsonl")), "old");
    output.finish({});
  }
  EXPECT_TRUE(fs::exists(at("out.jsonl.done")));
  EXPECT_TRUE(fs::is_symlink(at("to-out")));
  EXPECT_EQ(base::read_file(at("out.jsonl")), "new");
  {
    OutputFile failed(at("x.jsonl"), Existing::refused);
    failed.write("half");
  }
  EXPECT_FALSE(fs::exists(at("x.jsonl.partial"))) << "nothing stays of what failed";
  OutputFile first(at("y.jsonl"), Existing::refused);
  error_of(ExitCode::locked, [&] { OutputFile(at("y.jsonl"), Existing::refused); });
  file("y.jsonl", "meanwhile");
  first.finish({});
  error_of(ExitCode::usage, [&] { OutputFile(at("y.jsonl"), Existing::refused); });
  EXPECT_FALSE(fs::exists(at("y.jsonl.partial")));
  fs::create_symlink(at("to-out"), at("z.jsonl.partial"));
  EXPECT_THROW(OutputFile(at("z.jsonl"), Existing::refused), UserError) << "no link is followed";
}

TEST_F(Outputs, ALinkToNothingIsFollowed) {
  fs::create_symlink("further.jsonl", at("to.jsonl"));
  fs::create_symlink("there.jsonl", at("further.jsonl"));
  {
    OutputFile output(at("to.jsonl"), Existing::refused);
    output.write("x");
    output.finish({});
  }
  EXPECT_TRUE(fs::is_symlink(at("to.jsonl")) && fs::is_symlink(at("further.jsonl")));
  EXPECT_EQ(base::read_file(at("there.jsonl")), "x");
  EXPECT_TRUE(is_done(at("to.jsonl"), {}, Existing::refused));
  fs::create_symlink("round", at("round"));
  EXPECT_THAT(refusal(at("round"), {}), HasSubstr("leads to itself"));
}

TEST_F(Outputs, AnEmptyNameIsRefused) {
  EXPECT_THAT(refusal("", {}), HasSubstr("empty name"));
  error_of(ExitCode::usage, [] { check_output_folder("", {}, Existing::replaced); });
}

TEST_F(Outputs, AFolderAppearsWhole) {
  const auto refusal_of = [&](const std::string& name, const InputPaths& inputs,
                              Existing existing = Existing::refused) {
    return error_of(ExitCode::usage, [&] { OutputFolder(at(name), inputs, existing); });
  };
  {
    OutputFolder made(at("new/model/"), {}, Existing::refused);
    file("new/model.partial/config.json", "x");
    EXPECT_EQ(made.path(), at("new/model.partial"));
    error_of(ExitCode::locked, [&] { OutputFolder(at("new/model"), {}, Existing::refused); });
    EXPECT_FALSE(fs::exists(at("new/model")));
    made.finish({});
  }
  EXPECT_TRUE(fs::exists(at("new/model/config.json")));
  EXPECT_FALSE(fs::exists(at("new/model/.trireme-partial")));
  { OutputFolder failed(at("failed"), {}, Existing::refused); }
  EXPECT_FALSE(fs::exists(at("failed.partial")));
  fs::create_directories(at("empty"));
  {
    OutputFolder into(at("empty"), {}, Existing::refused);
    into.finish({});
  }
  EXPECT_TRUE(is_done(at("empty"), {}, Existing::refused));
  fs::remove(at("empty/.trireme-done"));
  {
    OutputFolder failed(at("empty"), {}, Existing::refused);
    EXPECT_EQ(failed.path(), at("empty")) << "it may be a mount point";
    file("empty/config.json", "x");
  }
  EXPECT_TRUE(fs::is_empty(at("empty")));
  file("empty/.trireme-partial", "killed");
  file("empty/model.safetensors.tmp", "x");
  {
    OutputFolder again(at("empty"), {}, Existing::refused);
    EXPECT_FALSE(fs::exists(at("empty/model.safetensors.tmp")));
    file("empty/config.json", "x");
    again.finish({});
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(at("empty")), {}), 2) << "with the record";
  EXPECT_THAT(refusal_of("new/model", {}), AllOf(HasSubstr("config.json"), HasSubstr("--force")));
  file("plain", "x");
  EXPECT_THAT(refusal_of("plain", {}, Existing::replaced), HasSubstr("is a file"));
  fs::create_directories(at("mine.partial"));
  file("mine.partial/thesis.tex", "x");
  EXPECT_THAT(refusal_of("mine", {}), HasSubstr("not what a run of this program has left"));
  EXPECT_TRUE(fs::exists(at("mine.partial/thesis.tex")));
  OutputFolder replaced(at("new/model"), {}, Existing::replaced);
  EXPECT_EQ(replaced.path(), at("new/model")) << "file by file";
}

TEST_F(Outputs, ARecordSaysOfWhichJobTheyAre) {
  const ToolJob job{{"seed", "1"}, {"date", ""}};
  const auto write = [&](const std::string& name) {
    if (name == "folder") {
      OutputFolder output(at(name), {}, Existing::replaced);
      file(name + (fs::exists(at(name)) ? "/model.safetensors" : ".partial/model.safetensors"),
           "x");
      output.finish(job);
    } else {
      OutputFile output(at(name), Existing::replaced);
      output.write("x");
      output.finish(job);
    }
  };
  const auto refusal_of = [&](const std::string& name, const ToolJob& other) {
    return error_of(ExitCode::usage, [&] { is_done(at(name), other, Existing::refused); });
  };
  for (const std::string name : {"file", "folder"}) {
    write(name);
    EXPECT_TRUE(is_done(at(name), job, Existing::refused)) << name;
    EXPECT_FALSE(is_done(at(name), job, Existing::replaced)) << name;
    EXPECT_THAT(refusal_of(name, {{"seed", "2"}, {"date", "x"}}),
                AllOf(HasSubstr("is of another job (seed: 1 -> 2, date: (none) -> x)"),
                      HasSubstr("--force")));
    const std::string content = name == "file" ? name : name + "/model.safetensors";
    file(content, "y");
    EXPECT_THAT(refusal_of(name, job), HasSubstr("was changed since it was written"));
    write(name);
    EXPECT_TRUE(is_done(at(name), job, Existing::refused)) << "replaced";
    fs::rename(at(name), at("elsewhere"));
    EXPECT_FALSE(is_done(at(name), job, Existing::refused)) << "nothing is there";
    fs::rename(at("elsewhere"), at(name));
    fs::remove(at(name == "file" ? "file.done" : "folder/.trireme-done"));
    EXPECT_FALSE(is_done(at(name), job, Existing::refused)) << "nobody knows what it is";
  }
  EXPECT_THAT(refusal(at("file"), {at("file.done")}), HasSubstr("is there already"));
  file("file.done", "x");
  EXPECT_THAT(refusal(at("file"), {at("file.done")}, Existing::replaced),
              HasSubstr("would destroy what is read"));
  write("folder");
  {
    const OutputFolder killed(at("folder"), {}, Existing::replaced);
    EXPECT_FALSE(is_done(at("folder"), job, Existing::refused)) << "half replaced";
  }
}

TEST_F(Outputs, NoModelIsWrittenWhereItIsReadFrom) {
  fs::create_directories(at("model"));
  file("model/config.json", "x");
  fs::create_directories(at("view"));
  fs::create_symlink(at("model/config.json"), at("view/config.json"));
  fs::create_directory_symlink(at("model"), at("linked"));
  for (const auto& [output, input] : {std::pair("model", "model"), std::pair("model/", "linked"),
                                      std::pair("linked", "model"), std::pair("model", "view")})
    EXPECT_THAT(error_of(ExitCode::usage,
                         [&, o = output, i = input] {
                           check_output_folder(at(o), {at(i)}, Existing::replaced);
                         }),
                HasSubstr("would destroy what is read"))
        << output << " " << input;
  check_output_folder(at("model/half"), {at("model")}, Existing::refused);
}

}  // namespace
}  // namespace trireme::tools
