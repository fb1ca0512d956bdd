// Chats of records against transformers and TRL (gold/chats.jsonl; gold/make_chats.py made it), and
// where learning begins in a turn whose template opens a thought.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "support/text_files.hpp"
#include "trireme/data/prompt_set.hpp"

namespace trireme::data {
namespace {

using nlohmann::ordered_json;

// The bytes tokenizer of the tutorials with another chat template.
text::Tokenizer tokenizer_with(const std::string& chat_template) {
  static std::map<std::string, text::Tokenizer> loaded;
  if (const auto found = loaded.find(chat_template); found != loaded.end()) return found->second;
  const test::TemporaryFolder folder;
  const auto from = test::source_folder() / "inputs/tutorial/tokenizer";
  folder.write("tokenizer.json", test::read_text(from / "tokenizer.json"));
  folder.write("tokenizer_config.json", test::read_text(from / "tokenizer_config.json"));
  folder.write("chat_template.jinja", chat_template);
  return loaded.emplace(chat_template, text::Tokenizer::load(folder.path())).first->second;
}

class Chats : public testing::Test {
 protected:
  SetOptions options(const std::string& line) const {
    SetOptions made;
    made.files = {folder_.write("data.jsonl", line + "\n")};
    return made;
  }
  test::TemporaryFolder folder_;
};

struct Learned {
  std::string before, answer, after;  // texts without loss, with loss, and without again
};
Learned learned(const text::Tokenizer& tokenizer, const std::vector<text::TokenId>& ids,
                const std::vector<uint8_t>& mask) {
  EXPECT_EQ(ids.size(), mask.size());
  const auto first = std::find(mask.begin(), mask.end(), 1) - mask.begin();
  const auto last = std::find(mask.rbegin(), mask.rend(), 1).base() - mask.begin();
  const auto text = [&](auto from, auto to) {
    return from < to ? tokenizer.decode(std::vector(ids.begin() + from, ids.begin() + to))
                     : std::string();
  };
  return {text(decltype(first){0}, first), text(first, last), text(last, std::ssize(ids))};
}

std::string records_text(const ordered_json& record) { return record.dump(); }

TEST_F(Chats, AreRenderedAsTrlAndTransformersDo) {
  std::ifstream in(test::source_folder() / "tests/unit/data/gold/chats.jsonl");
  ASSERT_TRUE(in);
  std::map<std::string, int> count;
  for (std::string line; std::getline(in, line);) {
    const auto gold = ordered_json::parse(line);
    const std::string form = gold["form"];
    const auto tokenizer = tokenizer_with(gold["template"])
                               .with_template_inputs({gold["kwargs"].dump(), gold["date"]});
    const SetOptions wanted = options(records_text(gold["record"]));
    SCOPED_TRACE(line);
    ++count[form];
    if (gold.contains("text") && gold["text"].is_null()) {
      EXPECT_THROW(PromptSet::load(wanted, tokenizer), UserError);
      continue;
    }
    try {
      if (form == "prompt") {
        const std::string text = gold["text"];
        const auto set = PromptSet::load(wanted, tokenizer);
        EXPECT_EQ(set[0].prompt, text);
        EXPECT_EQ(tokenizer.decode(set[0].ids), text);
        const auto inputs = read_inputs(wanted.files[0]);
        EXPECT_EQ(inputs[0].render(tokenizer), text) << "tokenize, generate, score";
      } else if (form == "sft") {
        const auto set = SftSet::load(wanted, tokenizer);
        const Learned got = learned(tokenizer, set[0].ids, set[0].loss_mask);
        EXPECT_EQ(got.before, gold["parts"][0].get<std::string>());
        EXPECT_EQ(got.answer + got.after, gold["parts"][1].get<std::string>());
      } else {
        const auto set = PreferenceSet::load(wanted, tokenizer);
        const auto check = [&](const auto& ids, const auto& mask, size_t part) {
          const Learned got = learned(tokenizer, ids, mask);
          EXPECT_EQ(got.before, gold["parts"][0].template get<std::string>());
          EXPECT_EQ(got.after, "") << "the reward is read at the last token";
          const std::string answer = gold["parts"][part];
          EXPECT_TRUE(answer.starts_with(got.answer)) << got.answer;
          const std::string tail = answer.substr(std::min(answer.size(), got.answer.size()));
          EXPECT_EQ(tail.find_first_not_of("\n"), std::string::npos) << tail;
        };
        check(set[0].chosen, set[0].chosen_mask, 1);
        check(set[0].rejected, set[0].rejected_mask, 2);
        EXPECT_EQ(set[0].prompt_length,
                  std::find(set[0].chosen_mask.begin(), set[0].chosen_mask.end(), 1) -
                      set[0].chosen_mask.begin());
      }
    } catch (const UserError& error) { ADD_FAILURE() << error.what(); }
  }
  EXPECT_GT(count["prompt"], 90);
  EXPECT_GT(count["sft"], 15);
  EXPECT_GT(count["pair"], 40);
}

// Where TRL cuts inside what the answer begins with: "<" is the answer's, not the opening's.
TEST_F(Chats, AnAnswerIsWholeAlsoWhereItBeginsAsTheOpeningContinues) {
  const auto tokenizer = tokenizer_with(
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
      "{% if add_generation_prompt %}<assistant><think>\n{% endif %}");
  for (const std::string answer :
       {"<b>2</b>", "<think>2", "<", "", "\xC3\xA9", "2", "<think>\n2"}) {
    ordered_json record{{"prompt", {{{"role", "user"}, {"content", "q"}}}}, {"response", answer}};
    const auto set = SftSet::load(options(record.dump()), tokenizer);
    const Learned got = learned(tokenizer, set[0].ids, set[0].loss_mask);
    const bool opened = answer.starts_with("<think>\n");  // the generation prompt gives it
    EXPECT_EQ(got.answer, (opened ? answer.substr(8) : answer) + "<|eos|>");
    EXPECT_EQ(got.before, std::string("<user>q<|eos|><assistant>") + (opened ? "<think>\n" : ""));
    const auto& remark = set.counts().remarks[static_cast<size_t>(Remark::shorter_opening)];
    EXPECT_EQ(remark.records, opened ? 0 : 1);
  }
}

// OpenAI's files for fine-tuning: `weight` of a turn of the assistant.
TEST_F(Chats, TurnsOfWeightZeroAreNotLearned) {
  const auto tokenizer = tokenizer_with(
      "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{{ eos_token }}{% endfor %}"
      "{% if add_generation_prompt %}<a>{% endif %}");
  const auto record = [](const std::vector<std::string>& weights) {
    ordered_json messages = ordered_json::array();
    for (const std::string& weight : weights) {
      messages.push_back({{"role", "user"}, {"content", "q"}, {"weight", 0}});
      messages.push_back({{"role", "assistant"}, {"content", std::to_string(messages.size())}});
      if (!weight.empty()) messages.back()["weight"] = ordered_json::parse(weight);
    }
    return ordered_json{{"messages", messages}}.dump();
  };
  const auto learned_of = [&](const std::vector<std::string>& weights) {
    const auto set = SftSet::load(options(record(weights)), tokenizer);
    std::string targets;
    for (size_t t = 0; t < set[0].ids.size(); ++t) {
      if (set[0].loss_mask[t] != 0) targets += tokenizer.decode(std::vector{set[0].ids[t]});
    }
    return targets;
  };
  EXPECT_EQ(learned_of({"0", "1"}), "3<|eos|>");
  EXPECT_EQ(learned_of({"1", "0"}), "1<|eos|>");
  EXPECT_EQ(learned_of({"", "0.0", "1.0", "null"}), "1<|eos|>5<|eos|>7<|eos|>");
  for (const std::string wrong : {"0.5", "2", "-1", "true", "\"0\""})
    EXPECT_THROW(learned_of({"1", wrong}), UserError) << wrong;
  EXPECT_THROW(learned_of({"0", "0"}), UserError) << "nothing to learn";
  // An answer that continues a turn has a weight of its own.
  const auto continued = [&](int begun, int rest) {
    const ordered_json record{{"prompt",
                               {{{"role", "user"}, {"content", "q"}},
                                {{"role", "assistant"}, {"content", "a"}, {"weight", begun}}}},
                              {"response",
                               {{{"role", "assistant"}, {"content", "b"}, {"weight", rest}},
                                {{"role", "user"}, {"content", "r"}},
                                {{"role", "assistant"}, {"content", "c"}}}}};
    const auto set = SftSet::load(options(record.dump()), tokenizer);
    std::string targets;
    for (size_t t = 0; t < set[0].ids.size(); ++t) {
      if (set[0].loss_mask[t] != 0) targets += tokenizer.decode(std::vector{set[0].ids[t]});
    }
    return targets;
  };
  EXPECT_EQ(continued(0, 1), "b<|eos|>c<|eos|>");
  EXPECT_EQ(continued(1, 0), "c<|eos|>");
}

// Every turn of the assistant is learned, after the opening that generation has before it.
TEST_F(Chats, EachTurnOfAConversationBeginsAfterItsOpening) {
  const auto tokenizer = tokenizer_with(
      "{% for m in messages %}{% if m.role == 'user' %}<U>{{ m.content }}{% else %}<A>{{ "
      "m.content.split('</think>')[-1] }}{{ eos_token }}{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<A><think>\n{% endif %}");
  const auto set = SftSet::load(
      options(
          R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nhm</think>1"}, {"role": "user", "content": "b"}, {"role": "assistant", "content": "2"}]})"),
      tokenizer);
  std::string targets;
  for (size_t t = 0; t < set[0].ids.size(); ++t) {
    if (set[0].loss_mask[t] != 0) targets += tokenizer.decode(std::vector{set[0].ids[t]});
  }
  EXPECT_EQ(targets, "1<|eos|>2<|eos|>");
  EXPECT_EQ(tokenizer.decode(set[0].ids), "<U>a<A>1<|eos|><U>b<A>2<|eos|>");
  const auto lines = describe_remarks(set.counts(), SetOptions{});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0].text.find("1 answers do not begin with what"), std::string::npos);
  EXPECT_TRUE(lines[1].warning) << "the thought is not learned";
  EXPECT_NE(lines[1].text.find("data.jsonl:1): the chat template leaves out"), std::string::npos)
      << lines[1].text;
}

