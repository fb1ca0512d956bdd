#include "trireme/config/deck.hpp"

#include <filesystem>
#include <fstream>
#include <random>

#include "config/key.hpp"
#include "unit/config/damage.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string mistakes(std::string_view deck, std::vector<std::string> overrides = {}) {
  return error_of(ExitCode::configuration, [&] { parse_deck(deck, "a.toml", overrides); });
}

TEST(Deck, EmptyDeckIsAllDefaults) { EXPECT_EQ(parse_deck(""), Options{}); }

// OpenRLHF's defaults, from its documentation (not from our structs).
TEST(Deck, DefaultsAreThoseOfOpenRlhf) {
  const Options o = parse_deck("");
  EXPECT_EQ(o.algo.advantage.estimator, Estimator::gae);
  EXPECT_EQ(o.algo.advantage.lambd, 1);
  EXPECT_EQ(o.algo.kl.init_coef, 0.01);
  EXPECT_EQ(o.algo.kl.horizon, 10000);
  EXPECT_EQ(o.actor.adam.lr, 1e-6);
  EXPECT_EQ(o.critic.adam.lr, 9e-6);
  EXPECT_EQ(o.actor.adam.betas, (Range{0.9, 0.95}));
  EXPECT_EQ(o.actor.eps_clip, 0.2);
  EXPECT_EQ(o.critic.value_clip, 0.5);
  EXPECT_EQ(o.critic.freezing_steps, -1);
  EXPECT_EQ(o.reward.clip_range, (Range{-10, 10}));
  EXPECT_EQ(o.rollout.batch_size, 1024);
  EXPECT_EQ(o.train.batch_size, 128);
  EXPECT_EQ(o.train.micro_batch_tokens, 16192);
  EXPECT_EQ(o.train.ema_beta, 0.992);
  EXPECT_EQ(o.data.max_len, 2048);
  EXPECT_EQ(o.algo.advantage.is_correction_threshold, (Range{0.5, 5.0}));
  EXPECT_EQ(o.eval.temperature, 0.6);
  EXPECT_EQ(o.actor.entropy_coef, std::nullopt);
}

constexpr std::string_view full = R"(
[run]
seed = 7
walltime = "1h30m"
device = "cpu"
[ranks]
trainer = 2
generator = "2-3"
[actor]
adam.lr = 5e-7
eps_clip_low_high = [0.2, 0.28]
policy_loss_type = "gspo"
[actor.adam]
weight_decay = 0.1
[critic]
value_clip = "none"
[generate]
kv_memory = "2 GiB"
[[reward.source]]
kind = "rule"
rule = "number"
name = "answer"
[[reward.source]]
kind = "plugin"
command = ["./judge", "--fast"]
timeout = "2m"
weight = 0.5
)";

TEST(Deck, ReadsEveryForm) {
  const Options o = parse_deck(R"(
actor.adam.lr = 5e-7
run.seed = 7
)");
  EXPECT_EQ(o.actor.adam.lr, 5e-7);
  EXPECT_EQ(o.run.seed, 7);
  // TOML itself forbids [actor.adam] after adam.lr in [actor]
  EXPECT_THAT(mistakes(full), HasSubstr("a.toml:13:1"));
}

std::string without_reopened_table() {
  std::string text(full);
  text.replace(text.find("[actor.adam]\nweight_decay"),
               std::string_view("[actor.adam]\nweight_decay").size(), "adam.weight_decay");
  return text;
}

