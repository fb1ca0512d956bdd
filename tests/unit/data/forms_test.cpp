// The forms in which published data sets write prompts and chats, and special tokens of texts.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/text_files.hpp"
#include "trireme/data/prompt_set.hpp"

namespace trireme::data {
namespace {

using testing::Test;

class Forms : public Test {
 protected:
  SetOptions options(const std::string& lines) const {
    SetOptions made;
    made.files = {folder_.write("data.jsonl", lines + "\n")};
    return made;
  }
  text::Tokenizer tutorial(const std::string& chat_template) const {
    const auto from = test::source_folder() / "inputs/tutorial/tokenizer";
    model_.write("tokenizer.json", test::read_text(from / "tokenizer.json"));
    model_.write("tokenizer_config.json",
                 R"({"bos_token": "<|bos|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>"})");
    if (!chat_template.empty()) model_.write("chat_template.jinja", chat_template);
    return text::Tokenizer::load(model_.path());
  }
  // The text of a prompt; of a refusal the message.
  std::string prompt_of(const std::string& line, const text::Tokenizer& tokenizer,
                        const RecordKeys& keys = {}) const {
    SetOptions wanted = options(line);
    wanted.keys = keys;
    try {
      return PromptSet::load(wanted, tokenizer)[0].prompt;
    } catch (const UserError& error) { return error.what(); }
  }
  const std::string chatml_ =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}";
  test::TemporaryFolder folder_, model_;
};

TEST_F(Forms, LabelledAnswers) {
  const auto tokenizer = tutorial(chatml_);
  const auto load = [&](const std::string& line) {
    return LabelledSet::load(options(line), tokenizer);
  };
  const auto text_of = [&](const LabelledAnswer& answer) {
    const auto begin = answer.ids.begin() + answer.prompt_length;
    return std::pair(tokenizer.decode(std::vector(answer.ids.begin(), begin)),
                     tokenizer.decode(std::vector(begin, answer.ids.end())));
  };
  const auto texts = load(R"({"prompt": "1+1=", "completion": "2", "label": true})"
                          "\n"
                          R"({"prompt": "1+1=", "completion": "3", "label": false, "other": 1})");
  ASSERT_EQ(texts.size(), 2);
  EXPECT_TRUE(texts[0].wanted);
  EXPECT_FALSE(texts[1].wanted);
  EXPECT_EQ(text_of(texts[1]).second, "3<|eos|>");
  EXPECT_EQ(std::count(texts[0].mask.begin(), texts[0].mask.end(), 1),
            std::ssize(texts[0].ids) - texts[0].prompt_length);
  const auto chat = load(R"({"prompt": [{"role": "user", "content": "q"}], "completion": )"
                         R"([{"role": "assistant", "content": "a"}], "label": true})");
  EXPECT_EQ(text_of(chat[0]),
            (std::pair<std::string, std::string>("<user>q<|eos|><assistant>", "a<|eos|>")));
  const auto refusal = [&](const std::string& line) -> std::string {
    try {
      load(R"({"prompt": "1+1=", "completion": "2", "label": true})"
           "\n" +
           line);
    } catch (const UserError& error) { return error.what(); }
    return "";
  };
  const auto refused = [&](const std::string& line, const char* words) {
    const std::string said = refusal(line);
    EXPECT_NE(said.find("data.jsonl:2"), std::string::npos) << said;
    EXPECT_NE(said.find(words), std::string::npos) << said;
  };
  refused(R"({"prompt": "a", "chosen": "b", "rejected": "c"})", "is a column of pairs");
  refused(R"({"prompt": "a", "completion": "b"})", "no `label`");
  refused(R"({"prompt": "a", "completion": "b", "label": 1})", "expected true or false");
  refused(R"({"prompt": "a", "completion": "b", "label": "true"})", "expected true or false");
  refused(R"({"prompt": "a", "label": true})", "no `completion`");
  refused(R"({"completion": "b", "label": true})", "neither `prompt` nor `messages`");
  refused(
      R"({"prompt": "a", "completion": [{"role": "assistant", "content": "a"}], "label": true})",
      "give both in one form");
}

TEST_F(Forms, PairsFromSingleAnswersAreRefused) {
  const auto tokenizer = tutorial("");
  try {
    PreferenceSet::load(options(R"({"prompt": "a", "completion": "b", "label": true})"), tokenizer);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("data.jsonl:1: `completion` without `chosen`"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(Forms, PromptsMayBeLists) {
  const auto tokenizer = tutorial(chatml_);
  const std::string wanted = "<user>1+1=<|eos|><assistant>";
  const std::string list = R"([{"role": "user", "content": "1+1="}])";
  EXPECT_EQ(prompt_of(R"({"prompt": )" + list + R"(, "label": "2"})", tokenizer), wanted);
  EXPECT_EQ(prompt_of(R"({"prompt": )" + list + "}", tokenizer, {.messages = "prompt"}), wanted);
  EXPECT_EQ(prompt_of(R"({"q": )" + list + "}", tokenizer, {.prompt = "q"}), wanted);
  EXPECT_EQ(prompt_of(R"({"prompt": null, "messages": )" + list + "}", tokenizer), wanted);
  EXPECT_NE(prompt_of(R"({"prompt": "a", "messages": )" + list + "}", tokenizer)
                .find("both `prompt` and `messages`"),
            std::string::npos);
  EXPECT_NE(prompt_of(R"({"prompt": []})", tokenizer).find("an empty list"), std::string::npos);
  EXPECT_NE(prompt_of(R"({"prompt": "1+1="})", tokenizer, {.messages = "prompt"})
                .find("`prompt` is string, expected a list of messages"),
            std::string::npos);
}

TEST_F(Forms, PartsOfTexts) {
  const auto tokenizer = tutorial(chatml_);
  const auto user = [&](const std::string& content) {
    return prompt_of(R"({"messages": [{"role": "user", "content": )" + content + "}]}", tokenizer);
  };
  EXPECT_EQ(user(R"([{"type": "text", "text": "1+1="}])"), "<user>1+1=<|eos|><assistant>");
  EXPECT_EQ(user(R"([{"type": "text", "text": "1+1="}, {"type": "text", "text": "?"}])"),
            "<user>1+1=\n?<|eos|><assistant>")
      << "a line for each part, as in vLLM and llama.cpp";
  EXPECT_EQ(user(R"(["1", {"type": "input_text", "text": "2"}, {"text": "3"}])"),
            "<user>1\n2\n3<|eos|><assistant>");
  EXPECT_EQ(user(R"([{"type": "text", "text": "a", "image": null}])"), "<user>a<|eos|><assistant>");
  EXPECT_EQ(user("[]"), "<user><|eos|><assistant>");
  EXPECT_NE(user(R"([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}])")
                .find("messages[0].content[1] has the type \"image_url\", but models here read "
                      "texts only"),
            std::string::npos);
  EXPECT_NE(user(R"([{"type": "text"}])").find("content[0] has no `text`"), std::string::npos);
  EXPECT_NE(user("[1]").find("content[0] is number"), std::string::npos);
  EXPECT_NE(user("null").find("content is null, which only a turn with `tool_calls` may have"),
            std::string::npos);
  EXPECT_NE(user("7").find("content is number, expected a text"), std::string::npos);
  const auto set = PromptSet::load(
      options(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]})"),
      tokenizer);
  EXPECT_EQ(messages_json(set[0].messages),
            R"([{"role": "user","content":[{"type":"text","text":"a"}]}])")
      << "plugins get what came";
}

TEST_F(Forms, ShareGpt) {
  const auto tokenizer = tutorial(chatml_);
  const std::string turns =
      R"([{"from": "human", "value": "1+1="}, {"from": "gpt", "value": "2"}, {"from": "human", "value": "2+2="}])";
  const std::string wanted = "<user>1+1=<|eos|><assistant>2<|eos|><user>2+2=<|eos|><assistant>";
  EXPECT_EQ(prompt_of(R"({"conversations": )" + turns + "}", tokenizer), wanted);
  EXPECT_EQ(prompt_of(R"({"messages": )" + turns + "}", tokenizer), wanted);
  EXPECT_EQ(prompt_of(R"({"prompt": )" + turns + "}", tokenizer), wanted);
  EXPECT_EQ(prompt_of(R"({"system": "s", "conversations": )" + turns + "}", tokenizer),
            "<system>s<|eos|>" + wanted);
  EXPECT_NE(prompt_of(R"({"conversations": [{"from": "alien", "value": "x"}]})", tokenizer)
                .find("conversations[0].from is \"alien\""),
            std::string::npos);
  EXPECT_NE(prompt_of(R"({"conversations": [{"from": "human"}]})", tokenizer)
                .find("conversations[0] has no `value`"),
            std::string::npos);
  const auto set = SftSet::load(
      options(
          R"({"id": "x", "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})"),
      tokenizer);
  EXPECT_EQ(tokenizer.decode(set[0].ids), "<user>q<|eos|><assistant>a<|eos|>");
}

// The answer of a chat in a column of its own: TRL's `completion`, or `response` after `messages`.
TEST_F(Forms, AnswersToAChatAreLearned) {
  const auto tokenizer = tutorial(chatml_);
  const std::string chat =
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}])";
  const std::string conversations =
      R"([{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}])";
  const std::string turn = R"({"role": "assistant", "content": "d"})";
  const auto learned = [&](const std::string& line) {
    const auto set = SftSet::load(options("{" + line + "}"), tokenizer);
    std::vector<text::TokenId> prompt, answer;
    for (size_t i = 0; i < set[0].ids.size(); ++i)
      (set[0].loss_mask[i] == 1 ? answer : prompt).push_back(set[0].ids[i]);
    return std::pair(tokenizer.decode(prompt), tokenizer.decode(answer));
  };
  const std::pair<std::string, std::string> wanted(
      "<user>a<|eos|><assistant>b<|eos|><user>c<|eos|><assistant>", "d<|eos|>");
  for (const std::string& prompt :
       {"\"prompt\": " + chat, "\"messages\": " + chat, "\"conversations\": " + conversations}) {
    for (const std::string& answer :
         {"\"completion\": [" + turn + "]", "\"completion\": " + turn,
          std::string("\"completion\": \"d\""), std::string("\"response\": \"d\""),
          "\"response\": " + turn, std::string(R"("response": {"from": "gpt", "value": "d"})"),
          std::string(R"("response": "d", "completion": "e")")})
      EXPECT_EQ(learned(prompt + ", " + answer), wanted) << prompt << answer;
  }
  EXPECT_EQ(learned(R"("prompt": "1+1=", "completion": "2")").second, "2<|eos|>");
  EXPECT_EQ(learned(R"("messages": [{"role": "user", "content": "a"}, )" + turn +
                    R"(], "response": "other")")
                .second,
            "d<|eos|>")
      << "a chat that is complete";
}

