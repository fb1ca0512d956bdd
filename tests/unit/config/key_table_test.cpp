#include "trireme/config/key_table.hpp"

#include <set>

#include "config/key.hpp"
#include "trireme/config/deck.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::config {
namespace {

using testing::HasSubstr;

TEST(KeyTable, EveryKeyIsDocumentedOnceInAKnownSection) {
  std::set<std::string> sections_seen, names;
  for (const Section& section : sections()) sections_seen.emplace(section.name);
  for (const KeyInfo& info : key_infos()) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name << " is registered twice";
    EXPECT_TRUE(sections_seen.contains(std::string(section_of(info.name)))) << info.name;
    EXPECT_GT(info.help.size(), 10u) << info.name;
    EXPECT_TRUE(info.help.ends_with(".")) << info.name << ": " << info.help;
    EXPECT_TRUE(info.departure.empty() || info.departure.ends_with(".")) << info.name;
    EXPECT_FALSE(info.type.empty()) << info.name;
  }
  for (const std::string& section : sections_seen) EXPECT_FALSE(key_help(section).empty());
}

// A default outside its own limits would make the dumped deck unreadable.
TEST(KeyTable, DefaultsAreAllowed) {
  Options options;
  RewardSource source;
  for (const auto& key : option_keys()) {
    Value value;
    ASSERT_TRUE(read_toml_value(key.dump(options), value)) << key.name();
    EXPECT_EQ(key.assign(options, value), "") << key.name();
  }
  for (const auto& key : source_keys()) {
    Value value;
    ASSERT_TRUE(read_toml_value(key.dump(source), value)) << key.name();
    EXPECT_EQ(key.assign(source, value), "") << key.name();
  }
  EXPECT_EQ(options, Options{});
}

// A member without a key would be unreachable from a deck.
TEST(KeyTable, NumberOfKeysMatchesTheStructs) {
  // Counted by hand from options.hpp; a new member needs a key and a new number here.
  const size_t expected = 18 + 3 + 6 + 1 + 13 + (9 + 7 + 19) + (9 + 7 + 4) + 2 + 7 + 18 + 24 +
                          (15 + 6 + 4 + 9 + 11 + 1) + (23 + 4) + 13 + 4 + 14 + 4 + 4 + 2 + 4;
  EXPECT_EQ(static_cast<size_t>(std::distance(option_keys().begin(), option_keys().end())),
            expected);
  EXPECT_EQ(std::distance(source_keys().begin(), source_keys().end()), 33);
}

TEST(KeyTable, HelpFindsSectionsAndKeys) {
  EXPECT_THAT(key_help("actor.adam.lr"), HasSubstr("actor.adam.lr = 1e-06   (number, >= 0)"));
  EXPECT_THAT(key_help("actor.adam"), HasSubstr("actor.adam.betas"));
  EXPECT_THAT(key_help(), HasSubstr("reward.source.kind"));
  EXPECT_THAT(error_of(ExitCode::usage, [] { key_help("actr"); }), HasSubstr("nearest: actor"));
  EXPECT_THAT(error_of(ExitCode::usage, [] { key_help("lr"); }),
              HasSubstr("nearest: actor.adam.lr, critic.adam.lr"));
}

TEST(KeyTable, EveryKeyIsOnOneOfTheTwoPages) {
  const std::string usual = key_table_markdown(), expert = expert_key_table_markdown();
  for (const KeyInfo& info : key_infos()) {
    const std::string row = "| `" + info.name + "` | `";
    EXPECT_THAT(info.expert ? expert : usual, HasSubstr(row));
    EXPECT_THAT(info.expert ? usual : expert, testing::Not(HasSubstr(row)));
  }
  EXPECT_THAT(usual, HasSubstr("## Departures from OpenRLHF"));
  EXPECT_THAT(expert, HasSubstr("| `fault.at` |"));
}

// A long text is cut between two words: what is left of it is below the table, whole.
TEST(KeyTable, LongTextsLoseNothing) {
  const std::string pages = key_table_markdown() + expert_key_table_markdown();
  int cut = 0;
  for (const KeyInfo& info : key_infos()) {
    const std::string lead = "\n- `" + info.name + "`: ";
    const size_t begin = pages.find(lead);
    if (begin == std::string::npos) continue;
    const size_t text = begin + lead.size();
    const std::string rest = pages.substr(text, pages.find('\n', text) - text);
    ++cut;
    EXPECT_TRUE(info.help.ends_with(" " + rest)) << info.name << ": " << rest;
  }
  EXPECT_GT(cut, 10);
}

}  // namespace
}  // namespace trireme::config