TEST(Deck, ReadsNestedTablesListsAndUnits) {
  const Options o = parse_deck(without_reopened_table());
  EXPECT_EQ(o.run.walltime.seconds, 5400);
  EXPECT_EQ(o.run.device, Device::cpu);
  EXPECT_EQ(o.ranks.trainer, "2");
  EXPECT_EQ(o.actor.adam.weight_decay, 0.1);
  EXPECT_EQ(o.actor.clip(), (Range{0.2, 0.28}));
  EXPECT_EQ(o.actor.policy_loss_type, PolicyLoss::gspo);
  EXPECT_EQ(o.critic.value_clip, std::nullopt);
  EXPECT_EQ(o.generate.kv_memory, (MemoryShare{0, int64_t{2} << 30}));
  ASSERT_EQ(o.reward.source.size(), 2u);
  EXPECT_EQ(o.reward.source[0].rule, Rule::number);
  EXPECT_THAT(o.reward.source[1].command, ElementsAre("./judge", "--fast"));
  EXPECT_EQ(o.reward.source[1].timeout.seconds, 120);
  EXPECT_EQ(o.reward.source[1].weight, 0.5);
}

TEST(Deck, DumpIsCompleteAndReadsBack) {
  const Options o = parse_deck(without_reopened_table());
  const std::string dump = dump_deck(o);
  EXPECT_EQ(parse_deck(dump), o) << dump;
  for (const auto& key : option_keys()) {
    const std::string line = "\n" + key.name().substr(key.name().find('.') + 1) + " = ";
    EXPECT_THAT(dump, HasSubstr(line));
  }
  EXPECT_EQ(parse_deck(dump_deck(Options{})), Options{});
}

// Random values in every key, written and read back.
TEST(Deck, RoundTripOfRandomOptions) {
  std::mt19937 rng(1);
  const auto real = [&] {
    return std::ldexp(std::uniform_real_distribution<double>(0.5, 1)(rng),
                      static_cast<int>(rng() % 8) - 10);
  };
  for (int round = 0; round < 50; ++round) {
    Options o;
    o.run.name = std::string("a\"b\\c\td\n\x7f ü漢 '") + std::to_string(round);
    o.actor.adam.lr = real();
    o.actor.adam.betas = {real(), real()};
    o.critic.adam.eps = real();
    o.algo.kl.target = real();
    o.run.seed = static_cast<int64_t>(rng()) << 20;
    o.run.walltime.seconds = 1e5 * real();
    o.reward.clip_range = round % 2 ? std::optional<Range>{} : Range{-real(), real()};
    o.rollout.stop = {"\n\n", "END", ""};
    o.data.prompt_probs = {real(), real(), 0};
    o.weightsync.bucket_bytes.count = 4096 + static_cast<int64_t>(rng() % (1 << 28));
    o.generate.kv_memory =
        round % 2 ? MemoryShare{real(), 0} : MemoryShare{0, 1 + static_cast<int64_t>(rng())};
    o.reward.source.resize(static_cast<size_t>(round % 3));
    for (auto& source : o.reward.source) source.pattern = R"(\\boxed\{(.*)\})";
    EXPECT_EQ(parse_deck(dump_deck(o)), o) << dump_deck(o);
  }
}

TEST(Deck, OverridesWin) {
  const std::vector<std::string> overrides{"actor.adam.lr=2e-6",
                                           "run.name=plain words",
                                           "run.dir=42",
                                           "rollout.stop=[\"a\", \"b\"]",
                                           "data.prompt_dataset=x.jsonl",
                                           "reward.source.1.weight=3",
                                           "run.walltime=2:00:00",
                                           "ranks.trainer=0-3"};
  const Options o = parse_deck(without_reopened_table(), "a.toml", overrides);
  EXPECT_EQ(o.actor.adam.lr, 2e-6);
  EXPECT_EQ(o.run.name, "plain words");
  EXPECT_EQ(o.run.dir, "42");
  EXPECT_THAT(o.rollout.stop, ElementsAre("a", "b"));
  EXPECT_THAT(o.data.prompt_dataset, ElementsAre("x.jsonl"));
  EXPECT_EQ(o.reward.source[1].weight, 3);
  EXPECT_EQ(o.run.walltime.seconds, 7200);
  EXPECT_EQ(o.ranks.trainer, "0-3");
}

