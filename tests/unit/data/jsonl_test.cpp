#include "trireme/data/jsonl.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "support/text_files.hpp"
#include "trireme/data/prompt_set.hpp"

namespace trireme::data {
namespace {

class Jsonl : public testing::Test {
 protected:
  std::vector<std::pair<int64_t, std::string>> read(const std::string& content) {
    JsonlReader reader(folder_.write("data.jsonl", content));
    std::vector<std::pair<int64_t, std::string>> lines;
    while (const auto line = reader.next()) lines.emplace_back(reader.line(), *line);
    return lines;
  }
  // The message for a file that the reader or the record rules refuse.
  std::string refuse(const std::string& content, ExitCode code = ExitCode::bad_data) {
    const auto file = folder_.write("data.jsonl", content);
    std::string message = test::error_of(code, [&] { read_inputs(file); });
    EXPECT_EQ(message.find(file.string()), 0u) << message;
    return message.substr(std::min(message.size(), file.string().size()));
  }
  test::TemporaryFolder folder_;
};

using Lines = std::vector<std::pair<int64_t, std::string>>;

TEST_F(Jsonl, LineEndsBlankLinesAndByteOrderMark) {
  EXPECT_EQ(read("{}\n[]\n"), (Lines{{1, "{}"}, {2, "[]"}}));
  EXPECT_EQ(read("{}\n[]"), (Lines{{1, "{}"}, {2, "[]"}}));
  EXPECT_EQ(read("{}\r\n\r\n \t\n[]\r\n"), (Lines{{1, "{}"}, {4, "[]"}}));
  EXPECT_EQ(read("\xEF\xBB\xBF{}"), (Lines{{1, "{}"}}));
}

TEST_F(Jsonl, OnlyBlanksAndTabsMakeABlankLine) {
  EXPECT_EQ(read("{}\n\xEF\xBB\xBF[]\n"), (Lines{{1, "{}"}, {2, "\xEF\xBB\xBF[]"}}))
      << "a byte order mark stands at the start of a file";
  EXPECT_EQ(read("\xEF\xBB\xBF\r\n\n{}"), (Lines{{3, "{}"}}));
  EXPECT_EQ(read("{}\r[]\n"), (Lines{{1, "{}\r[]"}})) << "a lone CR ends no line";
  EXPECT_EQ(read("{}\n\f\n"), (Lines{{1, "{}"}, {2, "\f"}}));
  EXPECT_EQ(read("{\"a\": \"\xE2\x80\xA8\"}\n"), (Lines{{1, "{\"a\": \"\xE2\x80\xA8\"}"}}))
      << "U+2028 ends no line";
  EXPECT_EQ(read(std::string("{}\n\0\n", 5)).size(), 2u) << "a NUL is content";
  EXPECT_EQ(read(std::string(3000, '\n') + "{}")[0].first, 3001);
}

TEST_F(Jsonl, AcceptedOddities) {
  const auto file = folder_.write("data.jsonl",
                                  "{\"prompt\": \"a\\u0000b\", \"x\": null}\n{\"text\": "
                                  "\"\"}\n{\"text\": \"\xD7\x90\xE2\x80\x8F \"}\n");
  const auto inputs = read_inputs(file);
  ASSERT_EQ(inputs.size(), 3u);
  EXPECT_EQ(inputs[0].text, std::string("a\0b", 3));
  EXPECT_EQ(inputs[1].text, "");
  EXPECT_EQ(inputs[2].where, file.string() + ":3");
}

TEST_F(Jsonl, RefusalsNameFileLineAndColumn) {
  EXPECT_NE(refuse("").find(": no records"), std::string::npos);
  EXPECT_NE(refuse("\n\n").find(": no records"), std::string::npos);
  EXPECT_NE(refuse("{\"text\": \"a\"}\n{\"text\": \"\xFF\"}").find(":2:11: not UTF-8"),
            std::string::npos);
  EXPECT_NE(refuse("{\"text\": \"\xC3").find(":1:11: not UTF-8"), std::string::npos);
  EXPECT_NE(refuse("{\"text\": \"\xED\xA0\x80\"}").find(":1:11: not UTF-8"), std::string::npos);
  EXPECT_NE(refuse("{\"text\": \"a\"}\n{\"text\": a}\n").find(":2:10: not JSON"),
            std::string::npos);
  EXPECT_NE(refuse("{\"text\": \"a\"").find(":1:13: not JSON"), std::string::npos);
  EXPECT_NE(refuse("{\"text\": \"\\ud800\"}").find(":1:17: not JSON"), std::string::npos);
  EXPECT_NE(refuse("{\"text\": \"a\nb\"}").find(":1:"), std::string::npos);
  EXPECT_NE(refuse("{\"text\": \"a\", \"n\": 1e400}").find(":1: number overflow"),
            std::string::npos);
  EXPECT_NE(refuse("{\"text\": \"a\", \"text\": \"b\"}").find(":1: the key \"text\" stands twice"),
            std::string::npos);
  EXPECT_NE(refuse("{\"text\": \"a\", \"x\": [{\"k\": 1, \"k\": 1}]}").find("\"k\" stands twice"),
            std::string::npos);
  EXPECT_NE(refuse(std::string(100000, '[')).find(":1:129: JSON nested deeper than 128"),
            std::string::npos);
  EXPECT_NE(refuse("[1]").find(":1: a line is array, expected one JSON object"), std::string::npos);
  EXPECT_NE(refuse("{\"text\": 1}").find("`text` is number, expected a text"), std::string::npos);
  EXPECT_NE(refuse("{\"text\": null}").find("none of `prompt`, `text`"), std::string::npos);
  EXPECT_NE(refuse("{\"text\": \"a\", \"prompt\": \"b\"}").find("both `prompt` and `text`"),
            std::string::npos);
  EXPECT_NE(refuse("{\"input_ids\": [1, -2]}").find("-2, expected a token id"), std::string::npos);
  EXPECT_NE(refuse("{\"input_ids\": [2147483648]}").find("2147483648, expected a token id"),
            std::string::npos);
  EXPECT_NE(refuse("{\"input_ids\": [1.5]}").find("1.5, expected a token id"), std::string::npos);
  EXPECT_NE(refuse("{\"input_ids\": [18446744073709551616]}").find("expected a token id"),
            std::string::npos);
  EXPECT_NE(refuse("{\"input_ids\": [true]}").find("true, expected a token id"), std::string::npos);
  EXPECT_NE(refuse("{\"input_ids\": \"1\"}").find("no list of token ids"), std::string::npos);
  EXPECT_NE(refuse("{\"text\": \"a\", \"add_generation_prompt\": 1}")
                .find("is number, expected true or false"),
            std::string::npos);
  EXPECT_NE(refuse("{\"text\": \"a\"}\r\n\r\n{\"text\": \"b\"").find(":3:13: not JSON"),
            std::string::npos)
      << "cut short";
  EXPECT_NE(refuse("{\"text\": \"a\"}\r\r\n{}").find(":2: none of"), std::string::npos);
  EXPECT_NE(refuse("{\"text\": \"a\"} {}").find(":1:15: not JSON"), std::string::npos);
  EXPECT_NE(refuse("{\"messages\": [{\"role\": 1, \"content\": \"a\"}]}")
                .find("messages[0].role is number"),
            std::string::npos);
  EXPECT_NE(refuse("{\"messages\": [\"hi\"]}").find("messages[0] is string, expected an object"),
            std::string::npos);
  EXPECT_NE(refuse("{\"messages\": []}").find("an empty list"), std::string::npos);
  EXPECT_NE(refuse("{\"messages\": [{\"role\": \"user\"}]}").find("messages[0] has no `content`"),
            std::string::npos);
  EXPECT_NE(refuse("{\"messages\": [{\"role\": \"user\", \"content\": [{}]}]}")
                .find("messages[0].content[0] has no `text`"),
            std::string::npos);
  EXPECT_NE(refuse("{\"messages\": \"x\"}").find("expected a list of messages"), std::string::npos);
}

TEST_F(Jsonl, TenMegabytesAreALineAndALimitHolds) {
  const std::string big(10'000'000, 'x');
  EXPECT_EQ(read("{\"text\": \"" + big + "\"}\n")[0].second.size(), big.size() + 12);
  EXPECT_NE(refuse("{}\n" + std::string((64 << 20) + 1, ' ')).find(":1: none of"),
            std::string::npos);
  EXPECT_NE(refuse("{\"text\": \"\"}\n" + std::string((64 << 20) + 1, ' '))
                .find(":2: the line is longer than 64 MiB"),
            std::string::npos);
}

TEST_F(Jsonl, NotAFile) {
  const auto message = [&](const std::filesystem::path& path) {
    return test::error_of(ExitCode::input_missing, [&] { JsonlReader reader(path); });
  };
  EXPECT_NE(message(folder_.path() / "none.jsonl").find("no such file"), std::string::npos);
  EXPECT_NE(message(folder_.path()).find("is a folder"), std::string::npos);
  const auto fifo = folder_.path() / "pipe";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_NE(message(fifo).find("is a pipe"), std::string::npos);
}

TEST_F(Jsonl, AFileThatGrowsIsRefused) {
  const auto file = folder_.write("data.jsonl", "{}\n");
  JsonlReader reader(file);
  EXPECT_TRUE(reader.next());
  std::ofstream(file, std::ios::app) << "{}\n";
  const auto message = test::error_of(ExitCode::bad_data, [&] {
    while (reader.next()) {}
  });
  EXPECT_NE(message.find("changed while it was read"), std::string::npos);
}

TEST(JsonObject, ReadsBackByAnotherParser) {
  const std::array<int32_t, 3> ids{1, -2, 3};
  const std::array<float, 3> log_probs{-0.1f, 0.0f, std::numeric_limits<float>::infinity()};
  std::string text = "q\"\\\n\t\r\x01 \xC3\xA9\xF0\x9F\x98\x80";
  text += '\0';
  const auto line = JsonObject()
                        .add("text", text)
                        .add("n", 5)
                        .add("big", int64_t{1} << 60)
                        .add("x", 0.1)
                        .add("nan", NAN)
                        .add("ok", true)
                        .add("ids", std::span<const int32_t>(ids))
                        .add("log_probs", std::span<const float>(log_probs))
                        .add_json("extra", "{\"a\": [1]}")
                        .add("bad",
                             "a\xFF"
                             "b")
                        .str();
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto parsed = nlohmann::json::parse(line);
  EXPECT_EQ(parsed["text"], text);
  EXPECT_EQ(parsed["n"], 5);
  EXPECT_EQ(parsed["big"], int64_t{1} << 60);
  EXPECT_EQ(parsed["x"], 0.1);
  EXPECT_TRUE(parsed["nan"].is_null());
  EXPECT_EQ(parsed["ok"], true);
  EXPECT_EQ(parsed["ids"], (nlohmann::json{1, -2, 3}));
  EXPECT_EQ(parsed["log_probs"][0].get<float>(), -0.1f);
  EXPECT_TRUE(parsed["log_probs"][2].is_null());
  EXPECT_EQ(parsed["extra"]["a"][0], 1);
  EXPECT_EQ(parsed["bad"],
            "a\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(JsonObject().str(), "{}");
}

}  // namespace
}  // namespace trireme::data
