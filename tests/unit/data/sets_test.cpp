#include <gtest/gtest.h>

#include <algorithm>

#include "support/text_files.hpp"
#include "trireme/data/prompt_set.hpp"

namespace trireme::data {
namespace {

class Sets : public testing::Test {
 protected:
  SetOptions options(const std::string& content) const {
    SetOptions made;
    made.files = {folder_.write("data.jsonl", content)};
    return made;
  }
  // The text of the tokens with loss.
  std::string targets(const SftExample& example) const {
    std::vector<text::TokenId> ids;
    for (size_t i = 0; i < example.ids.size(); ++i) {
      if (example.loss_mask[i] != 0) ids.push_back(example.ids[i]);
    }
    return tokenizer_.decode(ids);
  }
  text::Tokenizer tokenizer_ = test::load_tokenizer("digits_bytelevel");
  test::TemporaryFolder folder_;
};

TEST_F(Sets, PromptsKeepLabelAndOtherFields) {
  const auto set =
      PromptSet::load(options(R"({"prompt": "2+2=", "label": "4", "level": {"a": [1, "x"]}, "id": 7}
{"prompt": "b", "label": {"min": 1}}
{"messages": [{"role": "user", "content": "hi", "name": "bob"}], "label": null}
)"),
                      tokenizer_);
  ASSERT_EQ(set.size(), 3);
  EXPECT_EQ(set[0].prompt, "2+2=");
  EXPECT_EQ(set[0].ids, tokenizer_.encode("2+2=", text::SpecialTokens::added));
  EXPECT_EQ(set[0].label, "4");
  EXPECT_EQ(set[0].label_json, "\"4\"");
  EXPECT_EQ(set[0].extra, R"({"level":{"a":[1,"x"]},"id":7})");
  EXPECT_EQ(set[1].label, R"({"min":1})");
  EXPECT_EQ(set[1].extra, "{}");
  EXPECT_EQ(set[1].origin.line, 2);
  EXPECT_EQ(set[2].label, "");
  EXPECT_EQ(set[2].label_json, "");
  EXPECT_EQ(set[2].ids, tokenizer_.encode_chat(set[2].messages, text::GenerationPrompt::with));
  EXPECT_EQ(messages_json(set[2].messages), R"([{"role": "user", "content": "hi","name":"bob"}])");
}

TEST_F(Sets, NumbersKeepTheirDigits) {
  const auto set = PromptSet::load(
      options(R"({"prompt": "a", "label": 18446744073709551616, "seed": -9223372036854775809}
{"prompt": "a", "label": [99999999999999999999], "deep": {"n": [1e2, 36893488147419103232]}}
{"messages": [{"role": "user", "content": "hi", "id": 18446744073709551616}], "label": 2.50}
)"),
      tokenizer_);
  EXPECT_EQ(set[0].label, "18446744073709551616");
  EXPECT_EQ(set[0].label_json, "18446744073709551616");
  EXPECT_EQ(set[0].extra, R"({"seed":-9223372036854775809})");
  EXPECT_EQ(set[1].label, "[99999999999999999999]");
  EXPECT_EQ(set[1].extra, R"({"deep":{"n":[100.0,36893488147419103232]}})");
  EXPECT_EQ(set[2].label, "2.5");
  EXPECT_EQ(messages_json(set[2].messages),
            R"([{"role": "user", "content": "hi","id":18446744073709551616}])");
}

TEST_F(Sets, APromptMayBecomeTheUsersTurn) {
  auto chosen = options("{\"q\": \"hi\"}\n");
  chosen.keys.prompt = "q";
  chosen.prompt_form = PromptForm::user_turn;
  const auto set = PromptSet::load(chosen, tokenizer_);
  const std::vector<text::Message> messages{{"user", "hi", ""}};
  EXPECT_EQ(set[0].ids, tokenizer_.encode_chat(messages, text::GenerationPrompt::with));
  EXPECT_EQ(set[0].messages.size(), 1u);
}

TEST_F(Sets, TheDecksSystemTurnGoesInFrontOfChatsWithoutOne) {
  auto chosen = options(
      "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n"
      "{\"messages\": [{\"role\": \"system\", \"content\": \"mine\"}, {\"role\": \"user\", "
      "\"content\": \"hi\"}]}\n"
      "{\"prompt\": \"plain\"}\n");
  chosen.system_prompt = "yours";
  const auto set = PromptSet::load(chosen, tokenizer_);
  ASSERT_EQ(set[0].messages.size(), 2u);
  EXPECT_EQ(set[0].messages[0].content, "yours");
  ASSERT_EQ(set[1].messages.size(), 2u);
  EXPECT_EQ(set[1].messages[0].content, "mine");
  EXPECT_TRUE(set[2].messages.empty());
  EXPECT_EQ(set[2].ids, tokenizer_.encode("plain", text::SpecialTokens::added));
}

TEST_F(Sets, SeveralFilesAndAMaximum) {
  SetOptions chosen;
  chosen.files = {
      folder_.write("a.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n{\"prompt\": \"c\"}\n"),
      folder_.write("b.jsonl", "{\"prompt\": \"d\"}")};
  EXPECT_EQ(PromptSet::load(chosen, tokenizer_).counts().rows, (std::vector<int64_t>{3, 1}));
  chosen.max_samples = 2;
  const auto set = PromptSet::load(chosen, tokenizer_);
  EXPECT_EQ(set.counts().rows, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(set[2].prompt, "d");
  EXPECT_EQ(set[2].origin.file, 1);
}

TEST_F(Sets, PromptsThatCannotBeUsed) {
  auto chosen =
      options("{\"prompt\": \"0123456789\"}\n{\"prompt\": \"\"}\n{\"prompt\": \"01234\"}\n");
  chosen.max_tokens = 5;
  const auto set = PromptSet::load(chosen, tokenizer_);
  EXPECT_EQ(set.size(), 1);
  EXPECT_EQ(set.counts().too_long, 1);
  EXPECT_EQ(set.counts().empty, 1);
  chosen.unusable = Unusable::stop;
  const auto message =
      test::error_of(ExitCode::bad_data, [&] { PromptSet::load(chosen, tokenizer_); });
  EXPECT_NE(message.find("data.jsonl:1: the prompt has 10 tokens, the limit is 5"),
            std::string::npos)
      << message;
  auto empty = options("{\"prompt\": \"\"}\n");
  const auto none = test::error_of(ExitCode::bad_data, [&] { PromptSet::load(empty, tokenizer_); });
  EXPECT_NE(none.find("no usable record"), std::string::npos) << none;
  empty.unusable = Unusable::stop;
  EXPECT_NE(test::error_of(ExitCode::bad_data, [&] { PromptSet::load(empty, tokenizer_); })
                .find(":1: the prompt gives no token"),
            std::string::npos);
}

TEST_F(Sets, RecordsOfAnotherShape) {
  const auto refuse = [&](const std::string& content) {
    return test::error_of(ExitCode::bad_data,
                          [&] { PromptSet::load(options(content), tokenizer_); });
  };
  EXPECT_NE(refuse("{\"prompt\": 3}").find("data.jsonl:1: `prompt` is number, expected a text"),
            std::string::npos);
  EXPECT_NE(refuse("{\"text\": \"a\"}").find("neither `prompt` nor `messages`"), std::string::npos);
  EXPECT_NE(refuse("{\"prompt\": \"a\", \"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}")
                .find("both"),
            std::string::npos);
  const auto no_files =
      test::error_of(ExitCode::configuration, [&] { PromptSet::load({}, tokenizer_); });
  EXPECT_NE(no_files.find("no data file"), std::string::npos);
}

TEST_F(Sets, SftLossIsOnAssistantTurns) {
  const auto set = SftSet::load(
      options(
          R"({"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "first answer"}, {"role": "user", "content": "two"}, {"role": "assistant", "content": "second"}]}
{"prompt": "a b", "response": "c d"}
)"),
      tokenizer_);
  ASSERT_EQ(set.size(), 2);
  ASSERT_EQ(set[0].ids.size(), set[0].loss_mask.size());
  EXPECT_EQ(targets(set[0]), "first answer<|im_end|>second<|im_end|>");
  const std::vector<text::Message> messages{{"user", "one", ""},
                                            {"assistant", "first answer", ""},
                                            {"user", "two", ""},
                                            {"assistant", "second", ""}};
  EXPECT_EQ(tokenizer_.decode(set[0].ids),
            tokenizer_.render_chat(messages, text::GenerationPrompt::without));
  const auto opening =
      tokenizer_.encode_chat(std::span(messages).first(1), text::GenerationPrompt::with);
  EXPECT_TRUE(std::equal(opening.begin(), opening.end(), set[0].ids.begin()))
      << "the ids in front of a response are those of a rollout";
  EXPECT_EQ(set[0].loss_mask[opening.size() - 1], 0);
  EXPECT_EQ(set[0].loss_mask[opening.size()], 1);
  EXPECT_EQ(targets(set[1]), "c d<|im_end|>");
  EXPECT_EQ(tokenizer_.decode(set[1].ids), "a bc d<|im_end|>");
}

