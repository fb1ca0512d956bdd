// Damaged or unsuited tokenizer files: each is refused with the file and the name of what is wrong.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "support/text_files.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::text {
namespace {

using nlohmann::json;

class MalformedTokenizer : public testing::Test {
 protected:
  // The message for a tokenizer.json of this text.
  std::string refuse_text(const std::string& text, ExitCode code = ExitCode::bad_data) {
    folder_.write("tokenizer.json", text);
    const std::string message = test::error_of(code, [&] { Tokenizer::load(folder_.path()); });
    EXPECT_EQ(message.find(folder_.path().string()), 0u) << message;
    return message;
  }
  // ... of a good one that `change` has damaged, and the text that the message must have.
  void refuse(const std::string& expected, const std::function<void(json&)>& change) {
    json copy = good_;
    change(copy);
    const std::string message = refuse_text(copy.dump());
    EXPECT_NE(message.find(expected), std::string::npos) << message;
  }
  // Same for tokenizer_config.json beside the good one.
  std::string refuse_config(const json& config, const std::string& name = "tokenizer_config.json") {
    folder_.write("tokenizer.json", good_.dump());
    folder_.write(name, config.dump());
    const std::string message =
        test::error_of(ExitCode::bad_data, [&] { Tokenizer::load(folder_.path()); });
    std::filesystem::remove(folder_.path() / name);
    return message;
  }
  json good_ =
      json::parse(test::read_text(test::parity_folder() / "tokenizers/llama3/tokenizer.json"));
  test::TemporaryFolder folder_;
};

TEST_F(MalformedTokenizer, TheBaseIsGood) {
  folder_.write("tokenizer.json", good_.dump());
  EXPECT_GT(Tokenizer::load(folder_.path()).vocab_size(), 1000);
}

TEST_F(MalformedTokenizer, AnotherFormOfTokenizerIsNamedWithTheCommand) {
  const test::TemporaryFolder folder;
  folder.write("tokenizer.model", "\n");
  const auto message =
      test::error_of(ExitCode::input_missing, [&] { Tokenizer::load(folder.path()); });
  EXPECT_NE(message.find("the folder has tokenizer.model"), std::string::npos) << message;
  EXPECT_NE(message.find("AutoTokenizer.from_pretrained('" + folder.path().string()),
            std::string::npos)
      << message;
}

TEST_F(MalformedTokenizer, NoFileAndNoJson) {
  const auto message =
      test::error_of(ExitCode::input_missing, [&] { Tokenizer::load(folder_.path() / "none"); });
  EXPECT_NE(message.find("tokenizer.json"), std::string::npos);
  EXPECT_NE(refuse_text("").find(":1:1: not JSON"), std::string::npos);
  EXPECT_NE(refuse_text("{\"model\":\n  oops}").find(":2:3: not JSON"), std::string::npos);
  EXPECT_NE(refuse_text(good_.dump().substr(0, 1000)).find("not JSON"), std::string::npos);
  EXPECT_NE(refuse_text("[]").find("not an object but array"), std::string::npos);
  EXPECT_NE(refuse_text("{}").find("tokenizer.model is missing"), std::string::npos);
  EXPECT_NE(refuse_text("{\"a\": \"\xFF\"}").find(":1:8: not UTF-8"), std::string::npos);
  EXPECT_NE(refuse_text("{\"a\": \"\\udc00\"}").find("not JSON"), std::string::npos);
  for (const char bracket : {'[', '{'}) {
    std::string deep;
    for (int i = 0; i < 100000; ++i) deep += bracket == '[' ? "[" : "{\"a\":";
    EXPECT_NE(refuse_text(deep).find("nested deeper than 128"), std::string::npos);
  }
}

TEST_F(MalformedTokenizer, Vocabulary) {
  refuse("model.vocab is missing", [](json& j) { j["model"].erase("vocab"); });
  refuse("model.vocab is not an object", [](json& j) { j["model"]["vocab"] = json::array({"a"}); });
  refuse("the id 5 stands for two tokens", [](json& j) { j["model"]["vocab"]["zzz"] = 5; });
  refuse("\"zzz\" has the negative id -1", [](json& j) { j["model"]["vocab"]["zzz"] = -1; });
  refuse("the limit is 16777216", [](json& j) { j["model"]["vocab"]["zzz"] = 3000000000; });
  refuse("the limit is 16777216",
         [](json& j) { j["model"]["vocab"]["zzz"] = 18446744073709551615ULL; });
  refuse("model.vocab[\"zzz\"] is 1.5, expected a whole number",
         [](json& j) { j["model"]["vocab"]["zzz"] = 1.5; });
  refuse("model.vocab[\"zzz\"] is \"7\", expected a whole number",
         [](json& j) { j["model"]["vocab"]["zzz"] = "7"; });
  refuse("no token for 94 of the 256 bytes (33, ...)", [](json& j) {
    for (char c = '!'; c <= '~'; ++c) j["model"]["vocab"].erase(std::string(1, c));
    j["model"]["merges"] = json::array();
  });
  refuse("byte_fallback with no token for the bytes 4 is", [](json& j) {
    j["model"]["vocab"].erase("\u0104");
    j["model"]["byte_fallback"] = true;
  });
  refuse("model.unk_token \"<unk>\" is not in the vocabulary", [](json& j) {
    j["model"]["vocab"].erase("\u0104");
    j["model"]["unk_token"] = "<unk>";
  });
}

TEST_F(MalformedTokenizer, Merges) {
  refuse("model.merges is no list", [](json& j) { j["model"]["merges"] = 3; });
  refuse("model.merges[1694] needs the token \"q0q\"", [](json& j) {
    j["model"]["merges"].push_back({"q0q", "a"});
  });
  refuse("model.merges[1694] needs the token \"\"", [](json& j) {
    j["model"]["vocab"][""] = 60000;
    j["model"]["merges"].push_back({"", "a"});
  });
  refuse("model.merges[1694] needs the token \"A@\"", [](json& j) {
    j["model"]["merges"].push_back({"A", "@"});
  });
  refuse("model.merges[1694] is \"a b c\"",
         [](json& j) { j["model"]["merges"].push_back("a b c"); });
  refuse("model.merges[1694] is \"ab\"", [](json& j) { j["model"]["merges"].push_back("ab"); });
  refuse("model.merges[1694] is neither", [](json& j) {
    j["model"]["merges"].push_back({"a", "b", "c"});
  });
}

TEST_F(MalformedTokenizer, Unigram) {
  const json pieces = json::array({json::array({"<unk>", 0.0}), json::array({"_", -1.5})});
  const auto with = [&](const std::function<void(json&)>& change) {
    return [change, pieces](json& j) {
      j["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "_"}};
      j["decoder"] = j["pre_tokenizer"];
      j["model"] = {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", pieces}};
      change(j["model"]);
    };
  };
  refuse("model.vocab is missing", with([](json& m) { m.erase("vocab"); }));
  refuse("model.vocab is not a list of pieces", with([](json& m) { m["vocab"] = json::array(); }));
  refuse("model.vocab[2] is not a piece", with([](json& m) {
           m["vocab"].push_back(json::array({"x", "y"}));
         }));
  refuse("model.vocab[2] is not a piece", with([](json& m) {
           m["vocab"].push_back(json::array({"", 1}));
         }));
  refuse("the token \"_\" has two ids", with([](json& m) {
           m["vocab"].push_back(json::array({"_", 1}));
         }));
  refuse("model.unk_id 9 is not in the vocabulary", with([](json& m) { m["unk_id"] = 9; }));
  refuse("model.unk_id is \"x\"", with([](json& m) { m["unk_id"] = "x"; }));
}

TEST_F(MalformedTokenizer, CharacterMaps) {
  const auto with = [](const std::string& map) {
    return [map](json& j) {
      j["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", map}};
    };
  };
  refuse("is not base64", with("A*"));
  refuse("is too short", with("AAA="));
  refuse("has no trie", with("AAAAAA=="));
  refuse("has no trie", with("CAAAAAAAAAA="));
  refuse("has texts that are not UTF-8", with("BAAAAAAAAAD/"));
  refuse("normalizer.precompiled_charsmap is missing", [](json& j) {
    j["normalizer"] = {{"type", "Precompiled"}};
  });
}

TEST_F(MalformedTokenizer, PartsThatAreNotKnownAreNamed) {
  refuse("model type \"WordPiece\" is not known",
         [](json& j) { j["model"]["type"] = "WordPiece"; });
  refuse("a Unigram model on bytes", [](json& j) { j["model"]["type"] = "Unigram"; });
  refuse("model.dropout = 0.1", [](json& j) { j["model"]["dropout"] = 0.1; });
  refuse("model.continuing_subword_prefix is not a text",
         [](json& j) { j["model"]["continuing_subword_prefix"] = false; });
  refuse("model.end_of_word_suffix is not a text",
         [](json& j) { j["model"]["end_of_word_suffix"] = 1; });
  refuse("normalizer type \"Nmt\"", [](json& j) { j["normalizer"] = {{"type", "Nmt"}}; });
  refuse("normalizer.prepend is missing", [](json& j) {
    j["normalizer"] = {{"type", "Sequence"},
                       {"normalizers", json::array({{{"type", "NFC"}}, {{"type", "Prepend"}}})}};
  });
  refuse("normalizer Replace has no pattern", [](json& j) {
    j["normalizer"] = {{"type", "Replace"}, {"content", "x"}};
  });
  refuse("normalizer.strip_left is", [](json& j) {
    j["normalizer"] = {{"type", "Strip"}, {"strip_left", 1}, {"strip_right", true}};
  });
  for (const json& other :
       {json(), json{{"type", "Digits"}}, json{{"type", "Metaspace"}, {"replacement", "_"}}}) {
    refuse("the decoder is ByteLevel, the other", [&](json& j) { j["pre_tokenizer"] = other; });
  }
  refuse("pre_tokenizer type \"FixedLength\"", [](json& j) {
    j["pre_tokenizer"] = {{"type", "FixedLength"}};
  });
  refuse("pre_tokenizer.replacement is missing", [](json& j) {
    j["pre_tokenizer"] = {{"type", "Metaspace"}};
  });
  refuse("replacement \"__\", expected one character", [](json& j) {
    j["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "__"}};
  });
  refuse("prepend_scheme \"last\"", [](json& j) {
    j["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}};
  });
  refuse("ByteLevel behind ByteLevel", [](json& j) {
    j["pre_tokenizer"]["pretokenizers"].push_back({{"type", "ByteLevel"}});
  });
  refuse("behavior \"Kept\"",
         [](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Kept"; });
  refuse("post_processor type \"Pairs\"", [](json& j) {
    j["post_processor"] = {{"type", "Pairs"}};
  });
  refuse("post_processor.cls is missing", [](json& j) {
    j["post_processor"] = {{"type", "BertProcessing"}};
  });
  refuse("the id 99999, which no token has", [](json& j) {
    j["post_processor"]["processors"][1]["special_tokens"]["<|begin_of_text|>"]["ids"] = {99999};
  });
  refuse("decoder is null", [](json& j) { j["decoder"] = nullptr; });
  refuse("decoder has no text `replacement`", [](json& j) {
    j["decoder"] = {{"type", "Metaspace"}};
  });
  refuse("decoder type \"CTC\"", [](json& j) { j["decoder"] = {{"type", "CTC"}}; });
  const json fuse{{"type", "Fuse"}},
      strip{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 1}};
  refuse("the pre_tokenizer is ByteLevel, the other", [&](json& j) { j["decoder"] = fuse; });
  refuse("the pre_tokenizer is ByteLevel, the other", [](json& j) {
    j["decoder"] = {{"type", "Sequence"}, {"decoders", json::array()}};
  });
  const auto sequence = [](std::vector<json> parts) {
    return json{{"type", "Sequence"}, {"decoders", std::move(parts)}};
  };
  refuse("the pre_tokenizer is ByteLevel, the other", [&](json& j) {
    j["decoder"] = sequence({strip, fuse});
  });
  refuse("decoder type \"Strip\"", [&](json& j) { j["decoder"] = sequence({fuse, strip, strip}); });
  refuse("decoder type \"ByteLevel\"", [&](json& j) {
    j["decoder"] = sequence({fuse, {{"type", "ByteLevel"}}});
  });
}

TEST_F(MalformedTokenizer, Patterns) {
  const auto pattern = [](const std::string& text) {
    return [text](json& j) {
      j["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regex", text}};
    };
  };
  refuse("does not compile (missing closing parenthesis", pattern("(a"));
  refuse("uses \\w at character 2", pattern("\\w+"));
  refuse("uses \\h", pattern("[\\h]"));
  refuse("a class inside a class", pattern("[a[b]]"));
  refuse("&& in a class", pattern("[a&&b]"));
  refuse("{n,m}+", pattern("a{1,3}+"));
  refuse("a backslash at the end", pattern("a\\"));
  refuse("has no pattern",
         [](json& j) { j["pre_tokenizer"]["pretokenizers"][0].erase("pattern"); });
}

// A pattern may take for ever on a text; PCRE2 counts and gives up.
TEST_F(MalformedTokenizer, APatternThatGivesUpNamesTheFile) {
  json runaway = good_;
  runaway["pre_tokenizer"] = json::parse(R"({"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})");
  folder_.write("tokenizer.json", runaway.dump());
  const Tokenizer tokenizer = Tokenizer::load(folder_.path());
  EXPECT_FALSE(tokenizer.encode("aaa").empty());
  const std::string message =
      test::error_of(ExitCode::bad_data, [&] { tokenizer.encode(std::string(200, 'a') + "b"); });
  EXPECT_NE(message.find("tokenizer.json: its pattern gives up on a text of 201 bytes"),
            std::string::npos)
      << message;
}

TEST_F(MalformedTokenizer, AddedTokens) {
  refuse("an added token has no text", [](json& j) { j["added_tokens"][0]["content"] = ""; });
  refuse("an added token has no text", [](json& j) { j["added_tokens"][0]["content"] = 3; });
  refuse("added_tokens[].id is missing", [](json& j) { j["added_tokens"][0].erase("id"); });
  refuse("the id 5 stands for two tokens", [](json& j) { j["added_tokens"][0]["id"] = 5; });
  refuse("has two ids", [](json& j) {
    j["added_tokens"].push_back({{"content", "<tool>"}, {"id", 5000}});
  });
  refuse("lstrip is not true or false", [](json& j) { j["added_tokens"][0]["lstrip"] = 1; });
}

TEST_F(MalformedTokenizer, SideFiles) {
  EXPECT_NE(refuse_config({{"eos_token", "<nope>"}})
                .find("eos_token is \"<nope>\", which the vocabulary does not have"),
            std::string::npos);
  EXPECT_NE(refuse_config({{"eos_token", 5}}).find("eos_token is number, expected a text"),
            std::string::npos);
  EXPECT_NE(refuse_config(json::array()).find("not a JSON object"), std::string::npos);
  EXPECT_NE(
      refuse_config({{"added_tokens_decoder", {{"x", {{"content", "a"}}}}}}).find("the key \"x\""),
      std::string::npos);
  EXPECT_NE(refuse_config({{"eos_token_id", 99999}}, "generation_config.json")
                .find("eos_token_id 99999 is outside"),
            std::string::npos);
  EXPECT_NE(refuse_config({{"eos_token_id", "2"}}, "generation_config.json")
                .find("expected a whole number"),
            std::string::npos);
}

TEST_F(MalformedTokenizer, ATemplateThatIsNotKnownMattersOnlyToConversations) {
  folder_.write("tokenizer.json", good_.dump());
  folder_.write("tokenizer_config.json", json({{"chat_template", "{% block f %}"}}).dump());
  const Tokenizer tokenizer = Tokenizer::load(folder_.path());
  EXPECT_FALSE(tokenizer.encode("text").empty());
  EXPECT_FALSE(tokenizer.has_chat_template());
  const std::vector<Message> messages{{"user", "hi", ""}};
  const auto message = test::error_of(
      ExitCode::bad_data, [&] { tokenizer.render_chat(messages, GenerationPrompt::with); });
  EXPECT_NE(message.find("the block 'block' is not known"), std::string::npos);
  std::filesystem::remove(folder_.path() / "tokenizer_config.json");
  const Tokenizer without = Tokenizer::load(folder_.path());
  const auto none = test::error_of(ExitCode::bad_data,
                                   [&] { without.render_chat(messages, GenerationPrompt::with); });
  EXPECT_NE(none.find("no chat template"), std::string::npos);
}

TEST_F(MalformedTokenizer, TooLargeForTheModel) {
  folder_.write("tokenizer.json", good_.dump());
  const Tokenizer tokenizer = Tokenizer::load(folder_.path());
  tokenizer.check_model(tokenizer.vocab_size());
  const auto message = test::error_of(ExitCode::bad_data, [&] { tokenizer.check_model(100); });
  EXPECT_NE(message.find("the model has 100 vocabulary rows"), std::string::npos);
}

}  // namespace
}  // namespace trireme::text
