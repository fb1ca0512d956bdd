// Which tokenizers are the same: by what they do, not by the bytes of their files.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "support/text_files.hpp"

namespace trireme::text {
namespace {

using nlohmann::json;
using Change = std::function<void(json&)>;

const char* const rule_kinds[] = {"bytelevel", "digits_bytelevel", "llama3", "qwen2_nfc"};

std::filesystem::path folder_of(const std::string& kind) {
  return test::parity_folder() / "tokenizers" / kind;
}

// The tokenizer with a changed tokenizer.json, written with this indent.
Tokenizer changed(const std::string& kind, const Change& change, int indent = 1) {
  const test::TemporaryFolder folder;
  json file = json::parse(test::read_text(folder_of(kind) / "tokenizer.json"));
  change(file);
  folder.write("tokenizer.json", file.dump(indent));
  std::filesystem::copy_file(folder_of(kind) / "tokenizer_config.json",
                             folder.path() / "tokenizer_config.json");
  return Tokenizer::load(folder.path());
}

void drop_defaults(json& part) {
  if (part.is_array()) {
    for (json& one : part) drop_defaults(one);
  }
  if (!part.is_object()) return;
  for (const char* key : {"trim_offsets", "use_regex", "invert"}) {
    const bool is_default = part.contains(key) && part[key] == (std::string(key) != "invert");
    if (is_default) part.erase(key);
  }
  for (json& one : part) drop_defaults(one);
}

TEST(SameTokenizer, FilesThatSayTheSameInAnotherWay) {
  const std::vector<std::pair<std::string, Change>> changes{
      {"written anew", [](json&) {}},
      {"merges as texts",
       [](json& file) {
         for (json& merge : file["model"]["merges"])
           merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
       }},
      {"defaults of the model left out",
       [](json& file) {
         for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix",
                                 "end_of_word_suffix", "fuse_unk", "byte_fallback", "type"})
           file["model"].erase(key);
       }},
      {"empty instead of null",
       [](json& file) { file["model"]["continuing_subword_prefix"] = ""; }},
      {"defaults of the pre-tokeniser left out",
       [](json& file) { drop_defaults(file["pre_tokenizer"]); }},
      {"a sequence around the pre-tokeniser",
       [](json& file) {
         file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {file["pre_tokenizer"]}}};
       }},
      {"an empty normaliser",
       [](json& file) {
         if (file["normalizer"].is_null())
           file["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array()}};
       }},
      {"added tokens in another order",
       [](json& file) { std::reverse(file["added_tokens"].begin(), file["added_tokens"].end()); }},
      {"padding and truncation",
       [](json& file) {
         file["padding"] = {{"strategy", "BatchLongest"}};
         file["truncation"] = {{"max_length", 7}};
       }},
  };
  for (const char* kind : rule_kinds) {
    const Tokenizer whole = test::load_tokenizer(kind);
    EXPECT_TRUE(whole.encodes_like(whole));
    for (const auto& [name, change] : changes) {
      EXPECT_TRUE(whole.encodes_like(changed(kind, change))) << kind << ": " << name;
      EXPECT_TRUE(changed(kind, change, -1).encodes_like(whole)) << kind << ": " << name;
      EXPECT_EQ(whole.reading_digest(), changed(kind, change).reading_digest())
          << kind << ": " << name;
    }
  }
}