TEST_F(Forms, OneTurnStandsForAList) {
  const auto tokenizer = tutorial(chatml_);
  const std::string wanted = "<user>1+1=<|eos|><assistant>";
  EXPECT_EQ(prompt_of(R"({"prompt": {"role": "user", "content": "1+1="}})", tokenizer), wanted);
  EXPECT_EQ(prompt_of(R"({"messages": {"from": "human", "value": "1+1="}})", tokenizer), wanted);
  // As LLaMA-Factory's preference sets have it.
  const auto set = PreferenceSet::load(
      options(
          R"({"conversations": [{"from": "human", "value": "1+1="}], "chosen": {"from": "gpt", "value": "2"}, "rejected": {"from": "gpt", "value": "3"}})"),
      tokenizer);
  EXPECT_EQ(tokenizer.decode(set[0].chosen), wanted + "2<|eos|>");
  EXPECT_EQ(tokenizer.decode(set[0].rejected), wanted + "3<|eos|>");
  EXPECT_NE(prompt_of(R"({"prompt": {"text": "1+1="}})", tokenizer).find("expected a text"),
            std::string::npos);
  EXPECT_NE(prompt_of(R"({"messages": {"role": ["user"], "content": ["a"]}})", tokenizer)
                .find("messages.role is array, expected a text"),
            std::string::npos)
      << "columns of turns";
}