TEST_F(Chats, PairsMayContinueTheAssistantsTurn) {
  const auto tokenizer = tokenizer_with(
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}\n{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}");
  const auto set = PreferenceSet::load(
      options(
          R"({"prompt": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "It is "}], "chosen": "2", "rejected": [{"role": "assistant", "content": "3"}]})"),
      tokenizer);
  const Learned chosen = learned(tokenizer, set[0].chosen, set[0].chosen_mask);
  EXPECT_EQ(chosen.before, "<user>q<|eos|>\n<assistant>It is ");
  EXPECT_EQ(chosen.answer, "2<|eos|>");
  EXPECT_EQ(learned(tokenizer, set[0].rejected, set[0].rejected_mask).answer, "3<|eos|>");
}

// Answers of several turns: those of the user are not the policy's.
TEST_F(Chats, WholeChatsThatPartEarlyAreLearnedByTurns) {
  const auto tokenizer = tokenizer_with(
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}\n{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}");
  const auto set = PreferenceSet::load(
      options(
          R"({"chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "r"}, {"role": "assistant", "content": "b"}], "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "c"}]})"),
      tokenizer);
  std::string targets;
  for (size_t t = 0; t < set[0].chosen.size(); ++t) {
    if (set[0].chosen_mask[t] != 0) targets += tokenizer.decode(std::vector{set[0].chosen[t]});
  }
  EXPECT_EQ(targets, "a<|eos|>b<|eos|>");
  EXPECT_EQ(tokenizer.decode(set[0].chosen),
            "<user>q<|eos|>\n<assistant>a<|eos|>\n<user>r<|eos|>\n<assistant>b<|eos|>");
  EXPECT_EQ(tokenizer.decode(set[0].rejected), "<user>q<|eos|>\n<assistant>c<|eos|>");
}

}  // namespace
}  // namespace trireme::data
