// Names of other systems: each leads to a key that is there, or says why there is none.
#include "trireme/config/foreign_names.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

#include "config/key.hpp"
#include "trireme/config/deck.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::config {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr Origin origins[] = {Origin::openrlhf, Origin::trl, Origin::verl};

bool is_key(std::string_view name) {
  if (name.starts_with(source_prefix))
    return source_keys().find(name.substr(source_prefix.size())) != nullptr;
  return option_keys().find(name) != nullptr;
}

TEST(ForeignNames, LeadToKeysOrSayWhyThereIsNone) {
  for (const Origin origin : origins) {
    std::set<std::string_view> seen;
    for (const ForeignName& entry : foreign_names(origin)) {
      EXPECT_TRUE(seen.insert(entry.name).second) << entry.name << " stands twice";
      EXPECT_TRUE(entry.key.empty() ? !entry.note.empty() : is_key(entry.key)) << entry.name;
      EXPECT_TRUE(entry.others.empty() || is_key(entry.others)) << entry.name;
      EXPECT_FALSE(origin == Origin::openrlhf && is_key(entry.name)) << entry.name;
      if (entry.key.empty() || entry.value.empty() || entry.value.find('$') != std::string::npos)
        continue;
      const std::string value = std::string(entry.key) + "=" + std::string(entry.value);
      EXPECT_NO_THROW(parse_deck("", "deck", std::vector{value})) << value;
    }
  }
}

TEST(ForeignWords, AreWordsOfTheirKey) {
  for (const ForeignWord& entry : foreign_words()) {
    const std::string value = std::string(entry.key) + "=" + std::string(entry.here);
    EXPECT_NO_THROW(parse_deck("", "deck", std::vector{value})) << value;
  }
}

TEST(ForeignNames, AreAnsweredInADeck) {
  EXPECT_THAT(
      error_of(ExitCode::configuration, [] { parse_deck("[actor_rollout_ref.rollout]\nn = 4\n"); }),
      AllOf(HasSubstr("a name of verl"), HasSubstr("rollout.n_samples_per_prompt")));
  EXPECT_THAT(error_of(ExitCode::configuration,
                       [] { parse_deck("", "deck", std::vector<std::string>{"zero_stage=3"}); }),
              AllOf(HasSubstr("a name of OpenRLHF"), HasSubstr("stage 3")));
  EXPECT_THAT(
      error_of(ExitCode::configuration,
               [] { parse_deck("", "deck", std::vector<std::string>{"max_completion_length=3"}); }),
      AllOf(HasSubstr("a name of TRL"), HasSubstr("rollout.max_new_tokens")));
}

TEST(ForeignNames, AreKnownByTheirEndInSectionsOfOurs) {
  const auto said = [](const char* key) {
    return error_of(ExitCode::configuration, [&] {
      parse_deck("", "deck", std::vector<std::string>{std::string(key) + "=1"});
    });
  };
  for (const auto& [given, ours] :
       {std::pair{"rollout.num_generations", "here it is rollout.n_samples_per_prompt"},
        std::pair{"actor.optim.lr", "nearest: actor.adam.lr"},
        std::pair{"critic.learning_rate", "here it is critic.adam.lr"},
        std::pair{"actor.clip_ratio", "here it is actor.eps_clip"},
        std::pair{"actor.clip_ratio_high", "actor.eps_clip_low_high takes both"},
        std::pair{"algo.kl.beta", "here it is algo.kl.init_coef"},
        std::pair{"lora.rank", "here it is actor.lora.rank"},
        std::pair{"train.zero_stage", "not needed here: always ZeRO stage 3"},
        std::pair{"generate.gpu_memory_utilization", "here it is generate.kv_memory"}})
    EXPECT_THAT(said(given), HasSubstr(ours)) << given;
  EXPECT_THAT(said("reward.model"), Not(HasSubstr("here it is")));
  EXPECT_THAT(said("actor.eps_clp"), HasSubstr("nearest: actor.eps_clip"));
}

TEST(ForeignNames, OfAGroupAreAnsweredByTheGroup) {
  ASSERT_NE(foreign_name(Origin::verl, "actor_rollout_ref.actor.megatron.use_mbridge"), nullptr);
  EXPECT_EQ(foreign_name(Origin::verl, "actor_rollout_ref.actor.policy_loss.loss_mode")->key,
            "actor.policy_loss_type");
}

TEST(ForeignWords, AreAnsweredInADeck) {
  EXPECT_THAT(error_of(ExitCode::configuration,
                       [] {
                         parse_deck("", "deck",
                                    std::vector<std::string>{"algo.advantage.estimator=grpo"});
                       }),
              HasSubstr("here it is \"group_norm\""));
  EXPECT_THAT(
      error_of(
          ExitCode::configuration,
          [] { parse_deck("", "deck", std::vector<std::string>{"actor.lr_scheduler=cosine"}); }),
      HasSubstr("here it is \"cosine_with_min_lr\""));
}

TEST(ForeignNames, KnowEachFlagOfOpenRlhf) {
  const char* root = std::getenv("TRIREME_SOURCE_DIR");
  ASSERT_NE(root, nullptr);
  std::ifstream file(std::string(root) + "/tests/unit/config/openrlhf-flags.txt");
  int flags = 0;
  for (std::string flag; std::getline(file, flag); ++flags)
    EXPECT_NE(foreign_name(Origin::openrlhf, flag), nullptr) << flag;
  EXPECT_GE(flags, 78);
}

}  // namespace
}  // namespace trireme::config
