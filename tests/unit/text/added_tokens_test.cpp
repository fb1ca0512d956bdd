// Added tokens that overlap, strip white space or must stand alone, against HF tokenizers
// (gold/added_tokens.jsonl; gold/make_added_tokens.py made it), and what no library has to say for.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/text_files.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::text {
namespace {

using nlohmann::json;
using Ids = std::vector<TokenId>;

class AddedTokens : public testing::Test {
 protected:
  // The tutorial's tokenizer, whose ids are bytes, with more added tokens.
  Tokenizer with(const json& tokens) {
    json file = json::parse(
        test::read_text(test::source_folder() / "inputs/tutorial/tokenizer/tokenizer.json"));
    for (const json& token : tokens) file["added_tokens"].push_back(token);
    folder_.write("tokenizer.json", file.dump());
    return Tokenizer::load(folder_.path());
  }
  static json token(TokenId id, const std::string& content, bool lstrip, bool rstrip) {
    return {{"id", id},         {"content", content},  {"single_word", false}, {"lstrip", lstrip},
            {"rstrip", rstrip}, {"normalized", false}, {"special", false}};
  }
  test::TemporaryFolder folder_;
};

TEST_F(AddedTokens, SplitTextsAsTokenizersDoes) {
  std::ifstream in(test::source_folder() / "tests/unit/text/gold/added_tokens.jsonl");
  size_t cases = 0;
  for (std::string line; std::getline(in, line);) {
    const json gold = json::parse(line);
    const Tokenizer tokenizer = with(gold["added_tokens"]);
    for (const json& one : gold["cases"]) {
      EXPECT_EQ(tokenizer.encode(one["text"].get<std::string>()), one["ids"].get<Ids>())
          << one << "\n"
          << gold["added_tokens"];
      ++cases;
    }
  }
  EXPECT_GT(cases, 700u);
}

// tokenizers 0.22.2 panics ("AddedVocabulary bad split"): the first token's white space reaches
// beyond the second token.
TEST_F(AddedTokens, WhiteSpaceIsTakenOnce) {
  const Tokenizer tokenizer =
      with(json::array({token(259, "<r>", false, true), token(260, " ", true, false)}));
  EXPECT_EQ(tokenizer.encode("<r>   x"), (Ids{259, 'x'}));
  EXPECT_EQ(tokenizer.encode("<r>   "), (Ids{259}));
  EXPECT_EQ(tokenizer.encode("a  <r> b "), (Ids{'a', 260, 260, 259, 'b', 260}));
}

TEST_F(AddedTokens, AloneAndInLongTexts) {
  const Tokenizer tokenizer = with(json::array({token(259, "<a>", false, false)}));
  std::string text;
  Ids ids;
  for (int i = 0; i < 20000; ++i) {
    text += i % 3 == 0 ? "<a><" : "<a>";
    ids.push_back(259);
    if (i % 3 == 0) ids.push_back('<');
  }
  EXPECT_EQ(tokenizer.encode(text), ids);
  EXPECT_EQ(tokenizer.decode(ids), text);
}

}  // namespace
}  // namespace trireme::text
