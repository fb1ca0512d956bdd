// What a reward model reads: the tokens that `rm` trains on, whoever asks and whoever wrote them.
#include "trireme/reward/reading.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "support/text_files.hpp"
#include "trireme/data/answer.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/data/score_input.hpp"
#include "unit/reward/support.hpp"

namespace trireme::test {
namespace {

using nlohmann::json;
using reward::ReadAs;
using Ids = std::vector<int32_t>;
using Messages = std::vector<text::Message>;

// Templates of a reward model.
const char* const brackets =
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}";
// That of bug report 60: the assistant's turn is not opened for a prompt.
const char* const unopened =
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}";
const char* const trimming =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
const char* const two_ends =
    "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|><|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}";
const char* const no_end =
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}";
const char* const strips_history =
    "{% for m in messages %}{{ m.role }}:{% if not loop.last or m.role != 'assistant' %}"
    "{{ m.content }}{% else %}<think>{{ m.content }}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant:<tool>{% endif %}";

struct Changes {
  std::string chat_template = {};  // "" as it is, "none" without
  std::string eos = {};
  std::function<void(json&)> file = [](json&) {};
};

void write_changed(const TemporaryFolder& folder, const std::string& kind, const Changes& changes) {
  const auto from = parity_folder() / "tokenizers" / kind;
  json file = json::parse(read_text(from / "tokenizer.json"));
  changes.file(file);
  folder.write("tokenizer.json", file.dump(3));
  json config = json::parse(read_text(from / "tokenizer_config.json"));
  if (changes.chat_template == "none") {
    config.erase("chat_template");
  } else if (!changes.chat_template.empty()) {
    config["chat_template"] = changes.chat_template;
  }
  if (!changes.eos.empty()) config["eos_token"] = changes.eos;
  folder.write("tokenizer_config.json", config.dump());
}

text::Tokenizer changed(const std::string& kind, const Changes& changes) {
  const TemporaryFolder folder;
  write_changed(folder, kind, changes);
  return text::Tokenizer::load(folder.path());
}

class ReadingTest : public testing::Test {
 protected:
  // An answer as the policy wrote it: its tokens, `end` the last of them where it is one.
  reward::Request wrote(const Messages& messages, const std::string& prompt,
                        const std::string& response, FinishReason reason,
                        std::optional<text::TokenId> end) const {
    reward::Request out;
    out.messages = messages;
    out.prompt = messages.empty() ? prompt : data::render_prompt(policy_, messages);
    out.ids = policy_.encode(
        out.prompt, messages.empty() ? text::SpecialTokens::added : text::SpecialTokens::none);
    out.prompt_len = std::ssize(out.ids);
    for (const int32_t id : policy_.encode(response)) out.ids.push_back(id);
    if (end) out.ids.push_back(*end);
    out.response = policy_.decode(std::span(out.ids).subspan(static_cast<size_t>(out.prompt_len)),
                                  text::Skip::special);
    out.finish_reason = reason;
    return out;
  }
  reward::Request ended(const Messages& messages, const std::string& prompt,
                        const std::string& response) const {
    return wrote(messages, prompt, response, FinishReason::stop, policy_.eos_id());
  }
  reward::Request cut(const Messages& messages, const std::string& prompt,
                      const std::string& response) const {
    return wrote(messages, prompt, response, FinishReason::length, std::nullopt);
  }
  reward::ReadTokens read(const text::Tokenizer& own, const reward::Request& request) const {
    return reward::Reading(own, policy_, 4000, "judge").read(request);
  }
  std::string text(const text::Tokenizer& own, const reward::Request& request) const {
    return own.decode(read(own, request).ids);
  }