TEST(SameTokenizer, EachThingThatChangesIdsCounts) {
  const std::vector<std::pair<std::string, Change>> changes{
      {"two merges swapped",
       [](json& file) { std::swap(file["model"]["merges"][3], file["model"]["merges"][40]); }},
      {"a merge fewer", [](json& file) { file["model"]["merges"].erase(5); }},
      {"two tokens with each other's ids",
       [](json& file) { std::swap(file["model"]["vocab"]["er"], file["model"]["vocab"]["in"]); }},
      {"ignore_merges",
       [](json& file) {
         file["model"]["ignore_merges"] = !file["model"]["ignore_merges"].get<bool>();
       }},
      {"a normaliser",
       [](json& file) {
         file["normalizer"] = file["normalizer"].is_null() ? json{{"type", "NFC"}} : json(nullptr);
       }},
      {"a step before the pre-tokeniser",
       [](json& file) {
         file["pre_tokenizer"] = {
             {"type", "Sequence"},
             {"pretokenizers",
              {{{"type", "Split"}, {"pattern", {{"String", "x"}}}, {"behavior", "Isolated"}},
               file["pre_tokenizer"]}}};
       }},
      {"a blank in front of texts",
       [](json& file) {
         json& last = file["pre_tokenizer"].contains("pretokenizers")
                          ? file["pre_tokenizer"]["pretokenizers"].back()
                          : file["pre_tokenizer"];
         last["add_prefix_space"] = true;
       }},
      {"an added token that takes blanks with it",
       [](json& file) { file["added_tokens"][0]["lstrip"] = true; }},
      {"an added token in words only",
       [](json& file) { file["added_tokens"][1]["single_word"] = true; }},
      {"another added token",
       [](json& file) { file["added_tokens"].back()["content"] = "<other>"; }},
      {"an added token more",
       [](json& file) {
         json token = file["added_tokens"].back();
         token["id"] = token["id"].get<int>() + 1;
         token["content"] = "[PAD]";
         file["added_tokens"].push_back(token);
       }},
      {"a post-processor",
       [](json& file) {
         const int id = file["added_tokens"][0]["id"];
         file["post_processor"] = {
             {"type", "TemplateProcessing"},
             {"single",
              {{{"Sequence", {{"id", "A"}}}}, {{"SpecialToken", {{"id", "end"}, {"type_id", 0}}}}}},
             {"special_tokens", {{"end", {{"ids", {id}}}}}}};
       }},
  };
  for (const char* kind : rule_kinds) {
    const Tokenizer whole = test::load_tokenizer(kind);
    for (const auto& [name, change] : changes) {
      EXPECT_FALSE(whole.encodes_like(changed(kind, change))) << kind << ": " << name;
      EXPECT_NE(whole.reading_digest(), changed(kind, change).reading_digest())
          << kind << ": " << name;
    }
  }
}

TEST(SameTokenizer, SaysNothingWrongOfRandomTexts) {
  std::mt19937 random(5);
  const std::string bits[] = {"the ", "er", "in", " 12", "\n", "<tool>", "wordy", "e\u0301", "x"};
  for (const char* a : rule_kinds) {
    for (const char* b : rule_kinds) {
      const Tokenizer one = test::load_tokenizer(a), other = test::load_tokenizer(b);
      bool same = true;
      for (int i = 0; i < 200; ++i) {
        std::string text;
        for (size_t k = random() % 12; k > 0; --k) text += bits[random() % std::size(bits)];
        same = same &&
               one.encode(text, SpecialTokens::added) == other.encode(text, SpecialTokens::added);
      }
      EXPECT_EQ(one.encodes_like(other), same) << a << " and " << b;
    }
  }
}

TEST(SameTokenizer, ChatsAreReadByTemplateAndEnds) {
  const auto digest = [](const json& config, const std::string& file = "") {
    const test::TemporaryFolder folder;
    std::filesystem::copy_file(folder_of("bytelevel") / "tokenizer.json",
                               folder.path() / "tokenizer.json");
    folder.write("tokenizer_config.json", config.dump());
    if (!file.empty()) folder.write("chat_template.jinja", file);
    return Tokenizer::load(folder.path()).reading_digest();
  };
  const json whole{{"chat_template", "{{ eos_token }}"}, {"eos_token", "<|endoftext|>"}};
  const auto but = [&](const char* key, const char* value) {
    json config = whole;
    config[key] = value;
    return digest(config);
  };
  json elsewhere = whole;
  elsewhere.erase("chat_template");
  EXPECT_EQ(digest(whole), digest(elsewhere, "{{ eos_token }}\n")) << "in a file of its own";
  EXPECT_EQ(digest(whole), but("model_max_length", "9"));
  EXPECT_EQ(digest(whole), but("bos_token", "<|im_end|>")) << "the template does not name it";
  EXPECT_NE(digest(whole), but("chat_template", "{{ eos_token }} "));
  EXPECT_NE(digest(whole), but("eos_token", "<|im_end|>"));
}

TEST(SameTokenizer, IdsThatMeanTheSame) {
  const Tokenizer whole = test::load_tokenizer("bytelevel");
  const auto split = changed("bytelevel", [](json& file) {
    file["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Digits"}, {"individual_digits", true}}, file["pre_tokenizer"]}}};
  });
  EXPECT_TRUE(whole.shares_ids_with(split)) << "another split of the same tokens";
  EXPECT_FALSE(whole.encodes_like(split));
  EXPECT_FALSE(whole.shares_ids_with(test::load_tokenizer("llama3")));
  const auto longer = changed("bytelevel", [](json& file) {
    json token = file["added_tokens"].back();
    token["id"] = token["id"].get<int>() + 1;
    token["content"] = "[PAD]";
    file["added_tokens"].push_back(token);
  });
  EXPECT_TRUE(whole.shares_ids_with(longer));
  EXPECT_TRUE(longer.shares_ids_with(whole));
  EXPECT_FALSE(whole.encodes_like(longer));
}

}  // namespace
}  // namespace trireme::text