TEST(Deck, BadOverrides) {
  EXPECT_THAT(mistakes("", {"run.seed"}), HasSubstr("'run.seed' is no override"));
  EXPECT_THAT(mistakes("", {"run.seed=1", "run.seed=2"}),
              HasSubstr("command line: run.seed is set twice"));
  EXPECT_THAT(mistakes("", {"run.seed=1\nfault.crash_at=2"}), HasSubstr("run.seed"));
  EXPECT_THAT(mistakes("", {"run.name=\xff"}), HasSubstr("run.name"));
  EXPECT_THAT(mistakes("", {"reward.source.0.weight=1"}),
              HasSubstr("the deck has 0 [[reward.source]]"));
  EXPECT_THAT(mistakes("", {"actor.adam.lr=fast"}),
              HasSubstr("actor.adam.lr must be a number, not a text"));
}

// As OpenPBS hands on rollout.stop=["a","e"].
TEST(Deck, AListThatLostItsQuotesIsNoText) {
  EXPECT_THAT(mistakes("", {R"(rollout.stop=[\a\,\e\])"}),
              HasSubstr("looks like a list whose quotes were lost"));
  EXPECT_THAT(mistakes("", {"data.prompt_dataset=[a.jsonl]"}),
              HasSubstr("data.prompt_dataset is the text \"[a.jsonl]\""));
  EXPECT_EQ(
      parse_deck("", "deck", std::vector<std::string>{R"(rollout.stop=["[END]"])"}).rollout.stop,
      Strings{"[END]"});
}

TEST(Deck, AllMistakesAtOnceWithLineAndKey) {
  const std::string text = mistakes(R"([actor]
adam.lr = "fast"
eps_clip = 1.5
epsclip = 0.1
[algo.advantage]
lambd = nan
estimator = "grpo"
[rollout]
batch_size = 1.5
[modle]
path = "x"
dtype = "y"
[run]
walltime = "soon"
seed = 1979-05-27
)");
  EXPECT_THAT(text, HasSubstr("a.toml has 9 mistakes"));
  EXPECT_THAT(text, HasSubstr("a.toml:2: actor.adam.lr must be a number, not a text"));
  EXPECT_THAT(text, HasSubstr("a.toml:3: actor.eps_clip is 1.5 (allowed: >= 0, < 1)"));
  EXPECT_THAT(text, HasSubstr("a.toml:4: actor.epsclip is not a key (nearest: actor.eps_clip)"));
  EXPECT_THAT(text, HasSubstr("a.toml:6: algo.advantage.lambd must be a finite number"));
  EXPECT_THAT(text, HasSubstr("a.toml:7: algo.advantage.estimator is \"grpo\" (allowed: gae, "));
  EXPECT_THAT(
      text,
      HasSubstr("a.toml:9: rollout.batch_size must be an integer, not a number with a fraction"));
  EXPECT_THAT(text, HasSubstr("[modle] is not a section (nearest: [model])"));
  EXPECT_THAT(text, HasSubstr("a.toml:14: run.walltime is \"soon\""));
  EXPECT_THAT(text, HasSubstr("a.toml:15: run.seed must be an integer, not a date or time"));
}

TEST(Deck, NearestKeyByLastWord) {
  EXPECT_THAT(mistakes("[actor]\nlr = 1e-6"),
              HasSubstr("actor.lr is not a key (nearest: actor.adam.lr)"));
}

TEST(Deck, VariablesOfChatTemplatesAreNoTable) {
  EXPECT_THAT(mistakes("[data.chat_template_kwargs]\nenable_thinking = false"),
              HasSubstr("data.chat_template_kwargs = '{\"enable_thinking\": false}'"));
}

TEST(Deck, SetTwice) {
  EXPECT_THAT(mistakes("[run]\nseed = 1\nseed = 2"), HasSubstr("a.toml:3"));
  EXPECT_THAT(mistakes("run.seed = 1\n\"run.seed\" = 2"),
              HasSubstr("a.toml:2: run.seed is set twice (first in line 1)"));
}