  // What `rm` trains on, with the reward model's tokenizer.
  Ids trained(const text::Tokenizer& own, const Messages& messages, const std::string& prompt,
              const std::string& response) const {
    json line{{"chosen", response}, {"rejected", "?"}};
    if (messages.empty()) {
      line["prompt"] = prompt;
    } else {
      line["messages"] = json::parse(data::messages_json(messages));
    }
    data::SetOptions options;
    options.files = {folder_.write("pairs.jsonl", line.dump() + "\n")};
    return data::PreferenceSet::load(options, own)[0].chosen;
  }
  // What `score` makes of it.
  Ids scored(const text::Tokenizer& own, const Messages& messages, const std::string& prompt,
             const std::string& response) const {
    json line{{"response", response}};
    if (messages.empty()) {
      line["prompt"] = prompt;
    } else {
      line["messages"] = json::parse(data::messages_json(messages));
    }
    const auto inputs = data::read_score_inputs(folder_.write("score.jsonl", line.dump() + "\n"));
    const auto tokens = inputs.at(0).tokens(policy_);
    reward::Request request;
    request.messages = inputs[0].messages;
    request.prompt = tokens.prompt;
    request.prompt_len = tokens.prompt_len;
    request.response = text::content_text(*inputs[0].answer);
    request.ids = tokens.ids;
    request.encoded = true;
    return read(own, request).ids;
  }

  text::Tokenizer policy_ = load_tokenizer("digits_bytelevel");  // eos <|im_end|>
  TemporaryFolder folder_;
  const Messages chat_{{"system", "be brief", ""}, {"user", "1+1=", ""}};
};

TEST_F(ReadingTest, ATokenizerThatIsWrittenAnewIsTheSame) {
  const auto anew = changed("digits_bytelevel", {.file = [](json& file) {
                              for (json& merge : file["model"]["merges"])
                                merge =
                                    merge[0].get<std::string>() + " " + merge[1].get<std::string>();
                            }});
  for (const auto& request : {ended({}, "1+1=", "2"), cut({}, "1+1=", "2 and"),
                              ended(chat_, "", "2"), cut(chat_, "", "2 and")}) {
    for (const auto& own : {policy_, anew}) {
      const auto tokens = read(own, request);
      EXPECT_EQ(tokens.ids, request.ids);
      EXPECT_EQ(tokens.how, ReadAs::written);
    }
  }
}

// An unusual split of tokens, and bytes that are no text, stay as they were written.
TEST_F(ReadingTest, ThePolicysTokensAreKept) {
  auto request = cut(chat_, "", "");
  for (const char* token : {"t", "h", "e", "\u00e2", "\u0124"})  // the bytes E2 and 82 at the end
    request.ids.push_back(*policy_.token_to_id(token));
  EXPECT_EQ(read(policy_, request).ids, request.ids);
  request.ids.push_back(*policy_.eos_id());
  request.finish_reason = FinishReason::stop;
  EXPECT_EQ(read(policy_, request).ids, request.ids);
  EXPECT_EQ(text(changed("digits_bytelevel", {.chat_template = brackets}), request),
            "[system] be brief<|im_end|>[user] 1+1=<|im_end|>[assistant] the\uFFFD<|im_end|>");
}

TEST_F(ReadingTest, AnAnswerEndsWithTheTokenThatTheModelWasTrainedWith) {
  const auto own = changed("digits_bytelevel", {.eos = "<|endoftext|>"});
  EXPECT_EQ(text(own, ended({}, "1+1=", "2")), "1+1=2<|endoftext|>");
  EXPECT_EQ(text(own, cut({}, "1+1=", "2")), "1+1=2") << "a cut answer has no end";
  // However it came to its end: by the end token, by another token, or by a text.
  const auto endoftext = policy_.token_to_id("<|endoftext|>");
  EXPECT_EQ(text(policy_, wrote({}, "1+1=", "2", FinishReason::stop, endoftext)),
            "1+1=2<|im_end|>");
  EXPECT_EQ(text(policy_, wrote({}, "1+1=", "2;", FinishReason::stop, std::nullopt)),
            "1+1=2;<|im_end|>");
  EXPECT_EQ(text(policy_, wrote({}, "1+1=", "2\n\n", FinishReason::stop_string, std::nullopt)),
            "1+1=2\n\n<|im_end|>");
  // In chats the template says which token that is; its newline is not read.
  const std::string chat = policy_.render_chat(chat_, text::GenerationPrompt::with) + "2";
  EXPECT_EQ(text(policy_, wrote(chat_, "", "2", FinishReason::stop, endoftext)),
            chat + "<|im_end|>");
  EXPECT_EQ(text(policy_, cut(chat_, "", "2")), chat);
}

