// JSON from files: what is refused before anything is built of it, with the place of the byte.
#include "trireme/text/json_text.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/text_files.hpp"

namespace trireme::text {
namespace {

std::string refused(const std::string& text, int64_t line = 1) {
  return test::error_of(ExitCode::bad_data, [&] { parse_record(text, {"a.jsonl", line}); });
}

TEST(JsonText, PlacesAreLinesAndBytesOfTheFile) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"x", "a.jsonl:7:1: not JSON"},
      {"{\"a\": 1,}", "a.jsonl:7:9: not JSON"},
      {"{\n \"a\": 1\n \"b\": 2}", "a.jsonl:9:"},
      {"", "a.jsonl:7:1: not JSON"},
      {"{} {}", "a.jsonl:7:4: not JSON"},
      {"{\"a\": \"\xC3\xA9\", \xFF}", "a.jsonl:7:13: not UTF-8"},
      {"{\"a\": \"\xED\xA0\x80\"}", "a.jsonl:7:8: not UTF-8"},
      {"\n\n{\"a\": \"cut \xF0\x9F\x98", "a.jsonl:9:12: not UTF-8"},
      {"{\"a\": \"\x01\"}", "a.jsonl:7:8: not JSON"},
      {"[NaN]", "a.jsonl:7:2: not JSON"},
  };
  for (const auto& [text, expected] : cases)
    EXPECT_EQ(refused(text, 7).substr(0, expected.size()), expected) << text;
}

TEST(JsonText, NumbersThatNoDoubleHoldsAreRefused) {
  EXPECT_NE(refused("{\"a\": 1e999}", 3).find("a.jsonl:3: "), std::string::npos);
  EXPECT_NE(refused("[-1e999]").find("-1e999"), std::string::npos);
  EXPECT_EQ(parse_record("[1e308, -0.0, 1e-400]", {"a", 1}).size(), 3u);
  EXPECT_EQ(parse_json("18446744073709551615", {"a", 1}).get<uint64_t>(), UINT64_MAX);
}

TEST(JsonText, ADepthOf128IsTheLast) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_NO_THROW(parse_json(nested(128), {"a", 1}));
  EXPECT_NE(test::error_of(ExitCode::bad_data,
                           [&] {
                             parse_json("\n" + nested(129), {"a", 4});
                           })
                .find("a:5:129: JSON nested deeper than 128"),
            std::string::npos);
  // neither brackets inside of texts nor those that are closed again count
  EXPECT_NO_THROW(
      parse_json("[\"" + std::string(500, '[') + "\\\"" + std::string(500, '{') + "\"]", {"a", 1}));
  std::string wide = "[";
  for (int i = 0; i < 300; ++i) wide += "[],";
  EXPECT_NO_THROW(parse_json(wide + "[]]", {"a", 1}));
}

TEST(JsonText, AKeyTwiceInOneObjectIsRefusedInRecordsOnly) {
  EXPECT_NE(refused(R"({"a": 1, "b": 2, "a": 3})", 5).find("a.jsonl:5: the key \"a\" stands twice"),
            std::string::npos);
  EXPECT_NE(refused(R"([{"x": {"a": 1, "\u0061": 2}}])").find("the key \"a\" stands twice"),
            std::string::npos)
      << "an escape is the same key";
  EXPECT_EQ(parse_record(R"({"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 2}]})", {"a", 1}).size(),
            2u)
      << "objects in one another have keys of their own";
  EXPECT_EQ(parse_json(R"({"a": 1, "a": 3})", {"a", 1})["a"], 3)
      << "as Python reads Hugging Face's files";
}

TEST(JsonText, RecordsKeepTheOrderOfTheirKeys) {
  EXPECT_EQ(parse_record(R"({"z": 1, "a": {"y": 1, "b": 2}})", {"a", 1}).dump(),
            R"({"z":1,"a":{"y":1,"b":2}})");
}

TEST(JsonText, FilesMayBeginWithAByteOrderMarkAndHaveALimit) {
  const test::TemporaryFolder folder;
  const std::string file = folder.write("a.json", "\xEF\xBB\xBF{\"a\": 1}");
  EXPECT_EQ(read_json_file(file, 11)["a"], 1);
  EXPECT_THROW(read_json_file(file, 10), UserError);
  EXPECT_THROW(read_json_file((folder.path() / "none.json").string(), 100), UserError);
  EXPECT_NE(test::error_of(ExitCode::bad_data,
                           [&] {
                             parse_json("\xEF\xBB\xBF[", {"b", 1});
                           })
                .find("b:1:"),
            std::string::npos);
}

// Python's json keeps the digits of integers of any size.
TEST(ExactNumbers, KeepDigitsThatADoubleWouldLose) {
  const auto dumped = [](const char* written) {
    return dump(parse_record(written, {"a", 1}, Numbers::exact));
  };
  for (const char* same :
       {"18446744073709551615", "18446744073709551616", "-9223372036854775808",
        "-9223372036854775809", "123456789012345678901234567890", "0.12345678901234567891",
        "[1,18446744073709551616,{\"a\":-18446744073709551617}]",
        "{\"a\":18446744073709551616,\"b\":\"18446744073709551616\"}", "[[],{},\"\\n\",null,true]"})
    EXPECT_EQ(dumped(same), same);
  EXPECT_EQ(dumped("[2.50, 1e3, -0.0, 0.1]"), "[2.5,1000.0,-0.0,0.1]") << "doubles as before";
  EXPECT_EQ(dumped("1e30"), "1e+30") << "a whole double is exact";
  EXPECT_EQ(kind_of(parse_record("18446744073709551616", {"a", 1}, Numbers::exact)), "number");
  EXPECT_EQ(text_or_json("a"), "a");
  EXPECT_EQ(parse_record("18446744073709551616", {"a", 1}).dump(), "1.8446744073709552e+19");
}

}  // namespace
}  // namespace trireme::text