TEST(Deck, WhatIsNotBuiltIsRefusedByName) {
  EXPECT_THAT(mistakes("[moe]\nexperts = 8"), HasSubstr("asks for mixtures of experts"));
  EXPECT_THAT(mistakes("[vision]\nx = 8"), HasSubstr("asks for vision models"));
  EXPECT_THAT(mistakes("[multi_turn]\nx = 8"), HasSubstr("a program of yours in [environment]"));
  EXPECT_THAT(mistakes("[train]\nfp8 = true"), HasSubstr("asks for FP8"));
  EXPECT_THAT(mistakes("[reward]\nlora.rank = 8"), HasSubstr("an adapter of a reward model"));
  EXPECT_THAT(mistakes("[actor]\noptim = \"muon\""), HasSubstr("AdamW only"));
}

TEST(Deck, OpenRlhfNamesAreTranslated) {
  EXPECT_THAT(mistakes("[vllm]\ntensor_parallel_size = 2"),
              HasSubstr("here it is generate.tensor_parallel"));
  EXPECT_THAT(mistakes("[ckpt]\nsave_steps = 2"), HasSubstr("here it is ckpt.interval"));
  EXPECT_THAT(mistakes("[ds]\nlora.rank = 8"), HasSubstr("here it is actor.lora.rank"));
}

TEST(Deck, WrongListsAndPairs) {
  EXPECT_THAT(mistakes("reward.clip_range = [3, 1]"), HasSubstr("low <= high"));
  EXPECT_THAT(mistakes("reward.clip_range = [1]"), HasSubstr("must have two numbers, not 1"));
  EXPECT_THAT(mistakes("actor.adam.betas = [0.9, 1.0]"),
              HasSubstr("element 2 is 1 (allowed: >= 0, < 1)"));
  EXPECT_THAT(mistakes("rollout.stop = [\"a\", 3]"), HasSubstr("element 2 must be a text"));
  EXPECT_THAT(mistakes("reward.source = 3"), HasSubstr("list of tables"));
  EXPECT_THAT(mistakes("[[reward.source]]\nkinds = \"rule\""),
              HasSubstr("a.toml:2: reward.source.0.kinds is not a key (nearest: kind)"));
  EXPECT_THAT(mistakes("run.name = \"a\\u0000b\""), HasSubstr("NUL"));
}

TEST(Deck, HostileTexts) {
  EXPECT_THAT(mistakes("x = " + std::string(100000, '[')), HasSubstr("a.toml:1"));
  EXPECT_THAT(mistakes("[run]\nseed = 99999999999999999999"), HasSubstr("a.toml:2"));
  EXPECT_THAT(mistakes("[run]\nname = \"\xff\""), HasSubstr("a.toml:2"));
  EXPECT_THAT(mistakes("[run"), HasSubstr("a.toml:1"));
  EXPECT_THAT(mistakes("wish = 1"), HasSubstr("wish is not a key (keys are in a section"));
  for (const auto* section : {"data", "reward", "actor", "run"})
    EXPECT_THAT(mistakes(std::string(section) + " = 1"),
                HasSubstr(std::string(section) + " is a section, not a key"));
  EXPECT_THAT(mistakes("[[reward.source]]\n[reward]\n\"source.0\" = 5"),
              HasSubstr("reward.source.0 is a table, not a key"));
  EXPECT_THAT(mistakes("data = [1]"), HasSubstr("data is a section, not a key"));
  EXPECT_THAT(mistakes("[data]\n\"\" = 1"), HasSubstr("data. is not a key"));
}

