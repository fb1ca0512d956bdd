#include "trireme/base/foreign_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace trireme::base {
namespace {

using namespace std::string_literals;
using testing::AllOf;
using testing::HasSubstr;

TEST(ForeignFile, NamesWhatItIsWithTheCommandThatHelps) {
  const std::vector<std::tuple<std::string, std::string, std::string>> cases{
      {"\x1f\x8b\x08\0\0\0\0\0"s, "gzip", "`gzip -dc d/p.jsonl > NEW`"},
      {"\x28\xb5\x2f\xfd\x24"s, "zstd", "`zstd -dc d/p.jsonl > NEW`"},
      {"BZh91AY", "bzip2", "bzip2 -dc"},
      {"\xfd"
       "7zXZ\0\0"s,
       "xz", "xz -dc"},
      {"\x04\x22\x4d\x18", "lz4", "lz4 -dc"},
      {"PK\x03\x04\x14", "zip", "unzip -p"},
      {"PK\x05\x06\0\0"s, "a zip archive without a file", "look for another"},
      {"\x53\x2a\x4d\x18\x04\0\0\0"s, "zstd", "zstd -dc"},
      {"\x5d\0\0\x80\0"s, "lzma", "--format=lzma d/p.jsonl"},
      {"\x1f\x9d\x90", "compress", "gzip -dc"},
      {"7z\xbc\xaf\x27\x1c", "7z", "7z x -so"},
      {"Rar!\x1a\x07\x01", "rar", "unrar p"},
      {"p.jsonl" + std::string(250, '\0') + "ustar", "a tar archive", "tar -xf d/p.jsonl"},
      {"SQLite format 3\0"s, "an SQLite database", "JSON lines"},
      {"PARE\x15\x04", "an encrypted Parquet file", "JSON lines"},
      {"{\0\"\0p\0"s, "UTF-16LE", "iconv -f UTF-16LE"},
      {"\0{\0\"\0p"s, "UTF-16BE", "iconv -f UTF-16BE"},
      {"\xff\xfe\0\0{\0\0\0"s, "UTF-32", "iconv -f UTF-32"},
      {"\x93NUMPY\x01\0"s, "a binary file", "byte 8 is zero"},
      {"<!-- an error --><html>", "an HTML page", "download the file again"},
      {"prompt,label\n1+1=,2\n", "a table (CSV)", "pandas.read_csv(\"d/p.jsonl\")"},
      {"\"prompt\"\tlabel\n", "a table (TSV)", "sep=\"\\t\""},
      {"{'prompt': '1+1='}\n", "Python's form", "ast.literal_eval"},
      {"PAR1\x15\x04", "a Parquet file", "pandas.read_parquet(\"d/p.jsonl\")"},
      {"ARROW1\0\0"s, "an Arrow file", "read_feather"},
      {"\xff\xff\xff\xff\x70\x01\0\0\x10"s, "an Arrow stream", "datasets.Dataset.from_file"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0", "a pointer of Git LFS",
       "`cd d && git lfs pull`"},
      {"/annex/objects/SHA256E-s12--aa\n", "a pointer of git-annex", "git annex get p.jsonl"},
      {"outs:\n- md5: 12\n  path: p.jsonl\n", "a pointer of DVC", "dvc pull p.jsonl"},
      {"\n <!DOCTYPE html>\n<html>", "an HTML page", "download the file again"},
      {"<HTML><head>", "an HTML page", "download the file again"},
      {"<Error><Code>AccessDenied</Code>", "an XML page", "download the file again"},
      {"<?xml version=\"1.0\"?><Error>", "an XML page", "download the file again"},
      {"\xff\xfe{\0\"\0"s, "UTF-16", "iconv -f UTF-16 -t UTF-8 d/p.jsonl"},
      {"[\n  {\n", "one JSON array", "json.load(sys.stdin)]' < d/p.jsonl > NEW.jsonl"},
      {"[{\"prompt\": 1}, {}]", "one JSON array", "json.load"},
      {"\xEF\xBB\xBF[ \r\n 1", "one JSON array", "json.load"},
      {"{\n  \"data\": [\n", "one JSON object over several lines", "json.dumps"},
  };
  for (const auto& [first, what, help] : cases) {
    EXPECT_THAT(foreign_file(first, "d/p.jsonl", Expected::json_lines),
                AllOf(HasSubstr(what), HasSubstr(help)))
        << first;
  }
}

TEST(ForeignFile, JsonLinesAreNotForeign) {
  for (const std::string& good :
       {"{\"prompt\": \"a\"}\n"s, "{}\n{}"s, ""s, "\n\n{}"s, "\xEF\xBB\xBF{}"s, "[]"s, "[1]\n"s,
        "{ \"a\":\n"s, "version 2\n"s, "outs: 1\n"s, "{\"'\": \"a,b\"}"s, "a: b, c"s, "null"s,
        "{}\n\0\n"s})
    EXPECT_EQ(foreign_file(good, "p.jsonl", Expected::json_lines), "") << good;
}

TEST(ForeignFile, JsonFilesMayHaveAnyForm) {
  EXPECT_EQ(foreign_file("[\n{\n", "a.json", Expected::json), "");
  EXPECT_EQ(foreign_file("{\n", "a.json", Expected::json), "");
  EXPECT_THAT(foreign_file("version https://git-lfs.github.com/spec/v1\n", "tokenizer.json",
                           Expected::json),
              HasSubstr("cd . && git lfs pull"));
}

TEST(ForeignFile, TextsAreAnythingButThat) {
  for (const char* good :
       {"{% for m in messages %}", "[a, b]", "a, b\n", "{'a': 1}", "<s>{{ messages }}"})
    EXPECT_EQ(foreign_file(good, "chat_template.jinja", Expected::text), "") << good;
  EXPECT_THAT(foreign_file("version https://git-lfs.github.com/spec/v1\n", "m/chat_template.jinja",
                           Expected::text),
              HasSubstr("cd m && git lfs pull"));
  EXPECT_THAT(foreign_file("<!doctype html>", "chat_template.jinja", Expected::text),
              HasSubstr("an HTML page"));
}

TEST(ForeignFile, Weights) {
  const auto of = [](const std::string& first) {
    return foreign_file(first, "m/model.safetensors", Expected::weights);
  };
  EXPECT_THAT(of("version https://git-lfs.github.com/spec/v1\n"), HasSubstr("git lfs pull"));
  EXPECT_THAT(of("PK\x03\x04"), HasSubstr("a PyTorch file"));
  EXPECT_THAT(of("\x80\x02\x8a\x0a"), HasSubstr("a PyTorch file"));
  EXPECT_THAT(of("\x89HDF\r\n\x1a\n"), HasSubstr("HDF5"));
  EXPECT_THAT(of("GGUF\x03"), HasSubstr(".gguf"));
  EXPECT_THAT(of("{\"error\":\"no access\"}"), HasSubstr("a JSON text"));
  EXPECT_EQ(of("\x40\x01\0\0\0\0\0\0{"s), "");
}

TEST(ForeignFile, NamesAreQuotedForTheShell) {
  EXPECT_EQ(shell_word("a/b-1.jsonl"), "a/b-1.jsonl");
  EXPECT_EQ(shell_word("my data"), "'my data'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_THAT(foreign_file("\x1f\x8b\x08", "my data/p.gz", Expected::json_lines),
              HasSubstr("gzip -dc 'my data/p.gz'"));
}

}  // namespace
}  // namespace trireme::base