// The mask in numbers: which positions are targets, for every form that a record may have.
TEST_F(Sets, SftMasksInEveryForm) {
  const text::TokenId eos = *tokenizer_.eos_id();
  const auto set = SftSet::load(options(R"({"text": "ab12"}
{"prompt": "12", "response": "345<|im_end|>"}
{"prompt": "12", "response": ""}
{"prompt": "", "response": "3"}
)"),
                                tokenizer_);
  ASSERT_EQ(set.size(), 4);
  EXPECT_EQ(set[0].ids, tokenizer_.encode("ab12", text::SpecialTokens::added));
  EXPECT_EQ(set[0].loss_mask, std::vector<uint8_t>(set[0].ids.size(), 1))
      << "nothing stands before the first token, so it is never scored";
  EXPECT_EQ(set[1].loss_mask, (std::vector<uint8_t>{0, 0, 1, 1, 1, 1}))
      << "an eos that is there is not doubled";
  EXPECT_EQ(set[1].ids.back(), eos);
  EXPECT_EQ(set[2].loss_mask, (std::vector<uint8_t>{0, 0, 1}));
  EXPECT_EQ(set[2].ids.back(), eos);
  EXPECT_EQ(set[3].loss_mask, (std::vector<uint8_t>{1, 1}));
  auto turns = options("{\"prompt\": \"hi\", \"response\": \"345\"}\n");
  turns.prompt_form = PromptForm::user_turn;
  turns.system_prompt = "be brief";
  const auto chat = SftSet::load(turns, tokenizer_);
  EXPECT_EQ(targets(chat[0]), "345<|im_end|>");
  const std::vector<text::Message> messages{
      {"system", "be brief", ""}, {"user", "hi", ""}, {"assistant", "345", ""}};
  EXPECT_EQ(tokenizer_.decode(chat[0].ids),
            tokenizer_.render_chat(messages, text::GenerationPrompt::without));
}

