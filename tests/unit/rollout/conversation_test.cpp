// Tokens of episodes against those that transformers gives (tests/gold/parity2/episodes.jsonl), and
// chat templates that render earlier turns in another way once something follows.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "rollout/conversation.hpp"
#include "support/source_folder.hpp"
#include "trireme/base/error.hpp"

namespace trireme::test {
namespace {

using rollout::Conversation;
using text::Tokenizer;
using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

std::vector<text::Message> messages_of(const Json& list) {
  std::vector<text::Message> out;
  for (const Json& one : list)
    out.push_back(
        {.role = one.at("role"), .content = one.at("content").get<std::string>(), .extra = {}});
  return out;
}

data::PromptRecord prompt_of(const Tokenizer& tokenizer, std::vector<text::Message> messages) {
  data::PromptRecord prompt;
  prompt.ids = tokenizer.encode_chat(messages, text::GenerationPrompt::with);
  prompt.messages = std::move(messages);
  return prompt;
}

Tokenizer tokenizer_of(const std::string& folder) {
  return Tokenizer::load(source_folder() / "tests/gold/parity" / folder);
}

// The token that ends each turn in the cases of a tokenizer.
Ids end_ids(const Tokenizer& tokenizer) {
  for (const char* token : {"<|im_end|>", "<|eot_id|>"}) {
    if (const auto id = tokenizer.token_to_id(token)) return {*id};
  }
  return {};
}

TEST(Conversation, HasTheTokensOfTheGoldenEpisodes) {
  std::ifstream in(source_folder() / "tests/gold/parity2/episodes.jsonl");
  int64_t episodes = 0, differ = 0, observations = 0;
  for (std::string line; std::getline(in, line); ++episodes) {
    const Json episode = Json::parse(line);
    SCOPED_TRACE(episode.at("name").get<std::string>());
    const Tokenizer tokenizer = tokenizer_of(episode.at("tokenizer"));
    const Ids ends = end_ids(tokenizer);
    const data::PromptRecord prompt = prompt_of(tokenizer, messages_of(episode.at("messages")));
    Conversation conversation(tokenizer, ends, prompt, "here");
    Ids ids = conversation.open({}, "");
    EXPECT_EQ(ids, episode.at("prompt_ids").get<Ids>());
    bool ends_with_turn = false;
    for (const Json& turn : episode.at("turns")) {
      const auto written = turn.at("assistant_ids").get<Ids>();
      ends_with_turn = turn.at("finish") == "stop";
      EXPECT_EQ(conversation.add_turn(written,
                                      ends_with_turn ? FinishReason::stop : FinishReason::length),
                turn.at("assistant_text").get<std::string>());
      ids.insert(ids.end(), written.begin(), written.end());
      if (!turn.contains("observation")) continue;
      ends_with_turn = false;
      const auto suffix = conversation.observe(messages_of(turn.at("observation")), "");
      EXPECT_EQ(suffix, turn.at("suffix_ids").get<Ids>());
      ids.insert(ids.end(), suffix.begin(), suffix.end());
      ++observations;
    }
    if (!ends_with_turn) continue;
    differ += !conversation.is_rendered_alike(ids);
    EXPECT_EQ(!conversation.is_rendered_alike(ids),
              episode.at("rendered_again_differs").get<bool>());
  }
  EXPECT_EQ(episodes, 11);
  EXPECT_GE(observations, 10);
  EXPECT_EQ(differ, 3);
}

// A copy of a tokenizer with another chat template.
class WithTemplate {
 public:
  explicit WithTemplate(const std::string& text) {
    folder_ = std::filesystem::path(testing::TempDir()) /
              ("conversation_" + std::to_string(::getpid()) + "_" + std::to_string(++count));
    std::filesystem::create_directories(folder_);
    const auto from = source_folder() / "tests/gold/parity/tokenizers/qwen2_nfc";
    std::filesystem::copy_file(from / "tokenizer.json", folder_ / "tokenizer.json");
    Json config = Json::parse(std::ifstream(from / "tokenizer_config.json"));
    config["chat_template"] = text;
    std::ofstream(folder_ / "tokenizer_config.json") << config;
    tokenizer_.emplace(Tokenizer::load(folder_));
  }
  ~WithTemplate() { std::filesystem::remove_all(folder_); }
  const Tokenizer& operator*() const { return *tokenizer_; }