TEST_F(Forms, ANullContentNeedsACall) {
  const auto tokenizer = tutorial(chatml_);
  for (const char* calls : {"[]", "null"}) {
    EXPECT_NE(prompt_of(R"({"messages": [{"role": "assistant", "content": null, "tool_calls": )" +
                            std::string(calls) + R"(}, {"role": "user", "content": "a"}]})",
                        tokenizer)
                  .find("which only a turn with `tool_calls` may have"),
              std::string::npos);
  }
}

TEST_F(Forms, ColumnsForTheTemplateAreChecked) {
  const auto tokenizer = tutorial(chatml_);
  const auto with = [&](const std::string& column) {
    return prompt_of(R"({"messages": [{"role": "user", "content": "q"}], )" + column + "}",
                     tokenizer);
  };
  EXPECT_NE(with(R"("tools": {"name": "f"})")
                .find("`tools`, which goes to the chat template, is "
                      "object, expected a list of objects"),
            std::string::npos);
  EXPECT_NE(with(R"("tools": ["f"])").find("with an entry that is none"), std::string::npos);
  EXPECT_NE(with(R"("documents": 3)").find("`documents`"), std::string::npos);
  EXPECT_NE(with(R"("tools": "[{]")").find("not JSON"), std::string::npos);
  EXPECT_NE(with(R"("chat_template_kwargs": [1])").find("expected a JSON object"),
            std::string::npos);
  EXPECT_NE(with(R"("chat_template_kwargs": {"messages": []})").find("not a variable of templates"),
            std::string::npos);
  EXPECT_NE(with(R"("chat_template_kwargs": {"tools": "[]"})")
                .find("\"tools\" is string, expected a list of objects"),
            std::string::npos);
  EXPECT_NE(with(R"("chat_template_kwargs": {"documents": ["d"]})").find("an entry that is none"),
            std::string::npos);
  const std::string plain = "<user>q<|eos|><assistant>";
  EXPECT_EQ(with(R"("chat_template_kwargs": {"tools": [{"name": "f"}], "documents": null})"),
            plain);
  EXPECT_EQ(with(R"("tools": "null")"), plain);
  EXPECT_EQ(with(R"("chat_template_kwargs": "{\"x\": 1}")"), plain);
  EXPECT_EQ(prompt_of(R"({"prompt": "text", "tools": "a word"})", tokenizer), "text")
      << "a text has no template";
}

// Rows as the Hub has them: HuggingFaceH4/ultrafeedback_binarized and Anthropic/hh-rlhf (their
// form; the words are ours).
TEST_F(Forms, PreferenceSetsAsPublished) {
  const auto tokenizer = tutorial(chatml_);
  const auto set = PreferenceSet::load(
      options(
          R"({"prompt": "1+1=", "prompt_id": "ab", "chosen": [{"content": "1+1=", "role": "user"}, {"content": "2", "role": "assistant"}], "rejected": [{"content": "1+1=", "role": "user"}, {"content": "3", "role": "assistant"}], "messages": [{"content": "1+1=", "role": "user"}, {"content": "2", "role": "assistant"}], "score_chosen": 8.0, "score_rejected": 1.0}
{"chosen": "\n\nHuman: 1+1=\n\nAssistant: 2", "rejected": "\n\nHuman: 1+1=\n\nAssistant: 3"}
{"chosen": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c: d\n\nAssistant: e\n\nf ", "rejected": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c: d\n\nAssistant:"}
{"chosen": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant: d", "rejected": "\n\nHuman: a\n\nAssistant: x\n\nHuman: y\n\nAssistant: z"}
{"chosen": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant: d", "rejected": "\n\nHuman: a\n\nAssistant: b\n\nHuman: y\n\nAssistant: z\n\nHuman: bye"})"),
      tokenizer);
  ASSERT_EQ(set.size(), 5);
  const auto text = [&](const std::vector<text::TokenId>& ids) { return tokenizer.decode(ids); };
  for (const int64_t row : {0, 1}) {
    EXPECT_EQ(text(set[row].chosen), "<user>1+1=<|eos|><assistant>2<|eos|>");
    EXPECT_EQ(text(set[row].rejected), "<user>1+1=<|eos|><assistant>3<|eos|>");
    EXPECT_EQ(set[row].prompt_length,
              static_cast<int32_t>(tokenizer.encode("<user>1+1=<|eos|><assistant>").size()));
  }
  const std::string prompt = "<user>a<|eos|><assistant>b<|eos|><user>c: d<|eos|><assistant>";
  EXPECT_EQ(text(set[2].chosen), prompt + "e\n\nf <|eos|>");
  EXPECT_EQ(text(set[2].rejected), prompt + "<|eos|>");
  EXPECT_EQ(set[2].prompt_length, static_cast<int32_t>(tokenizer.encode(prompt).size()));
  EXPECT_EQ(text(set[3].rejected),
            "<user>a<|eos|><assistant>x<|eos|><user>y<|eos|><assistant>z<|eos|>");
  for (const int64_t row : {3, 4})  // also where the user's turns part, or one ends the dialogue
    EXPECT_EQ(set[row].prompt_length,
              static_cast<int32_t>(tokenizer.encode("<user>a<|eos|><assistant>").size()));
  EXPECT_EQ(text(set[4].rejected),
            "<user>a<|eos|><assistant>b<|eos|><user>y<|eos|><assistant>z<|eos|>");
}

// Without their leading line ends, as after a strip().
TEST_F(Forms, DialoguesMayBeginAtOnce) {
  const std::string line =
      R"({"chosen": "Human: a\n\nAssistant: b", "rejected": "Human: a\n\nAssistant: c"})";
  const auto tokenizer = tutorial(chatml_);
  const auto set = PreferenceSet::load(options(line), tokenizer);
  EXPECT_EQ(tokenizer.decode(set[0].chosen), "<user>a<|eos|><assistant>b<|eos|>");
  EXPECT_EQ(tokenizer.decode(set[0].rejected), "<user>a<|eos|><assistant>c<|eos|>");
  const test::TemporaryFolder bare;
  bare.write("tokenizer.json", test::read_text(test::source_folder() / "inputs/tutorial/tokenizer" /
                                               "tokenizer.json"));
  bare.write("tokenizer_config.json", R"({"bos_token": "<|bos|>", "eos_token": "<|eos|>"})");
  const auto without = text::Tokenizer::load(bare.path());
  EXPECT_EQ(without.decode(PreferenceSet::load(options(line), without)[0].chosen),
            "<|bos|>Human: a\n\nAssistant: b<|eos|>");
}

// Without a chat template the texts of HH stay as they are, as in the DPO paper's code.
TEST_F(Forms, DialoguesWithoutATemplate) {
  const auto tokenizer = tutorial("");
  const auto set = PreferenceSet::load(
      options(
          R"({"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"})"),
      tokenizer);
  EXPECT_EQ(tokenizer.decode(set[0].chosen), "<|bos|>\n\nHuman: a\n\nAssistant: b<|eos|>");
  EXPECT_EQ(tokenizer.decode(set[0].rejected), "<|bos|>\n\nHuman: a\n\nAssistant: c<|eos|>");
  EXPECT_EQ(set[0].prompt_length,
            static_cast<int32_t>(
                tokenizer.encode("\n\nHuman: a\n\nAssistant:", text::SpecialTokens::added).size()));
  const auto message = test::error_of(ExitCode::bad_data, [&] {
    PreferenceSet::load(
        options(
            R"({"chosen": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant: d", "rejected": "\n\nHuman: a\n\nAssistant: x\n\nHuman: c\n\nAssistant: d"})"),
        tokenizer);
  });
  EXPECT_NE(message.find("differ before the last turn"), std::string::npos) << message;
}

class SpecialTokensOnce : public Forms {
 protected:
  // The tutorials' tokenizer, with an end token after texts as well.
  text::Tokenizer with_end() const {
    std::string json =
        test::read_text(test::source_folder() / "inputs/tutorial/tokenizer/tokenizer.json");
    auto file = nlohmann_of(json);
    model_.write("tokenizer.json", file);
    model_.write("tokenizer_config.json",
                 R"({"bos_token": "<|bos|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>"})");
    return text::Tokenizer::load(model_.path());
  }
  static std::string nlohmann_of(std::string json) {
    // In the form `single` only: <|bos|> A <|eos|>.
    const std::string sequence = "\"single\"";
    const size_t single = json.find(sequence);
    const size_t end = json.find(']', single);
    json.insert(end, R"(, {"SpecialToken": {"id": "<|eos|>", "type_id": 0}})");
    const size_t table = json.find("\"special_tokens\"", end);
    json.insert(json.find('{', table) + 1,
                R"("<|eos|>": {"id": "<|eos|>", "ids": [258], "tokens": ["<|eos|>"]}, )");
    return json;
  }
};

TEST_F(SpecialTokensOnce, OfTexts) {
  using enum text::SpecialTokens;
  const auto tokenizer = tutorial("");
  using Ids = std::vector<text::TokenId>;
  EXPECT_EQ(tokenizer.encode("<|bos|>1", once), (Ids{257, '1'}));
  EXPECT_EQ(tokenizer.encode("<|bos|>1", added), (Ids{257, 257, '1'}));
  EXPECT_EQ(tokenizer.encode("<|bos|>1", none), (Ids{257, '1'}));
  EXPECT_EQ(tokenizer.encode("1<|bos|>", once), (Ids{257, '1', 257}));
  EXPECT_EQ(tokenizer.encode("", once), (Ids{257}));
  EXPECT_EQ(tokenizer.encode("<|bos|>", once), (Ids{257}));
  EXPECT_EQ(tokenizer.encode("<|bos|><|bos|>1", once), (Ids{257, 257, '1'})) << "as it stands";
  const auto ended = with_end();
  EXPECT_EQ(ended.encode("1", once), (Ids{257, '1', 258}));
  EXPECT_EQ(ended.encode("<|bos|>1", once), (Ids{257, '1', 258}));
  EXPECT_EQ(ended.encode("1<|eos|>", once), (Ids{257, '1', 258}));
  EXPECT_EQ(ended.encode("<|bos|>1<|eos|>", once), (Ids{257, '1', 258}));
  EXPECT_EQ(ended.encode("<|bos|>1<|eos|>", added), (Ids{257, 257, '1', 258, 258}));
  EXPECT_EQ(ended.encode("<|eos|>", once), (Ids{257, 258}));
  EXPECT_EQ(ended.encode("\n <|bos|>1<|eos|>\n", once), (Ids{'\n', ' ', 257, '1', 258, '\n'}))
      << "space beside them changes nothing";
  EXPECT_EQ(ended.encode("1 <|bos|>", once), (Ids{257, '1', ' ', 257, 258}));
}

TEST_F(SpecialTokensOnce, OfEverySet) {
  const auto tokenizer = tutorial("");
  const auto check = [&](const std::string& with, const std::string& without, auto loader,
                         auto ids_of) {
    for (const auto policy :
         {text::SpecialTokens::once, text::SpecialTokens::added, text::SpecialTokens::none}) {
      SetOptions wanted = options(with + "\n" + without);
      wanted.special_tokens = policy;
      const auto set = loader(wanted, tokenizer, EncodingTeam{});
      ASSERT_EQ(set.size(), 2);
      const auto begins = [&](int64_t row) {
        const auto& ids = ids_of(set[row]);
        return std::find_if(ids.begin(), ids.end(), [](auto id) { return id != 257; }) -
               ids.begin();
      };
      const bool once = policy == text::SpecialTokens::once,
                 added = policy == text::SpecialTokens::added;
      EXPECT_EQ(begins(0), added ? 2 : 1) << with;
      EXPECT_EQ(begins(1), once || added ? 1 : 0) << without;
      const auto lines = describe_remarks(set.counts(), wanted);
      ASSERT_EQ(lines.size(), once || added ? 1u : 0u);
      if (lines.empty()) continue;
      EXPECT_EQ(lines[0].warning, added);
      EXPECT_NE(lines[0].text.find("1 texts have special tokens"), std::string::npos);
      EXPECT_NE(lines[0].text.find("data.jsonl:1)"), std::string::npos) << lines[0].text;
    }
  };
  check(R"({"prompt": "<|bos|>1+1="})", R"({"prompt": "1+1="})", PromptSet::load,
        [](const auto& row) { return row.ids; });
  check(R"({"text": "<|bos|>1"})", R"({"text": "1"})", SftSet::load,
        [](const auto& row) { return row.ids; });
  check(R"({"prompt": "<|bos|>1", "response": "2"})", R"({"prompt": "1", "response": "2"})",
        SftSet::load, [](const auto& row) { return row.ids; });
  check(R"({"prompt": "<|bos|>1", "chosen": "2", "rejected": "3"})",
        R"({"prompt": "1", "chosen": "2", "rejected": "3"})", PreferenceSet::load,
        [](const auto& row) { return row.rejected; });
  const auto inputs = read_inputs(folder_.write("in.jsonl", "{\"text\": \"<|bos|>1\"}\n"));
  EXPECT_EQ(inputs[0].encode(tokenizer).size(), 2u);
  EXPECT_EQ(inputs[0].encode(tokenizer, text::SpecialTokens::added).size(), 3u);
}

TEST_F(Forms, HowLinesOfToolsAskForTheEnd) {
  const auto tokenizer = tutorial(chatml_);
  const auto render = [&](const std::string& more) {
    const auto file = folder_.write(
        "in.jsonl",
        R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "It"}])" +
            more + "}\n");
    return read_inputs(file)[0].render(tokenizer);
  };
  const std::string open = "<user>q<|eos|><assistant>It";
  EXPECT_EQ(render(""), open);
  EXPECT_EQ(render(R"(, "continue_final_message": true)"), open);
  EXPECT_EQ(render(R"(, "add_generation_prompt": false)"), open + "<|eos|>");
  EXPECT_EQ(render(R"(, "add_generation_prompt": true)"), open + "<|eos|><assistant>");
  EXPECT_EQ(render(R"(, "add_generation_prompt": false, "continue_final_message": true)"), open);
  EXPECT_NE(
      test::error_of(
          ExitCode::bad_data,
          [&] { render(R"(, "add_generation_prompt": true, "continue_final_message": true)"); })
          .find("opened or continued, keep one"),
      std::string::npos);
}

TEST_F(Forms, AChatThatEndsInACallCannotBeContinued) {
  const auto tokenizer = tutorial(chatml_);
  EXPECT_NE(
      prompt_of(
          R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": null, "tool_calls": [{}]}]})",
          tokenizer)
          .find("without text (a tool call), which cannot be continued"),
      std::string::npos);
}

TEST_F(Forms, ExamplesWithoutATokenToLearnAreEmpty) {
  const auto tokenizer = tutorial(
      "{% for m in messages %}{% if m.role == 'user' %}<{{ m.content }}>{% endif %}{% endfor %}");
  const std::string chat =
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})";
  const auto set = SftSet::load(options(chat + "\n{\"text\": \"a\"}"), tokenizer);
  EXPECT_EQ(set.size(), 1);
  EXPECT_EQ(set.counts().empty, 1);
  EXPECT_NE(test::error_of(ExitCode::bad_data, [&] { SftSet::load(options(chat), tokenizer); })
                .find("no usable record (0 longer than"),
            std::string::npos);
}

}  // namespace
}  // namespace trireme::data