// A sequence of just the limit is kept, one token more is not, in sets of every kind; the place
// counts lines of each file.
TEST_F(Sets, LimitsHoldToTheToken) {
  SetOptions chosen;
  const auto load = [&](const std::string& first, const std::string& second, int64_t limit,
                        Unusable unusable, auto loader) {
    chosen.files = {folder_.write("a.jsonl", first), folder_.write("b.jsonl", "\n" + second)};
    chosen.max_tokens = limit;
    chosen.unusable = unusable;
    return loader(chosen, tokenizer_, EncodingTeam{});
  };
  const auto check = [&](const std::string& fits, const std::string& too_long, int64_t limit,
                         auto loader) {
    const auto set = load(fits, too_long, limit, Unusable::skip, loader);
    EXPECT_EQ(set.counts().rows, (std::vector<int64_t>{1, 0})) << fits;
    EXPECT_EQ(set.counts().too_long, 1) << too_long;
    const auto message = test::error_of(
        ExitCode::bad_data, [&] { load(fits, too_long, limit, Unusable::stop, loader); });
    EXPECT_NE(message.find("b.jsonl:2: "), std::string::npos) << message;
    EXPECT_NE(
        message.find(std::to_string(limit + 1) + " tokens, the limit is " + std::to_string(limit)),
        std::string::npos)
        << message;
  };
  check(R"({"prompt": "1234"})", R"({"prompt": "12345"})", 4, PromptSet::load);
  check(R"({"prompt": "12", "response": "345"})", R"({"prompt": "12", "response": "3456"})", 6,
        SftSet::load);
  check(R"({"prompt": "12", "chosen": "3", "rejected": "456"})",
        R"({"prompt": "12", "chosen": "3", "rejected": "4567"})", 6, PreferenceSet::load);
  check(R"({"prompt": "12", "chosen": "345", "rejected": "4"})",
        R"({"prompt": "12", "chosen": "3456", "rejected": "4"})", 6, PreferenceSet::load);
}

TEST_F(Sets, SftRefusals) {
  const auto refuse = [&](const std::string& content, const text::Tokenizer& tokenizer) {
    return test::error_of(ExitCode::bad_data, [&] { SftSet::load(options(content), tokenizer); });
  };
  EXPECT_NE(refuse(R"({"messages": [{"role": "user", "content": "one"}]})", tokenizer_)
                .find(":1: the conversation has no assistant turn"),
            std::string::npos);
  EXPECT_NE(refuse(R"({"prompt": "one"})", tokenizer_).find("no `response`"), std::string::npos);
  // A template that drops earlier answers, as those of some reasoning models do
  test::TemporaryFolder model;
  model.write("tokenizer.json", test::read_text(test::parity_folder() /
                                                "tokenizers/digits_bytelevel/tokenizer.json"));
  model.write(
      "chat_template.jinja",
      "{% for m in messages %}[{{ m.content if loop.last or m.role == 'user' }}]{% endfor %}");
  const std::string two =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})";
  EXPECT_NE(
      refuse(two, text::Tokenizer::load(model.path())).find("renders earlier turns differently"),
      std::string::npos);
}

