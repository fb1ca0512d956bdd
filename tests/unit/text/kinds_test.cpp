// Tokenizers of many kinds (tests/gold/tokenizers) against the ids and texts of HF `tokenizers`,
// token by token too.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/source_folder.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::text {
namespace {

using nlohmann::json;
using Ids = std::vector<TokenId>;

std::filesystem::path folder() { return test::source_folder() / "tests/gold/tokenizers"; }

std::vector<json> lines_of(const std::filesystem::path& file) {
  std::vector<json> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

json kind_table() { return json::parse(std::ifstream(folder() / "kinds.json")); }

std::string streamed(const Tokenizer& tokenizer, const Ids& ids, Skip skip) {
  StreamingDecoder decoder(tokenizer, skip);
  std::string out;
  for (const TokenId id : ids) out += decoder.push(id);
  return out + decoder.finish();
}

class Kinds : public testing::TestWithParam<std::string> {
 protected:
  void expect_text(const Ids& ids, Skip skip, const std::string& text) const {
    EXPECT_EQ(tokenizer_.decode(ids, skip), text) << json(ids);
    EXPECT_EQ(streamed(tokenizer_, ids, skip), text) << json(ids);
  }
  void expect_ids(const std::string& text, const json& line) const {
    const Ids ids = line["ids"].get<Ids>();
    EXPECT_EQ(tokenizer_.encode(text), ids) << json(text);
    Ids with_special = added_["prefix"].get<Ids>();
    with_special.insert(with_special.end(), ids.begin(), ids.end());
    const Ids suffix = added_["suffix"].get<Ids>();
    with_special.insert(with_special.end(), suffix.begin(), suffix.end());
    if (line.contains("ids_with_special")) with_special = line["ids_with_special"].get<Ids>();
    EXPECT_EQ(tokenizer_.encode(text, SpecialTokens::added), with_special) << json(text);
  }
  Tokenizer tokenizer_ = Tokenizer::load(folder() / GetParam());
  std::vector<json> texts_ = lines_of(folder() / "texts.jsonl");
  json added_ = kind_table()[GetParam()];
};

TEST_P(Kinds, IdsAndTextsAreThoseOfHuggingFace) {
  size_t texts = 0, others = 0, prefixes = 0;
  for (const json& line : lines_of(folder() / GetParam() / "cases.jsonl")) {
    if (line.contains("prefixes_of")) {
      Ids ids =
          tokenizer_.encode(texts_[line["prefixes_of"].get<size_t>()]["text"].get<std::string>());
      ids.resize(std::min(ids.size(), line["decoded"].size()));
      for (size_t count = 1; count <= ids.size(); ++count)
        expect_text(Ids(ids.begin(), ids.begin() + static_cast<int64_t>(count)), Skip::special,
                    line["decoded"][count - 1]);
      ++prefixes;
      continue;
    }
    const std::string text =
        line.contains("t") ? texts_[line["t"].get<size_t>()]["text"].get<std::string>() : "";
    if (line.contains("t")) expect_ids(text, line);
    ++(line.contains("t") ? texts : others);
    const std::string decoded = line.value("decoded", text);
    expect_text(line["ids"].get<Ids>(), Skip::nothing, decoded);
    expect_text(line["ids"].get<Ids>(), Skip::special, line.value("decoded_skip_special", decoded));
  }
  EXPECT_GT(texts, 100u);
  EXPECT_GT(others, 10u);
  EXPECT_GT(prefixes, 5u);
}

std::vector<std::string> names() {
  std::vector<std::string> out;
  const json all = kind_table();
  for (const auto& [name, entry] : all.items()) out.push_back(name);
  return out;
}

INSTANTIATE_TEST_SUITE_P(All, Kinds, testing::ValuesIn(names()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace trireme::text