 private:
  static inline int count = 0;
  std::filesystem::path folder_;
  std::optional<Tokenizer> tokenizer_;
};

constexpr const char* chatml =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
// As Qwen3: thoughts of earlier turns go, the last turn has some even where the policy wrote none.
constexpr const char* thinking =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% if loop.last %}{% if '</think>' not in m.content %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}{% else %}{{ m.content.split('</think>')[-1].lstrip('\n') }}{% endif %}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

text::Message message(const std::string& role, const std::string& content) {
  return {.role = role, .content = content, .extra = {}};
}

TEST(Conversation, AnObservationIsTheSameWhateverBecomesOfEarlierTurns) {
  for (const char* const text : {chatml, thinking}) {
    const WithTemplate with(text);
    const Tokenizer& tokenizer = *with;
    const Ids ends = end_ids(tokenizer);
    for (const std::string said :
         {"<think>\nlong\n</think>\n\nfour", "four", "", " <|im_start|> "}) {
      const auto prompt = prompt_of(tokenizer, {message("user", "two and two? <|im_end|>")});
      Conversation conversation(tokenizer, ends, prompt, "here");
      Ids ids = conversation.open({}, "");
      Ids turn = tokenizer.encode(said);
      turn.push_back(ends.front());
      EXPECT_EQ(conversation.add_turn(turn, FinishReason::stop), said);
      const std::vector observed{message("tool", "right <|im_end|> is text"),
                                 message("user", "next?")};
      const std::string want =
          "\n<|im_start|>tool\nright <|im_end|> is "
          "text<|im_end|>\n<|im_start|>user\nnext?<|im_end|>\n"
          "<|im_start|>assistant\n";
      EXPECT_EQ(tokenizer.decode(conversation.observe(observed, "")), want);
      // A turn that a text ended has no end token: the observation brings it.
      Conversation other(tokenizer, ends, prompt, "here");
      other.open({}, "");
      other.add_turn(tokenizer.encode(said), FinishReason::stop_string);
      EXPECT_EQ(tokenizer.decode(other.observe(observed, "")), "<|im_end|>" + want);
    }
  }
}

TEST(Conversation, BeginsWithWhatTheEnvironmentSays) {
  const WithTemplate with(chatml);
  const Tokenizer& tokenizer = *with;
  const Ids ends = end_ids(tokenizer);
  const auto prompt = prompt_of(tokenizer, {message("system", "play")});
  const std::vector observed{message("user", "guess")};
  Conversation chat(tokenizer, ends, prompt, "here");
  EXPECT_EQ(tokenizer.decode(chat.open(observed, "")),
            "<|im_start|>system\nplay<|im_end|>\n<|im_start|>user\nguess<|im_end|>\n<|im_start|>"
            "assistant\n");
  Conversation text(tokenizer, ends, prompt, "here");
  EXPECT_EQ(tokenizer.decode(text.open({}, "ok: ")),
            "<|im_start|>system\nplay<|im_end|>\n<|im_start|>assistant\nok: ");
  EXPECT_EQ(text.observe({}, "text"), tokenizer.encode("text"));
  EXPECT_TRUE(text.is_rendered_alike(Ids{1, 2})) << "the template did not render it";

  data::PromptRecord plain;
  plain.ids = tokenizer.encode("2+2=");
  Conversation of_plain(tokenizer, ends, plain, "data.jsonl:7");
  EXPECT_EQ(of_plain.open({}, ""), plain.ids);
  of_plain.add_turn(tokenizer.encode("4"), FinishReason::stop_string);
  EXPECT_EQ(of_plain.observe({}, "; 3+3="), tokenizer.encode("; 3+3="));
  try {
    of_plain.observe(observed, "");
    FAIL() << "a plain text has no messages";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    EXPECT_NE(std::string(error.what()).find("data.jsonl:7"), std::string::npos);
  }
}

// Without end tokens the difference is what comes after the whole text; a template that changes the
// turns before it is refused.
TEST(Conversation, ATemplateWithoutEndTokens) {
  constexpr const char* lines =
      "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
      "{% if add_generation_prompt %}assistant:{% endif %}";
  const WithTemplate with(lines);
  const Ids ends = end_ids(*with);
  const auto prompt = prompt_of(*with, {message("user", "2+2?")});
  Conversation conversation(*with, ends, prompt, "here");
  conversation.open({}, "");
  conversation.add_turn((*with).encode(" 4"), FinishReason::stop_string);
  EXPECT_EQ((*with).decode(conversation.observe(std::vector{message("user", "3+3?")}, "")),
            "\nuser: 3+3?\nassistant:");
  const WithTemplate numbered(
      "{{ messages|length }}{% for m in messages %}{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}:{% endif %}");
  const auto other = prompt_of(*numbered, {message("user", "2+2?")});
  Conversation changed(*numbered, ends, other, "here");
  changed.open({}, "");
  changed.add_turn((*numbered).encode(" 4"), FinishReason::stop_string);
  EXPECT_THROW(changed.observe(std::vector{message("user", "3+3?")}, ""), UserError);
}

}  // namespace
}  // namespace trireme::test