TEST_F(Sets, PreferencePairs) {
  const auto set = PreferenceSet::load(
      options(R"({"prompt": "p", "chosen": "good", "rejected": "bad", "margin": 0.5}
{"messages": [{"role": "user", "content": "p"}], "chosen": "good", "rejected": [{"role": "assistant", "content": "bad"}]}
{"chosen": [{"role": "user", "content": "p"}, {"role": "assistant", "content": "good"}], "rejected": [{"role": "user", "content": "p"}, {"role": "assistant", "content": "bad"}]}
)"),
      tokenizer_);
  ASSERT_EQ(set.size(), 3);
  EXPECT_EQ(tokenizer_.decode(set[0].chosen), "pgood<|im_end|>");
  EXPECT_EQ(tokenizer_.decode(set[0].rejected), "pbad<|im_end|>");
  EXPECT_EQ(set[0].prompt_length,
            static_cast<int32_t>(tokenizer_.encode("p", text::SpecialTokens::added).size()));
  EXPECT_EQ(set[0].margin, 0.5);
  const std::vector<text::Message> messages{{"user", "p", ""}};
  const auto prompt = tokenizer_.encode_chat(messages, text::GenerationPrompt::with);
  for (int64_t row : {1, 2}) {
    EXPECT_EQ(set[row].prompt_length, static_cast<int32_t>(prompt.size()));
    EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), set[row].rejected.begin()));
    EXPECT_EQ(tokenizer_.decode(set[row].chosen), tokenizer_.decode(prompt) + "good<|im_end|>");
    EXPECT_EQ(tokenizer_.decode(set[row].rejected), tokenizer_.decode(prompt) + "bad<|im_end|>");
    EXPECT_EQ(set[row].margin, 0);
  }
}

TEST_F(Sets, PreferenceAnswersEndWhereARolloutWould) {
  const text::TokenId eos = *tokenizer_.eos_id();
  const auto set =
      PreferenceSet::load(options(R"({"prompt": "1", "chosen": "2<|im_end|>", "rejected": ""}
{"prompt": "1", "chosen": "2", "rejected": "2", "margin": -3}
)"),
                          tokenizer_);
  ASSERT_EQ(set.size(), 2);
  EXPECT_EQ(tokenizer_.decode(set[0].chosen), "12<|im_end|>")
      << "an eos that is there is not doubled";
  ASSERT_EQ(set[0].rejected.size(), 2u);
  EXPECT_EQ(set[0].rejected.back(), eos);
  EXPECT_EQ(set[1].chosen, set[1].rejected);
  EXPECT_EQ(set[1].margin, -3);
}

TEST_F(Sets, PreferenceRefusals) {
  const auto refuse = [&](const std::string& content) {
    return test::error_of(ExitCode::bad_data,
                          [&] { PreferenceSet::load(options(content), tokenizer_); });
  };
  EXPECT_NE(refuse(R"({"prompt": "p", "chosen": "a"})").find(":1: no `rejected`"),
            std::string::npos);
  EXPECT_NE(
      refuse(
          R"({"prompt": "p", "chosen": [{"role": "assistant", "content": "a"}], "rejected": "b"})")
          .find("give both in one form"),
      std::string::npos);
  EXPECT_NE(refuse(R"({"prompt": "p", "chosen": "a", "rejected": "b", "margin": "x"})")
                .find("`margin` is string"),
            std::string::npos);
  EXPECT_NE(
      refuse(
          R"({"chosen": [{"role": "user", "content": "p"}], "rejected": [{"role": "user", "content": "q"}]})")
          .find("without a common prompt"),
      std::string::npos);
}

TEST_F(Sets, Inputs) {
  const auto inputs = read_inputs(folder_.write("in.jsonl", R"({"prompt": "a"}
{"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": false}
{"input_ids": [1, 2]}
{"ids": [5000000]}
)"));
  ASSERT_EQ(inputs.size(), 4u);
  EXPECT_EQ(inputs[0].encode(tokenizer_), tokenizer_.encode("a", text::SpecialTokens::added));
  EXPECT_EQ(inputs[1].encode(tokenizer_),
            tokenizer_.encode_chat(inputs[1].messages, text::GenerationPrompt::without));
  EXPECT_EQ(inputs[2].encode(tokenizer_), (std::vector<text::TokenId>{1, 2}));
  EXPECT_EQ(inputs[3].encode(tokenizer_), (std::vector<text::TokenId>{5000000}))
      << "it is for the caller to compare with the model's rows";
}

}  // namespace
}  // namespace trireme::data
