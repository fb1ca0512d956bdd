#include "trireme/text/tokenizer.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "support/text_files.hpp"

namespace trireme::text {
namespace {

using nlohmann::json;

const char* const kinds[] = {"bytelevel", "digits_bytelevel", "llama3", "qwen2_nfc"};

// The parts that a GGUF file of the same tokenizer would have.
TokenizerParts parts_of(const std::string& kind, const std::string& pre_tokenizer) {
  const json file =
      json::parse(test::read_text(test::parity_folder() / "tokenizers" / kind / "tokenizer.json"));
  TokenizerParts parts;
  parts.source = "model.gguf";
  parts.pre_tokenizer = pre_tokenizer;
  const Tokenizer tokenizer = test::load_tokenizer(kind);
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id)
    parts.tokens.push_back(tokenizer.id_to_token(id).value_or("[PAD" + std::to_string(id) + "]"));
  parts.types.assign(parts.tokens.size(), 1);
  for (const json& token : file["added_tokens"])
    parts.types[token["id"].get<size_t>()] = token["special"].get<bool>() ? 3 : 4;
  for (const json& merge : file["model"]["merges"])
    parts.merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  parts.bos = tokenizer.bos_id();
  parts.eos = tokenizer.eos_id();
  parts.chat_template = "{{ messages[0].content }}";
  return parts;
}

std::string random_text(std::mt19937& random, size_t length) {
  static const std::vector<std::string> bits{
      "a",      "B",      "the",    " ",      "  ",         "\n",     "\r\n",    "\t",
      "1",      "23",     "'s",     "'LL",    "!?",         "\u00e9", "e\u0301", "\u65e5",
      "\u05d0", "\u00a0", "\u200d", "\u180e", "\U0001F600", "<|",     "_",       "\u0661"};
  std::string text;
  for (size_t i = 0; i < length; ++i) text += bits[random() % bits.size()];
  return text;
}

TEST(Tokenizer, DecodeOfEncodeIsTheText) {
  std::mt19937 random(1);
  for (const std::string kind :
       {"bytelevel", "digits_bytelevel", "llama3"}) {  // qwen2's NFC changes texts
    const Tokenizer tokenizer = test::load_tokenizer(kind);
    for (int i = 0; i < 500; ++i) {
      const std::string text = random_text(random, random() % 40);
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
    }
  }
}

TEST(Tokenizer, StreamsOfRandomIdsEqualTheWhole) {
  std::mt19937 random(2);
  for (const char* kind : kinds) {
    const Tokenizer tokenizer = test::load_tokenizer(kind);
    for (const Skip skip : {Skip::nothing, Skip::special}) {
      StreamingDecoder stream(tokenizer, skip);
      for (int i = 0; i < 500; ++i) {
        std::vector<TokenId> ids(random() % 30);
        for (TokenId& id : ids) id = static_cast<TokenId>(random() % (tokenizer.vocab_size() + 3));
        if (i % 2) {
          for (TokenId& id : ids) id = static_cast<TokenId>(random() % 256);  // mostly broken UTF-8
        }
        std::string pieces;
        for (const TokenId id : ids) pieces += stream.push(id);
        EXPECT_EQ(pieces + stream.finish(), tokenizer.decode(ids, skip));
      }
    }
  }
}

TEST(Tokenizer, StreamHoldsBackWhatMayBecomeACharacter) {
  const Tokenizer tokenizer = Tokenizer::load(test::source_folder() / "inputs/tutorial/tokenizer");
  StreamingDecoder stream(tokenizer);
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push(0x9F), "");
  EXPECT_EQ(stream.push(0x98), "");
  EXPECT_EQ(stream.push(0x80), "\U0001F600");
  EXPECT_EQ(stream.push(0xE2), "");
  EXPECT_EQ(stream.push('a'), "\uFFFDa");
  EXPECT_EQ(stream.push(0xC3), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.push('b'), "b");
}

TEST(Tokenizer, TextMustBeUtf8) {
  const auto message =
      test::error_of(ExitCode::bad_data, [] { test::load_tokenizer("llama3").encode("ab\xFF"); });
  EXPECT_NE(message.find("byte 2"), std::string::npos);
}