// Whatever a damaged deck says, it is an error or a deck that dumps and reads back.
TEST(Deck, DamagedDecks) {
  Options options;
  options.reward.source.resize(2);
  const std::string deck = dump_deck(options);
  std::mt19937_64 rng(7);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::string damaged = damage(deck, rng);
    try {
      const Options read = parse_deck(damaged);
      EXPECT_EQ(parse_deck(dump_deck(read)), read) << damaged;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::configuration) << damaged;
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(Deck, Durations) {
  EXPECT_EQ(parse_duration("90s"), 90);
  EXPECT_EQ(parse_duration("90"), 90);
  EXPECT_EQ(parse_duration("30m"), 1800);
  EXPECT_EQ(parse_duration("1h30m"), 5400);
  EXPECT_EQ(parse_duration("1d2h"), 93600);
  EXPECT_EQ(parse_duration("1.5h"), 5400);
  EXPECT_EQ(parse_duration("2:00:00"), 7200);
  EXPECT_EQ(parse_duration("02:30"), 150);
  EXPECT_EQ(parse_duration("1-12:00:00"), 129600);
  EXPECT_EQ(parse_duration(" 0 "), 0);
  EXPECT_EQ(parse_duration("0.25d6h"), 43200);
  EXPECT_EQ(parse_duration("99:59:59"), 359999);
  EXPECT_EQ(parse_duration("2-00:30"), 172830);
  const std::string endless(400, '9');
  for (const char* bad : {"1h30", "2d1", "1 h", "1h 30m", "90S", "0x10", "1e3", "+5", "1:60",
                          "1::2", "-1:00", "1-", "-", ":", endless.c_str()}) {
    EXPECT_THAT(error_of(ExitCode::configuration, [&] { parse_duration(bad, "run.walltime"); }),
                HasSubstr(bad))
        << bad;
  }
  for (const char* bad :
       {"", "h", "30m1h", "1h1h", "-5s", "1:2:3:4", "1:75:00", "5 parsecs", "inf", "1-5", "nan"}) {
    EXPECT_THAT(error_of(ExitCode::configuration, [&] { parse_duration(bad, "run.walltime"); }),
                HasSubstr("run.walltime"))
        << bad;
  }
}

TEST(Deck, Sizes) {
  EXPECT_EQ(byte_count("4 MiB"), 4 << 20);
  EXPECT_EQ(byte_count("4MB"), 4000000);
  EXPECT_EQ(byte_count("0.5KiB"), 512);
  EXPECT_EQ(byte_count("9007199254740993"), 9007199254740993);
  EXPECT_EQ(byte_count("4 parsecs"), std::nullopt);
  EXPECT_EQ(byte_count("-1"), std::nullopt);
  EXPECT_EQ(byte_count(" 4GiB "), int64_t{4} << 30);
  EXPECT_EQ(byte_count("4 B"), 4);
  EXPECT_EQ(byte_count("1.5 TB"), 1500000000000);
  EXPECT_EQ(byte_count(".5KiB"), 512);
  EXPECT_EQ(byte_count("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(byte_count("4194303 TiB"), int64_t{4194303} << 40);
  for (const char* bad : {"", "B", "GiB", "9223372036854775808", "4194304 TiB", "-4GiB", "4gib",
                          "4 G", "4 Gi B", "1e3", "0x10", "4GiB4", "inf", "nan", "1,5 GiB"}) {
    EXPECT_EQ(byte_count(bad), std::nullopt) << bad;
  }
  EXPECT_EQ(byte_count("9999999 TiB"), std::nullopt);
  EXPECT_THAT(mistakes("generate.kv_memory = 1.5"), HasSubstr("a fraction of the free memory"));
}

TEST(Deck, FileIsNamedInErrors) {
  EXPECT_THAT(error_of(ExitCode::input_missing, [] { load_deck("/nonexistent/deck.toml"); }),
              HasSubstr("/nonexistent/deck.toml"));
  const auto path = std::filesystem::temp_directory_path() / "trireme_deck_test.toml";
  std::ofstream(path) << "[run]\nsed = 1\n";
  EXPECT_THAT(error_of(ExitCode::configuration, [&] { load_deck(path); }),
              HasSubstr("trireme_deck_test.toml:2: run.sed is not a key (nearest: run.seed)"));
  std::ofstream(path) << "[run]\nseed = 1\n";
  EXPECT_EQ(load_deck(path).run.name, "trireme_deck_test");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace trireme::config
