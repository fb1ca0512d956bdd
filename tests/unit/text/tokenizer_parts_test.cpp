// The parts of a tokenizer one by one, on the tutorial's tokenizer, whose ids are bytes: what
// splits a text, what is put around it and what the files beside tokenizer.json say. Expected
// values are made by hand from what Oniguruma and HF's tokenizers document.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "support/text_files.hpp"
#include "text/byte_alphabet.hpp"
#include "text/decoder.hpp"
#include "text/normalizer.hpp"
#include "text/pre_tokenizer.hpp"
#include "trireme/text/tokenizer.hpp"
#include "trireme/text/tokenizer_parts.hpp"
#include "trireme/text/utf8.hpp"

namespace trireme::text {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Ids = std::vector<TokenId>;
using Texts = std::vector<std::string>;

Texts words_of(const json& pre_tokenizer, const std::string& text) {
  const PreTokenizer pieces(pre_tokenizer, "tokenizer.json");
  PreTokenizer::Words words;
  pieces.split("what an earlier text has left", true, words);
  pieces.split(text, true, words);
  return {words.list.begin(), words.list.end()};
}

json byte_level(bool prefix, bool regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", prefix}, {"use_regex", regex}};
}

// `kind`: Regex or String.
json split_by(const std::string& pattern, const std::string& kind = "Regex") {
  const json split{{"type", "Split"},
                   {"pattern", {{kind, pattern}}},
                   {"behavior", "Isolated"},
                   {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", json::array({split, byte_level(false, false)})}};
}

// What reading a part says, "" where it is read.
template <class Part>
std::string problem_of(const json& description) {
  try {
    const Part part(description, "tokenizer.json");
    return "";
  } catch (const UserError& error) { return error.what(); }
}

// What messages and docs/user/models.md list is read, or refused for what it lacks.
TEST(TokenizerParts, ListedTypesAreKnown) {
  const auto is_unknown = HasSubstr("is not known");
  for (const auto name : known_normalizers)
    EXPECT_THAT(problem_of<Normalizer>({{"type", name}}), Not(is_unknown));
  for (const auto name : known_pre_tokenizers)
    EXPECT_THAT(problem_of<PreTokenizer>({{"type", name}, {"behavior", "Isolated"}}),
                Not(is_unknown));
  for (const auto name : known_decoders)
    EXPECT_THAT(problem_of<Decoder>({{"type", name}}), Not(is_unknown));
  for (const auto name : known_split_behaviors)
    EXPECT_EQ(problem_of<PreTokenizer>({{"type", "Punctuation"}, {"behavior", name}}), "");
  for (const auto name : known_prepend_schemes)
    EXPECT_EQ(problem_of<PreTokenizer>(
                  {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", name}}),
              "");
  EXPECT_THAT(problem_of<Normalizer>({{"type", "Nmt"}}), is_unknown);
  EXPECT_THAT(problem_of<PreTokenizer>({{"type", "Nmt"}}), is_unknown);
  EXPECT_THAT(problem_of<Decoder>({{"type", "CTC"}}), is_unknown);
}

// Oniguruma's ^ and $ are those of lines; a line end that ends the text begins no line.
TEST(PreTokenizer, AnchorsAreThoseOfLines) {
  EXPECT_EQ(words_of(split_by("\\s+$"), "a \nb  "), (Texts{"a", " ", "\nb", "  "}));
  EXPECT_EQ(words_of(split_by("^a"), "aa\naa\n"), (Texts{"a", "a\n", "a", "a\n"}));
  EXPECT_EQ(words_of(split_by("^\\n?"), "b\n"), (Texts{"b\n"}));
  EXPECT_EQ(words_of(split_by("b$|^c"), "ab\ncb"), (Texts{"a", "b", "\n", "c", "b"}));
  EXPECT_EQ(words_of(split_by("[^$b]+|\\$\\^"), "a$^b"), (Texts{"a", "$^", "b"}))
      << "neither in a class nor behind a backslash";
}

TEST(PreTokenizer, OptionsThatMeanOtherThingsAreRefused) {
  EXPECT_EQ(words_of(split_by("(?i:ab)|(?-i:c)|(?=d)|(?:e)"), "xABCce"),
            (Texts{"x", "AB", "C", "c", "e"}));
  EXPECT_EQ(words_of(split_by("[(?m]"), "a(b"), (Texts{"a", "(", "b"}));
  EXPECT_EQ(words_of(split_by("a."), "a\nab"), (Texts{"a\n", "ab"})) << "a dot is no line end";
  for (const char* pattern : {"(?m:a.b)", "(?s).", "a(?im)", "(?i-m:a)"}) {
    EXPECT_THAT(test::error_of(ExitCode::bad_data, [&] { words_of(split_by(pattern), ""); }),
                HasSubstr("uses the option (?"))
        << pattern;
  }
}

TEST(PreTokenizer, ATextAsPatternMeansItself) {
  for (const std::string text :
       {"a.b*(c)", "\\d", "^", "$", "|", "[&&]", "{1}+", "\n", " ", "-#~", "\xC3\xA9", "?"}) {
    EXPECT_EQ(words_of(split_by(text, "String"), "x" + text + text + "y"),
              (Texts{"x", text, text, "y"}))
        << text;
    EXPECT_EQ(words_of(split_by(text, "String"), "9"), (Texts{"9"})) << text;
  }
}

TEST(PreTokenizer, DigitsAloneOrInRuns) {
  const auto digits = [](const json& individual) {
    const json first = individual.is_null()
                           ? json{{"type", "Digits"}}
                           : json{{"type", "Digits"}, {"individual_digits", individual}};
    return json{{"type", "Sequence"},
                {"pretokenizers", json::array({first, byte_level(false, false)})}};
  };
  const std::string text = "a12b\u0663\u00BDx";  // \p{N}: an Arabic digit, a half
  EXPECT_EQ(words_of(digits(nullptr), text), (Texts{"a", "12", "b", "\u0663\u00BD", "x"}));
  EXPECT_EQ(words_of(digits(true), text), (Texts{"a", "1", "2", "b", "\u0663", "\u00BD", "x"}));
  EXPECT_THAT(test::error_of(ExitCode::bad_data, [&] { words_of(digits(1), ""); }),
              HasSubstr("pre_tokenizer.individual_digits is number"));
}

TEST(PreTokenizer, ByteLevelSplitsAsGpt2AndPutsABlankInFront) {
  const std::string text = "I'll  go\n\n 12x!? 'S";
  const Texts expected{"I", "'ll", " ", " go", "\n\n", " 12", "x", "!?", " '", "S"};
  EXPECT_EQ(words_of(byte_level(false, true), text), expected);
  Texts with_blank = expected;
  with_blank[0] = " I";
  EXPECT_EQ(words_of({{"type", "ByteLevel"}}, text), with_blank)
      << "both are what a file without the keys means";
  EXPECT_EQ(words_of({{"type", "ByteLevel"}}, " a"), (Texts{" a"})) << "there is one already";
  EXPECT_EQ(
      words_of({{"type", "Sequence"},
                {"pretokenizers", json::array({{{"type", "Digits"}}, byte_level(true, false)})}},
               "a1 b"),
      (Texts{" a", " 1", " b"}));
}

// Whatever a pattern finds, nothing of a text is lost, and no word is empty.
TEST(PreTokenizer, WordsMakeTheText) {
  EXPECT_EQ(words_of(split_by("x*"), "a\u00E9xxb"), (Texts{"a", "\u00E9", "xx", "b"}))
      << "an empty match cuts, between characters only";
  EXPECT_THAT(words_of(split_by("x"), ""), ElementsAre()) << "no empty word";
  const Texts bits{"a", "xx", "\u00E9", "\U0001F600", " ", "\n", "1", "'s"};
  std::mt19937 random(8);
  for (const char* pattern : {"x*", "(?=x)|(?<=\\n)", "$", "^", "a|", "\\p{L}*", "[^a]?"}) {
    for (int round = 0; round < 60; ++round) {
      std::string text, joined;
      for (size_t i = random() % 12; i > 0; --i) text += bits[random() % bits.size()];
      for (const std::string& word : words_of(split_by(pattern), text)) {
        EXPECT_FALSE(word.empty());
        EXPECT_EQ(first_invalid_utf8(word), std::string::npos) << pattern;
        joined += word;
      }
      ASSERT_EQ(joined, text) << pattern;
    }
  }
}

class TokenizerFiles : public testing::Test {
 protected:
  Tokenizer load() const {
    folder_.write("tokenizer.json", file_.dump());
    return Tokenizer::load(folder_.path());
  }
  std::string refused() const {
    return test::error_of(ExitCode::bad_data, [&] { load(); });
  }
  void config(const json& content) const { folder_.write("tokenizer_config.json", content.dump()); }

  json file_ = json::parse(test::read_text(
      test::source_folder() /
      "inputs/tutorial/tokenizer/tokenizer.json"));  // <|pad|> 256, <|bos|> 257, <|eos|> 258
  test::TemporaryFolder folder_;
};

TEST_F(TokenizerFiles, TheTemplateOfThePostProcessorIsPutAround) {
  json& post = file_["post_processor"];
  const json text{{"Sequence", {{"id", "A"}}}}, bos{{"SpecialToken", {{"id", "B"}}}},
      end{{"SpecialToken", {{"id", "E"}}}};
  post["special_tokens"] = {{"B", {{"ids", {257, 256}}}}, {"E", {{"ids", {258}}}}};
  post["single"] = {bos, text, end, end};
  EXPECT_EQ(load().encode("a", SpecialTokens::added), (Ids{257, 256, 'a', 258, 258}));
  EXPECT_EQ(load().encode("", SpecialTokens::added), (Ids{257, 256, 258, 258}));
  EXPECT_EQ(load().encode("a"), Ids{'a'});
  const json one = post;
  file_["post_processor"] = {{"type", "Sequence"}, {"processors", {{{"type", "ByteLevel"}}, one}}};
  EXPECT_EQ(load().encode("a", SpecialTokens::added), (Ids{257, 256, 'a', 258, 258}));
  file_["post_processor"] = nullptr;
  EXPECT_EQ(load().encode("a", SpecialTokens::added), Ids{'a'});
  const auto with = [&](const json& single) {
    file_["post_processor"] = one;
    file_["post_processor"]["single"] = single;
    return refused();
  };
  EXPECT_THAT(with(json::array({bos})), HasSubstr("no place for the text"));
  EXPECT_THAT(with({text, text}), HasSubstr("which is not known"));
  EXPECT_THAT(with({text, {{"SpecialToken", {{"id", "X"}}}}}),
              HasSubstr("post_processor.special_tokens.X is missing"));
  EXPECT_THAT(with({text, {{"SpecialToken", {{"id", 5}}}}}), HasSubstr("has no name"));
}

TEST_F(TokenizerFiles, AddedTokensAreSearchedBeforeOrAfterNormalising) {
  file_["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}};
  const auto add = [&](TokenId id, const std::string& content, bool normalized) {
    file_["added_tokens"].push_back({{"id", id}, {"content", content}, {"normalized", normalized}});
  };
  add(259, "<e\u0301>", true);   // normalised itself
  add(260, "[e\u0301]", false);  // in the text as it is
  const Tokenizer tokenizer = load();
  EXPECT_EQ(tokenizer.encode("<e\u0301><\u00E9>"), (Ids{259, 259}));
  EXPECT_EQ(tokenizer.encode("[e\u0301][\u00E9]"), (Ids{260, '[', 0xC3, 0xA9, ']'}));
  EXPECT_EQ(tokenizer.encode("e\u0301"), (Ids{0xC3, 0xA9})) << "the text is composed";
  EXPECT_EQ(tokenizer.decode(Ids{259}), "<e\u0301>") << "a token decodes as it stands in the file";
  EXPECT_FALSE(tokenizer.is_special(259));
}

TEST_F(TokenizerFiles, EndTokensInAllForms) {
  const auto ends = [&](const std::string& generation) {
    folder_.write("generation_config.json", generation);
    const Tokenizer tokenizer = load();
    return Ids(tokenizer.eos_ids().begin(), tokenizer.eos_ids().end());
  };
  EXPECT_THAT(ends("{}"), IsEmpty());
  EXPECT_THAT(ends(R"({"eos_token_id": null})"), IsEmpty());
  EXPECT_THAT(ends(R"({"eos_token_id": []})"), IsEmpty());
  EXPECT_EQ(ends(R"({"eos_token_id": 258})"), Ids{258});
  EXPECT_EQ(ends(R"({"eos_token_id": [258, 3, 258, 0]})"), (Ids{0, 3, 258}));
  config({{"eos_token", {{"content", "<|eos|>"}, {"lstrip", false}}}, {"pad_token", nullptr}});
  folder_.write("special_tokens_map.json", R"({"pad_token": "<|pad|>", "eos_token": "<|bos|>"})");
  EXPECT_EQ(ends(R"({"eos_token_id": [3]})"), (Ids{3, 258}));
  EXPECT_EQ(load().pad_id(), 256) << "null in the one file leaves it to the other";
  for (const char* wrong : {"259", "-1", "18446744073709551615", "[258, 1000000000000]"}) {
    folder_.write("generation_config.json", std::string(R"({"eos_token_id": )") + wrong + "}");
    EXPECT_THAT(refused(), testing::AllOf(HasSubstr("generation_config.json: eos_token_id"),
                                          HasSubstr("outside the vocabulary of 259 tokens")))
        << wrong;
  }
  folder_.write("generation_config.json", R"({"eos_token_id": [true]})");
  EXPECT_THAT(refused(), HasSubstr("expected a whole number"));
}

TEST_F(TokenizerFiles, WhereTheChatTemplateComesFrom) {
  const std::vector<Message> messages{{"user", "hi", ""}};
  const auto rendered = [&] { return load().render_chat(messages, GenerationPrompt::without); };
  config({{"chat_template",
           {{{"name", "rag"}, {"template", "R"}},
            {{"name", "default"}, {"template", "{{ eos_token }}{{ pad_token is defined }}"}}}},
          {"eos_token", "<|eos|>"}});
  EXPECT_EQ(rendered(), "<|eos|>False");
  EXPECT_EQ(load().encode_chat(messages, GenerationPrompt::without),
            (Ids{258, 'F', 'a', 'l', 's', 'e'}));
  config({{"chat_template", {{{"name", "rag"}, {"template", "R"}}}}});
  EXPECT_FALSE(load().has_chat_template());
  EXPECT_THAT(test::error_of(ExitCode::bad_data, rendered),
              HasSubstr("tokenizer_config.json: chat_template is neither"));
  folder_.write("chat_template.jinja", "F{{ messages[0].content }}\n");
  EXPECT_EQ(rendered(), "Fhi") << "the file comes first";
  folder_.write("chat_template.jinja", "a\n{{ b");
  EXPECT_THAT(
      test::error_of(ExitCode::bad_data, rendered),
      HasSubstr("chat_template.jinja: chat template, line 2, column 1: a tag that does not end"));
}

// A vocabulary of bytes and five more as a GGUF file has it.
TokenizerParts parts_of_bytes() {
  TokenizerParts parts;
  parts.source = "model.gguf";
  parts.pre_tokenizer = "gpt-2";
  for (int byte = 0; byte < 256; ++byte)
    append_utf8(parts.tokens.emplace_back(), byte_to_char(static_cast<uint8_t>(byte)));
  for (const char* text : {"<bos>", "<eos>", "<user>", "<unk>", "ab"})
    parts.tokens.emplace_back(text);
  parts.types.assign(256, 1);
  for (const int32_t type : {3, 1, 4, 2, 1}) parts.types.push_back(type);
  parts.merges = {"a b"};
  return parts;
}

TEST(TokenizerParts, WhatIsPutAroundATextAndWhatIsSpecial) {
  TokenizerParts parts = parts_of_bytes();
  const auto encoded = [&] {
    return Tokenizer::from_parts(parts).encode("ab", SpecialTokens::added);
  };
  parts.add_bos = parts.add_eos = true;
  EXPECT_EQ(encoded(), Ids{260}) << "no token is named";
  parts.bos = 256;
  parts.eos = 257;
  EXPECT_EQ(encoded(), (Ids{256, 260, 257}));
  parts.add_eos.reset();
  EXPECT_EQ(encoded(), (Ids{256, 260}));
  parts.add_bos.reset();
  EXPECT_EQ(encoded(), Ids{260}) << "gpt-2 puts nothing in front";
  parts.pre_tokenizer = "llama-bpe";
  EXPECT_EQ(encoded(), (Ids{256, 260})) << "Llama 3 does";
  parts.add_bos = false;
  EXPECT_EQ(encoded(), Ids{260});
  const Tokenizer tokenizer = Tokenizer::from_parts(parts);
  EXPECT_EQ(tokenizer.encode("<bos>x<user><unk><eos>"), (Ids{256, 'x', 258, 259, 257}));
  EXPECT_EQ(tokenizer.decode(Ids{256, 'x', 258, 259, 257}, Skip::special), "x<user>")
      << "control, unknown and end tokens are special";
}

// A word that is a token as a whole needs no merges with Llama 3; elsewhere the merges alone count.
TEST(TokenizerParts, WholeWordsOfLlama3) {
  TokenizerParts parts = parts_of_bytes();
  parts.merges.clear();
  EXPECT_EQ(Tokenizer::from_parts(parts).encode("ab"), (Ids{'a', 'b'}));
  parts.pre_tokenizer = "llama-bpe";
  EXPECT_EQ(Tokenizer::from_parts(parts).encode("ab abc"), (Ids{260, ' ', 'a', 'b', 'c'}));
}

}  // namespace
}  // namespace trireme::text
