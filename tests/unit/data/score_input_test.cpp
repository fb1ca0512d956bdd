#include "trireme/data/score_input.hpp"

#include <gtest/gtest.h>

#include "support/text_files.hpp"

namespace trireme::data {
namespace {

class ScoreInputs : public testing::Test {
 protected:
  std::vector<ScoreInput> read(const std::string& lines) const {
    return read_score_inputs(folder_.write("in.jsonl", lines));
  }
  ScoredTokens tokens(const std::string& line) const {
    return read(line + "\n").at(0).tokens(tokenizer_);
  }
  // What is scored, and of that the part whose log-probs are asked for.
  std::pair<std::string, std::string> parts(const std::string& line) const {
    const ScoredTokens made = tokens(line);
    return {tokenizer_.decode(made.ids),
            tokenizer_.decode(std::span(made.ids).subspan(static_cast<size_t>(made.first)))};
  }
  std::string refusal(const std::string& line) const {
    return test::error_of(ExitCode::bad_data, [&] { tokens(line); });
  }
  using Parts = std::pair<std::string, std::string>;

  text::Tokenizer tokenizer_ = test::load_tokenizer("digits_bytelevel");
  test::TemporaryFolder folder_;
  const std::string opened_ =
      "<|im_start|>system\nYou are a helpful assistant that answers briefly.<|im_end|>\n"
      "<|im_start|>user\n1+1=<|im_end|>\n<|im_start|>assistant\n";
};

TEST_F(ScoreInputs, AResponseIsScoredGivenItsPrompt) {
  EXPECT_EQ(parts(R"({"prompt": "3+4=", "response": "7"})"),
            Parts("3+4=7<|im_end|>", "7<|im_end|>"));
  EXPECT_EQ(parts(R"({"prompt": "3+4=", "response": "7<|im_end|>", "label": "7"})"),
            Parts("3+4=7<|im_end|>", "7<|im_end|>"))
      << "one end";
  EXPECT_EQ(parts(R"({"prompt": "3+4=", "response": "7", "finish_reason": "length"})"),
            Parts("3+4=7", "7"));
  EXPECT_EQ(parts(R"({"prompt": "3+4=", "response": "7", "finish_reason": "stop"})").second,
            "7<|im_end|>");
  for (const char* turn :
       {R"({"role": "assistant", "content": "7"})", R"([{"role": "assistant", "content": "7"}])",
        R"({"from": "gpt", "value": "7"})"})
    EXPECT_EQ(parts(R"({"prompt": "3+4=", "response": )" + std::string(turn) + "}"),
              Parts("3+4=7<|im_end|>", "7<|im_end|>"))
        << turn;
  const auto llama = test::load_tokenizer("llama3");
  const auto made = read(R"({"prompt": "p", "response": "r"})").at(0).tokens(llama);
  EXPECT_EQ(llama.decode(made.ids), "<|begin_of_text|>pr<|eot_id|>");
  EXPECT_EQ(made.first, 2);
}

TEST_F(ScoreInputs, ChatsEndWhereARolloutWould) {
  const std::string turns = R"({"role": "user", "content": "1+1="})";
  const std::string answer = R"({"role": "assistant", "content": "2"})";
  const auto whole = tokens("{\"messages\": [" + turns + "," + answer + "]}");
  EXPECT_EQ(tokenizer_.decode(whole.ids), opened_ + "2<|im_end|>");
  EXPECT_EQ(whole.first, 1);
  const std::string text =
      R"({"text": ")"
      "<|im_start|>system\\nYou are a helpful assistant that answers briefly.<|im_end|>\\n"
      "<|im_start|>user\\n1+1=<|im_end|>\\n<|im_start|>assistant\\n2<|im_end|>\"}";
  EXPECT_EQ(whole.ids, tokens(text).ids) << "the scores of the rendered text";
  EXPECT_EQ(parts("{\"messages\": [" + turns + "], \"response\": \"2\"}"),
            Parts(opened_ + "2<|im_end|>", "2<|im_end|>"));
  EXPECT_EQ(
      parts("{\"messages\": [" + turns + "], \"response\": \"2\", \"finish_reason\": \"length\"}"),
      Parts(opened_ + "2", "2"));
  EXPECT_EQ(tokenizer_.decode(tokens("{\"messages\": [" + turns + "," + answer + "," + turns + "," +
                                     answer + "], \"add_generation_prompt\": false}")
                                  .ids),
            opened_ +
                "2<|im_end|>\n<|im_start|>user\n1+1=<|im_end|>\n<|im_start|>assistant\n"
                "2<|im_end|>");
}

TEST_F(ScoreInputs, TextsAndIdsStandAsTheyAre) {
  EXPECT_EQ(parts(R"({"text": "a b", "source": "x"})"), Parts("a b", " b"));
  EXPECT_EQ(tokens(R"({"input_ids": [5, 6]})").ids, (std::vector<text::TokenId>{5, 6}));
  EXPECT_EQ(tokens(R"({"ids": [7]})").ids, (std::vector<text::TokenId>{7}));
}

TEST_F(ScoreInputs, WhatIsNotUnderstoodIsRefused) {
  const std::string user = R"({"messages": [{"role": "user", "content": "a"}])";
  const std::vector<std::pair<std::string, std::string>> lines{
      {R"({"prompt": "a"})", "`prompt` without `response`"},
      {R"({"response": "a"})", "add one"},
      {R"({"text": "a", "response": "b"})", "`response` belongs to an answer"},
      {R"({"input_ids": [1], "response": "b"})", "`response` belongs to an answer"},
      {R"({"text": "a", "finish_reason": "stop"})", "`finish_reason` belongs to an answer"},
      {R"({"prompt": "a", "response": "b", "finish_reason": "eos"})",
       "expected stop, length or stop_string"},
      {R"({"prompt": "a", "chosen": "b", "rejected": "c"})", "`chosen` is not known to score"},
      {R"({"prompt": "a", "completion": "b"})", "name the answer `response`"},
      {R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "completion": "b"})",
       "name the answer `response`"},
      {R"({"prompt": "a", "response": [{"role": "user", "content": "b"}]})",
       "not one turn of the assistant"},
      {R"({"prompt": "a", "response": ["b"]})", "response[0] is string"},
      {user + "}", "ends with a turn of \"user\""},
      {user + R"(, "response": "b", "prompt": "c"})", "both"},
      {user + R"(, "response": "b", "add_generation_prompt": true})", "remove it"},
      {R"({"messages": [{"role": "assistant", "content": "a"}]})", "nothing before the answer"},
      {R"({"prompt": "a", "text": "b", "response": "c"})", "both"},
      {R"({"completion": "a"})", "add one"},
  };
  for (const auto& [line, part] : lines) {
    const std::string message = refusal(line);
    EXPECT_NE(message.find("in.jsonl:1: "), std::string::npos) << message;
    EXPECT_NE(message.find(part), std::string::npos) << line << ": " << message;
  }
}

}  // namespace
}  // namespace trireme::data
