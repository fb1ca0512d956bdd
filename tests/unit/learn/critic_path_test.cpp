// Where a critic starts from: a model that reads the policy's tokens.
#include "trireme/learn/model_start.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "support/text_files.hpp"

namespace trireme::learn {
namespace {

using nlohmann::json;

class CriticPathTest : public testing::Test {
 protected:
  // A folder with config.json and, if one is named, the tokenizer of the vectors, written anew.
  std::string model(const std::string& name, const std::string& tokenizer, int rows) const {
    const auto path = folder_.path() / name;
    std::filesystem::create_directories(path);
    json config{{"architectures", {"LlamaForSequenceClassification"}},
                {"model_type", "llama"},
                {"hidden_act", "silu"},
                {"hidden_size", 64},
                {"intermediate_size", 96},
                {"num_hidden_layers", 1},
                {"num_attention_heads", 4},
                {"num_key_value_heads", 4},
                {"vocab_size", rows},
                {"max_position_embeddings", 256},
                {"rms_norm_eps", 1e-5},
                {"rope_theta", 10000.0},
                {"tie_word_embeddings", true}};
    folder_.write(name + "/config.json", config.dump());
    if (tokenizer.empty()) return path.string();
    const auto from = test::parity_folder() / "tokenizers" / tokenizer;
    folder_.write(name + "/tokenizer.json",
                  json::parse(test::read_text(from / "tokenizer.json")).dump(2));
    std::filesystem::copy_file(from / "tokenizer_config.json", path / "tokenizer_config.json");
    return path.string();
  }
  static config::RewardSource judge(const std::string& path) {
    config::RewardSource source;
    source.kind = config::RewardKind::model;
    source.path = path;
    return source;
  }
  config::Options options(const std::vector<std::string>& reward_models,
                          const std::string& critic = "") const {
    config::Options out;
    out.model.path = policy_;
    out.critic.path = critic;
    for (const std::string& path : reward_models) out.reward.source.push_back(judge(path));
    return out;
  }

  test::TemporaryFolder folder_;
  const std::string policy_ = model("policy", "digits_bytelevel", 2000);
  const std::string alike_ = model("alike", "digits_bytelevel", 2000);
  const std::string other_ = model("other", "llama3", 2000);
  const std::string narrow_ = model("narrow", "digits_bytelevel", 1900);
  const std::string silent_ = model("silent", "", 2000);
};

TEST_F(CriticPathTest, TheFirstRewardModelThatReadsThePolicysTokens) {
  const auto rule = config::RewardSource{};
  auto mixed = options({other_, narrow_, alike_});
  mixed.reward.source.insert(mixed.reward.source.begin(), rule);
  EXPECT_EQ(critic_path(mixed).path, alike_);
  EXPECT_EQ(critic_path(options({alike_})).path, alike_);
  EXPECT_EQ(critic_path(options({silent_})).path, silent_) << "no files that say otherwise";
  EXPECT_EQ(critic_path(options({})).path, policy_);
  EXPECT_TRUE(critic_path(options({alike_})).passed_over.empty());
  for (const std::string& unfit : {other_, narrow_}) {
    EXPECT_EQ(critic_path(options({unfit})).path, policy_);
    EXPECT_EQ(critic_path(options({unfit})).passed_over, unfit);
  }
}

TEST_F(CriticPathTest, ACriticWithOtherTokensIsRefused) {
  EXPECT_EQ(critic_path(options({other_}, alike_)).path, alike_);
  EXPECT_EQ(critic_path(options({other_}, silent_)).path, silent_);
  const auto refusal = [&](const std::string& path) {
    return test::error_of(ExitCode::bad_data, [&] { critic_path(options({}, path)); });
  };
  EXPECT_NE(refusal(other_).find("other tokens for the policy's ids"), std::string::npos);
  EXPECT_NE(refusal(narrow_).find("1900 vocabulary rows"), std::string::npos);
}

}  // namespace
}  // namespace trireme::learn
