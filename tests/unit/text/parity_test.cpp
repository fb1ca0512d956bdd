// Ids, texts and rendered conversations against those of HF `tokenizers` and `transformers`, for
// every tokenizer of the folder, and a report of what differs first.
#include <gtest/gtest.h>

#include <algorithm>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/text_files.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::text {
namespace {

using nlohmann::json;
using Ids = std::vector<TokenId>;

std::vector<std::string> kinds() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(test::parity_folder() / "tokenizers")) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<json> read_lines(const std::filesystem::path& file) {
  std::vector<json> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

class Parity : public testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder() const { return test::parity_folder() / "tokenizers" / GetParam(); }
  Tokenizer tokenizer_ = Tokenizer::load(folder());
};

TEST_P(Parity, Encode) {
  const auto lines = read_lines(folder() / "encode.jsonl");
  ASSERT_GT(lines.size(), 0u);
  for (const json& line : lines) {
    const auto text = line["text"].get<std::string>();
    const auto ids = line["ids"].get<Ids>();
    EXPECT_EQ(tokenizer_.encode(text), ids) << line;
    const auto with_special =
        line.contains("ids_with_special") ? line["ids_with_special"].get<Ids>() : ids;
    EXPECT_EQ(tokenizer_.encode(text, SpecialTokens::added), with_special) << line;
    const auto decoded = line["decoded"].get<std::string>();
    EXPECT_EQ(tokenizer_.decode(ids), decoded) << line;
    const auto skipped = line.contains("decoded_skip_special")
                             ? line["decoded_skip_special"].get<std::string>()
                             : decoded;
    EXPECT_EQ(tokenizer_.decode(ids, Skip::special), skipped) << line;
  }
}

TEST_P(Parity, DecodeAtOnceAndAsStream) {
  const auto lines = read_lines(folder() / "decode.jsonl");
  ASSERT_GT(lines.size(), 0u);
  for (const json& line : lines) {
    const auto ids = line["ids"].get<Ids>();
    const auto decoded = line["decoded"].get<std::string>();
    EXPECT_EQ(tokenizer_.decode(ids), decoded) << line;
    StreamingDecoder stream(tokenizer_, Skip::nothing);
    std::string pieces;
    for (const TokenId id : ids) pieces += stream.push(id);
    EXPECT_EQ(pieces + stream.finish(), decoded) << line;
  }
}

TEST_P(Parity, Chat) {
  if (!std::filesystem::exists(folder() / "chat.jsonl"))
    GTEST_SKIP() << GetParam() << " has no chat template";
  const auto lines = read_lines(folder() / "chat.jsonl");
  ASSERT_GT(lines.size(), 0u);
  for (const json& line : lines) {
    std::vector<Message> messages;
    for (const json& message : line["messages"])
      messages.push_back({message["role"], message["content"], ""});
    const auto prompt = line["add_generation_prompt"].get<bool>() ? GenerationPrompt::with
                                                                  : GenerationPrompt::without;
    EXPECT_EQ(tokenizer_.render_chat(messages, prompt), line["text"].get<std::string>()) << line;
    EXPECT_EQ(tokenizer_.encode_chat(messages, prompt), line["ids"].get<Ids>()) << line;
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Parity, testing::ValuesIn(kinds()),
                         [](const auto& tokenizer) { return tokenizer.param; });

}  // namespace
}  // namespace trireme::text