TEST(Tokenizer, IdsOutsideTheVocabularyDecodeToNothing) {
  const Tokenizer tokenizer = test::load_tokenizer("llama3");
  const std::vector<TokenId> ids{-1, tokenizer.vocab_size(), 1 << 30};
  EXPECT_EQ(tokenizer.decode(ids), "");
  EXPECT_FALSE(tokenizer.id_to_token(-1));
  EXPECT_FALSE(tokenizer.token_to_id("no such token"));
}

TEST(Tokenizer, Utf8IsPutTogetherAcrossLongWords) {
  const Tokenizer tokenizer = test::load_tokenizer("bytelevel");
  for (const std::string& unit : {std::string("a"), std::string(" "), std::string("\n"),
                                  std::string("\u65e5"), std::string("x1!")}) {
    std::string text;
    for (int i = 0; i < 200000; ++i) text += unit;
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(Tokenizer, EndIdsComeFromBothFiles) {
  test::TemporaryFolder folder;
  const auto from = test::parity_folder() / "tokenizers/llama3";
  folder.write("tokenizer.json", test::read_text(from / "tokenizer.json"));
  folder.write("config.json", R"({"eos_token_id": 1957})");
  folder.write("special_tokens_map.json",
               R"({"eos_token": {"content": "<|eot_id|>"}, "pad_token": "<|pad|>"})");
  const Tokenizer first = Tokenizer::load(folder.path());
  EXPECT_EQ(first.eos_id(), 1958);
  EXPECT_EQ(first.pad_id(), 1959);
  EXPECT_FALSE(first.bos_id());
  EXPECT_EQ(std::vector<TokenId>(first.eos_ids().begin(), first.eos_ids().end()),
            (std::vector<TokenId>{1957, 1958}));
  folder.write("generation_config.json", R"({"eos_token_id": [1955, 1958]})");
  const Tokenizer second = Tokenizer::load(folder.path());
  EXPECT_EQ(std::vector<TokenId>(second.eos_ids().begin(), second.eos_ids().end()),
            (std::vector<TokenId>{1955, 1958}));
}

TEST(Tokenizer, SideFilesMakeTokensSpecial) {
  test::TemporaryFolder folder;
  const auto from = test::parity_folder() / "tokenizers/llama3";
  json file = json::parse(test::read_text(from / "tokenizer.json"));
  file["model"]["vocab"]["<extra>"] = 1966;
  folder.write("tokenizer.json", file.dump());
  EXPECT_NE(Tokenizer::load(folder.path()).encode("a<extra>b").size(), 3u);
  folder.write(
      "tokenizer_config.json",
      R"({"additional_special_tokens": ["<extra>"], "added_tokens_decoder": {"1967": {"content": "<more>", "special": false}}})");
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  const auto ids = tokenizer.encode("a<extra>b<more>");
  ASSERT_EQ(ids.size(), 4u);
  EXPECT_EQ(ids[1], 1966);
  EXPECT_EQ(ids[3], 1967);
  EXPECT_EQ(tokenizer.decode(ids, Skip::special), "ab<more>");
}

// SmolLM2's vocabulary has no token for some control characters; HF tokenizers 0.22 gave the ids
// below.
TEST(Tokenizer, BytesWithoutATokenAreDroppedOrUnknown) {
  test::TemporaryFolder folder;
  json file =
      json::parse(test::read_text(test::parity_folder() / "tokenizers/bytelevel/tokenizer.json"));
  file["model"]["vocab"].erase("\u0104");
  const auto encode = [&](const std::string& text) {
    folder.write("tokenizer.json", file.dump());
    return Tokenizer::load(folder.path()).encode(text);
  };
  const std::string text = "in\x04\x04ou \x04";
  EXPECT_EQ(encode(text), (std::vector<TokenId>{257, 258, 220}));
  file["model"]["unk_token"] = "!";
  EXPECT_EQ(encode(text), (std::vector<TokenId>{257, 0, 0, 258, 220, 0}));
  file["model"]["fuse_unk"] = true;
  EXPECT_EQ(encode(text), (std::vector<TokenId>{257, 0, 258, 220, 0}));
}

TEST(TokenizerParts, GiveTheIdsOfTheOriginal) {
  const std::vector<std::pair<std::string, std::string>> families{{"bytelevel", "gpt-2"},
                                                                  {"digits_bytelevel", "smollm"},
                                                                  {"llama3", "llama-bpe"},
                                                                  {"qwen2_nfc", "qwen2"}};
  for (const auto& [kind, pre_tokenizer] : families) {
    const Tokenizer original = test::load_tokenizer(kind);
    const TokenizerParts parts = parts_of(kind, pre_tokenizer);
    const Tokenizer rebuilt = Tokenizer::from_parts(parts);
    test::TemporaryFolder folder;
    write_tokenizer(parts, folder.path());
    const Tokenizer exported = Tokenizer::load(folder.path());
    std::mt19937 random(3);
    for (int i = 0; i < 300; ++i) {
      // Strip and single-word flags of added tokens are not in a GGUF file, so the texts have no
      // such tokens.
      const std::string text =
          random_text(random, random() % 40) + "<tool_call>" + random_text(random, 3);
      EXPECT_EQ(rebuilt.encode(text, SpecialTokens::added),
                original.encode(text, SpecialTokens::added))
          << kind << text;
      EXPECT_EQ(exported.encode(text, SpecialTokens::added),
                original.encode(text, SpecialTokens::added))
          << kind << text;
    }
    EXPECT_EQ(exported.eos_id(), original.eos_id());
    EXPECT_EQ(exported.bos_id(), original.bos_id());
    const std::vector<Message> messages{{"user", "hi", ""}};
    EXPECT_EQ(exported.render_chat(messages, GenerationPrompt::with), "hi");
  }
}

TEST(TokenizerParts, Refusals) {
  const TokenizerParts good = parts_of("bytelevel", "gpt-2");
  const auto refuse = [&](const std::string& expected,
                          const std::function<void(TokenizerParts&)>& change) {
    TokenizerParts parts = good;
    change(parts);
    const auto message = test::error_of(ExitCode::bad_data, [&] { Tokenizer::from_parts(parts); });
    EXPECT_NE(message.find(expected), std::string::npos) << message;
    EXPECT_EQ(message.find("model.gguf"), 0u) << message;
  };
  refuse("tokenizer.ggml.pre = \"deepseek-llm\"",
         [](auto& p) { p.pre_tokenizer = "deepseek-llm"; });
  refuse("tokenizer.ggml.model = \"llama\"", [](auto& p) { p.model = "llama"; });
  refuse("tokens is missing", [](auto& p) { p.tokens.clear(); });
  refuse("token_type has 1 entries", [](auto& p) { p.types = {1}; });
  refuse("eos_token_id 1000000 is outside", [](auto& p) { p.eos = 1000000; });
  refuse("stands twice", [](auto& p) { p.tokens[7] = p.tokens[8]; });
  refuse("not UTF-8", [](auto& p) { p.tokens[1900] = "\xFF"; });
  refuse("needs the token", [](auto& p) { p.merges.push_back("zz qq"); });
}

TEST(TutorialTokenizer, IsBytes) {
  const Tokenizer tokenizer = Tokenizer::load(test::source_folder() / "inputs/tutorial/tokenizer");
  EXPECT_EQ(tokenizer.vocab_size(), 259);
  EXPECT_EQ(tokenizer.encode("12+7=\u00e9 <|eos|>"),
            (std::vector<TokenId>{49, 50, 43, 55, 61, 195, 169, 32, 258}));
  EXPECT_EQ(tokenizer.encode("a", SpecialTokens::added), (std::vector<TokenId>{257, 97}));
  EXPECT_EQ(tokenizer.pad_id(), 256);
  EXPECT_EQ(tokenizer.eos_id(), 258);
}

}  // namespace
}  // namespace trireme::text