TEST_F(ReadingTest, ChatsAreRenderedByTheModelsOwnTemplate) {
  const auto request = ended(chat_, "", "2");
  const auto own = changed("digits_bytelevel", {.chat_template = brackets});
  const auto tokens = read(own, request);
  EXPECT_EQ(own.decode(tokens.ids),
            "[system] be brief<|im_end|>[user] 1+1=<|im_end|>[assistant] 2<|im_end|>");
  EXPECT_EQ(tokens.how, ReadAs::encoded_again);
  EXPECT_EQ(text(own, cut(chat_, "", "2 a")),
            "[system] be brief<|im_end|>[user] 1+1=<|im_end|>[assistant] 2 a");
  EXPECT_EQ(text(own, ended({}, "1+1=", "2")), "1+1=2<|im_end|>") << "a text has no turns";
  const auto closed = changed("digits_bytelevel", {.chat_template = unopened});
  EXPECT_EQ(text(closed, request),
            "[system] be brief<|im_end|>[user] 1+1=<|im_end|>[assistant] 2<|im_end|>");
  EXPECT_EQ(text(closed, cut(chat_, "", "2 a")),
            "[system] be brief<|im_end|>[user] 1+1=<|im_end|>[assistant] 2 a");
  // Another tokenizer, with a template of its own: a BOS once, its own end.
  const auto llama = load_tokenizer("llama3");
  EXPECT_EQ(text(llama, request),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nbe brief<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\n1+1=<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n2<|eot_id|>");
  EXPECT_EQ(text(llama, ended({}, "1+1=", "2")), "<|begin_of_text|>1+1=2<|eot_id|>");
  EXPECT_EQ(text(llama, cut({}, "1+1=", "2")), "<|begin_of_text|>1+1=2");
}

TEST_F(ReadingTest, TemplatesThatTouchTheAnswer) {
  const auto own = changed("digits_bytelevel", {.chat_template = trimming});
  const std::string prompt = own.render_chat(chat_, text::GenerationPrompt::with);
  const auto plain = ended(chat_, "", "2");
  EXPECT_EQ(read(own, plain).how, ReadAs::written) << "the same text";
  EXPECT_EQ(read(own, plain).ids, plain.ids);
  const auto blank = ended(chat_, "", "2 \n");
  EXPECT_EQ(text(own, blank), prompt + "2<|im_end|>");
  EXPECT_EQ(text(policy_, blank), prompt + "2 \n<|im_end|>");
  EXPECT_EQ(text(changed("digits_bytelevel", {.chat_template = two_ends}), plain),
            "system: be brief<|im_end|><|endoftext|>user: 1+1=<|im_end|><|endoftext|>"
            "assistant: 2<|im_end|>")
      << "a rollout stops at the first";
  EXPECT_EQ(text(changed("digits_bytelevel", {.chat_template = no_end}), plain),
            "system: be brief\nuser: 1+1=\nassistant: 2\n");
  EXPECT_EQ(text(changed("digits_bytelevel", {.chat_template = strips_history}), plain),
            "system:be brief<|im_end|>user:1+1=<|im_end|>assistant:<think>2<|im_end|>")
      << "the prompt is another one once an answer follows";
}

TEST_F(ReadingTest, SpecialTokensInsideAnAnswer) {
  const auto request = ended(chat_, "", "a<|im_start|>b<tool>c");
  EXPECT_EQ(request.response, "ab<tool>c") << "what rules see";
  EXPECT_EQ(read(policy_, request).ids, request.ids);
  const auto own = changed("digits_bytelevel", {.chat_template = brackets});
  EXPECT_NE(text(own, request).find("[assistant] a<|im_start|>b<tool>c<|im_end|>"),
            std::string::npos);
  const auto llama = load_tokenizer("llama3");
  EXPECT_EQ(text(llama, ended({}, "p", "a<|im_start|>b")),
            "<|begin_of_text|>pa<|im_start|>b<|eot_id|>");
}

TEST_F(ReadingTest, AModelWithoutATemplate) {
  const auto request = ended(chat_, "", "2");
  const auto same = changed("digits_bytelevel", {.chat_template = "none"});
  EXPECT_EQ(read(same, request).ids, request.ids);
  EXPECT_EQ(read(same, request).how, ReadAs::policy_template);
  const auto other = changed("llama3", {.chat_template = "none"});
  expect_error(ExitCode::bad_data, ": the reward model has no chat template",
               [&] { read(other, request); });
  EXPECT_EQ(text(other, ended({}, "1+1=", "2")), "<|begin_of_text|>1+1=2<|eot_id|>");
}

TEST_F(ReadingTest, ChatsThatCannotBeReadAreFoundBeforeTheRun) {
  const auto file = folder_.write(
      "prompts.jsonl", "{\"prompt\": \"p\"}\n{\"messages\": " + data::messages_json(chat_) + "}\n");
  data::SetOptions set;
  set.files = {file};
  const auto prompts = data::PromptSet::load(set, policy_);
  const auto check = [&](const std::string& kind, const std::string& own) {
    const TemporaryFolder judge;
    write_changed(judge, kind, {.chat_template = own});
    config::Options options;
    options.reward.source.emplace_back();
    options.reward.source[0].kind = config::RewardKind::model;
    options.reward.source[0].path = judge.path().string();
    reward::check_chats(options, {file.string()}, policy_, prompts);
  };
  check("digits_bytelevel", "none");
  check("digits_bytelevel", brackets);
  check("llama3", "");
  expect_error(ExitCode::bad_data, "prompts.jsonl:2: reward source model0: the reward model has no",
               [&] { check("llama3", "none"); });
  expect_error(ExitCode::bad_data, "no system turns", [&] {
    check(
        "llama3",
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system turns') }}{% endif %}");
  });
}

TEST_F(ReadingTest, TokensWithoutATextAndTokensWithoutARow) {
  reward::Request request;
  request.ids = {5, 6, 7};
  request.finish_reason = FinishReason::length;
  EXPECT_EQ(read(policy_, request).ids, request.ids);
  expect_error(ExitCode::bad_data, "has another tokenizer",
               [&] { read(load_tokenizer("llama3"), request); });
  // A policy may write ids that only pad its vocabulary.
  auto padded = cut({}, "1+1=", "2");
  padded.ids.push_back(4000);
  EXPECT_EQ(text(policy_, padded), "1+1=2");
}

// The property: for any prompt and response, rm, ppo and score have the same tokens; so a model
// reads at the place that it was trained to.
TEST_F(ReadingTest, RmPpoAndScoreReadTheSame) {
  std::vector<text::Tokenizer> models{policy_, load_tokenizer("llama3"),
                                      load_tokenizer("qwen2_nfc"),
                                      changed("digits_bytelevel", {.eos = "<|endoftext|>"})};
  for (const char* own : {brackets, unopened, trimming, two_ends, no_end})
    models.push_back(changed("digits_bytelevel", {.chat_template = own}));
  models.push_back(changed("llama3", {.chat_template = brackets}));
  models.push_back(changed("qwen2_nfc", {.chat_template = trimming, .eos = "<|endoftext|>"}));
  std::mt19937 random(11);
  const std::string bits[] = {"the ",   "2",     " =",     "\n", "\n\n",
                              "<tool>", "wordy", "\u00e9", " x", "?"};
  const auto made = [&](size_t least, size_t most) {
    std::string out;
    for (size_t k = least + random() % (most - least + 1); k > 0; --k)
      out += bits[random() % std::size(bits)];
    return out;
  };
  for (int i = 0; i < 24; ++i) {
    const std::string prompt = made(1, 6), response = made(0, 6);
    Messages chat;
    if (random() % 2) chat.push_back({"system", made(1, 3), ""});
    chat.push_back({"user", prompt, ""});
    if (random() % 3 == 0) {
      chat.push_back({"assistant", made(1, 3), ""});
      chat.push_back({"user", made(1, 3), ""});
    }
    if (random() % 4 == 0) chat.push_back({"assistant", "so 2", ""});  // which the answer continues
    for (size_t m = 0; m < models.size(); ++m) {
      for (const Messages& messages : {Messages{}, chat}) {
        const Ids want = trained(models[m], messages, prompt, response);
        const std::string of =
            base::text("model ", m, ", prompt ", prompt, ", response ", response);
        EXPECT_EQ(read(models[m], ended(messages, prompt, response)).ids, want) << of;
        EXPECT_EQ(scored(models[m], messages, prompt, response), want) << of;
      }
    }
  }
}

}  // namespace
}  // namespace trireme::test
