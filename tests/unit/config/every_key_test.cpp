// What holds for every key of the table: a value of its kind is read back after a dump, another one
// is refused with place, key and value.
#include <cmath>
#include <map>
#include <random>

#include "config/key.hpp"
#include "trireme/config/deck.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::config {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A key as a deck sees it: its line under its header.
struct Subject {
  std::string name;    // actor.adam.lr or reward.source.0.kind
  std::string header;  // [actor] or [[reward.source]]
  std::string tail;    // adam.lr
  std::string type;
  Limits limits;

  bool optional() const { return type.ends_with(" or \"none\""); }
  std::string kind() const {
    return optional() ? type.substr(0, type.size() - std::string_view(" or \"none\"").size())
                      : type;
  }
  std::string deck(const std::string& value) const {
    return header + "\n" + tail + " = " + value + "\n";
  }
};

std::vector<Subject> subjects() {
  std::vector<Subject> out;
  for (const auto& key : option_keys()) {
    const std::string section(section_of(key.name()));
    out.push_back({key.name(), "[" + section + "]", key.name().substr(section.size() + 1),
                   key.info().type, key.limits()});
  }
  for (const auto& key : source_keys())
    out.push_back({"reward.source.0." + key.name(), "[[reward.source]]", key.name(),
                   key.info().type, key.limits()});
  return out;
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  // TOML text of a value that the key takes.
  std::string value(const Subject& subject) {
    if (subject.optional() && below(4) == 0) return "\"none\"";
    const std::string kind = subject.kind();
    const Limits& limits = subject.limits;
    if (kind == "true or false") return below(2) == 0 ? "true" : "false";
    if (kind == "integer") return std::to_string(integer(limits));
    if (kind == "number") return real(limits);
    if (kind == "text") return text(limits);
    if (kind == "duration")
      return std::vector<std::string>{"\"90s\"", "\"1h30m\"", "\"2:00:30\"", "12.5", "7"}[below(5)];
    if (kind == "iterations, time or \"auto\"")
      return std::vector<std::string>{"0", "17", "\"20m\"", "\"1h30m\"", "\"auto\""}[below(5)];
    if (kind == "size")
      return std::vector<std::string>{"\"4 MiB\"", "\"64KiB\"", "1048577", "\"0.35GB\"",
                                      "\"70000 B\""}[below(5)];
    if (kind == "fraction or size")
      return std::vector<std::string>{"0.25", "1", "\"2 GiB\"", "1000000"}[below(4)];
    if (kind == "two numbers") return pair(limits);
    if (kind == "list of texts") return "[" + text(limits) + ", " + text(limits) + "]";
    if (kind == "list of numbers")
      return below(3) == 0 ? "[]" : "[" + real(limits) + ", " + real(limits) + "]";
    if (kind == "list of integers")
      return below(3) == 0 ? "[]"
                           : "[" + std::to_string(integer(limits)) + ", " +
                                 std::to_string(integer(limits)) + "]";
    return word(kind);
  }

 private:
  size_t below(size_t n) { return random_() % n; }
  int64_t integer(const Limits& limits) {
    const auto low =
        static_cast<int64_t>(std::max(limits.low, -1000.0)) + (limits.low_open ? 1 : 0);
    const auto high = static_cast<int64_t>(std::min(limits.high, static_cast<double>(low) + 5000)) -
                      (limits.high_open ? 1 : 0);
    return low + static_cast<int64_t>(below(static_cast<size_t>(high - low + 1)));
  }
  double inside(const Limits& limits) {
    const double low = std::max(limits.low, -100.0);
    const double high = std::min(limits.high, low + 1000);
    return low + (high - low) * std::uniform_real_distribution<double>(0.001, 0.999)(random_);
  }
  std::string real(const Limits& limits) { return write(inside(limits)); }
  std::string pair(const Limits& limits) {
    double low = inside(limits), high = inside(limits);
    if (limits.ordered && low > high) std::swap(low, high);
    return "[" + write(low) + ", " + write(high) + "]";
  }
  std::string text(const Limits& limits) {
    if (!limits.words.empty()) return config::quoted(limits.words[below(limits.words.size())]);
    const std::vector<std::string> texts{"x",         "a b",          "q\"uo\\te", "\u65e5 \u00fc",
                                         "tab\there", "a=b",          "[1]",       "1e5",
                                         "true",      "# no comment", "'"};
    return config::quoted(texts[below(texts.size())]);
  }
  std::string word(const std::string& kind) {  // "one of gae, reinforce, rloo"
    std::vector<std::string> words;
    for (size_t begin = std::string_view("one of ").size(); begin < kind.size();) {
      const size_t end = std::min(kind.find(", ", begin), kind.size());
      words.push_back(kind.substr(begin, end - begin));
      begin = end + 2;
    }
    return config::quoted(words[below(words.size())]);
  }
  std::mt19937_64 random_;
};

std::string refusal(const std::string& deck, const std::vector<std::string>& overrides = {}) {
  return error_of(ExitCode::configuration, [&] { parse_deck(deck, "a.toml", overrides); });
}

TEST(EveryKey, IsReadBackFromADump) {
  Draw draw(1);
  for (const Subject& subject : subjects()) {
    const std::string source = subject.header.starts_with("[[") ? "[[reward.source]]\n" : "";
    const Options initial = parse_deck(source);
    bool changed = false;
    for (int round = 0; round < 12 && !changed; ++round) {
      const std::string value = draw.value(subject);
      Options from_deck, from_override;
      ASSERT_NO_THROW(from_deck = parse_deck(subject.deck(value))) << subject.deck(value);
      ASSERT_NO_THROW(from_override = parse_deck(
                          source, "a.toml", std::vector<std::string>{subject.name + "=" + value}))
          << subject.name << "=" << value;
      EXPECT_EQ(from_deck, from_override) << subject.name << " = " << value;
      EXPECT_EQ(parse_deck(dump_deck(from_deck)), from_deck) << subject.name << " = " << value;
      changed = from_deck != initial;
    }
    EXPECT_TRUE(changed) << subject.name << " can have one value only";
  }
}

// All keys at once, each at random.
TEST(EveryKey, TogetherTheyAreReadBack) {
  Draw draw(2);
  for (int round = 0; round < 30; ++round) {
    std::vector<std::string> overrides;
    for (const Subject& subject : subjects())
      overrides.push_back(subject.name + "=" + draw.value(subject));
    const Options options = parse_deck("[[reward.source]]\n", "a.toml", overrides);
    const std::string dump = dump_deck(options);
    EXPECT_EQ(parse_deck(dump), options) << dump;
    EXPECT_EQ(dump_deck(parse_deck(dump)), dump) << "a dump of a dump is the same text";
  }
}

TEST(EveryKey, RefusesAnotherKindOfValue) {
  for (const Subject& subject : subjects()) {
    for (const char* wrong : {"1979-05-27", "[[1, 2], [3, 4], [5, 6]]", "{a = 1}"}) {
      const std::string message = refusal(subject.deck(wrong));
      EXPECT_THAT(message, AllOf(HasSubstr("a.toml:2"), HasSubstr(subject.name)))
          << subject.deck(wrong);
    }
    const bool takes_text = subject.kind() == "text" || subject.kind() == "list of texts";
    if (!takes_text) {
      EXPECT_THAT(refusal(subject.deck("\"nonsense \\u20ac\"")),
                  AllOf(HasSubstr("a.toml:2: " + subject.name), HasSubstr(" ")))
          << subject.name;
    }
    if (subject.kind() != "true or false") {
      EXPECT_THAT(refusal(subject.deck("true")),
                  HasSubstr("a.toml:2: " + subject.name + " must be"))
          << subject.name;
    }
  }
}

// Just outside of each limit; the message has the value and what is allowed.
TEST(EveryKey, RefusesValuesBeyondItsLimits) {
  int limited = 0;
  for (const Subject& subject : subjects()) {
    const Limits& limits = subject.limits;
    const std::string kind = subject.kind();
    const bool whole = kind == "integer" || kind == "size" || kind == "list of integers" ||
                       kind == "iterations, time or \"auto\"";
    const auto expect_refused = [&](double value) {
      std::string text = whole ? std::to_string(static_cast<int64_t>(value)) : write(value);
      const std::string shown = text.ends_with(".0") ? text.substr(0, text.size() - 2) : text;
      if (kind == "two numbers") text = "[" + text + ", " + text + "]";
      if (kind == "list of numbers" || kind == "list of integers") text = "[" + text + "]";
      const std::string message = refusal(subject.deck(text));
      EXPECT_THAT(message, AllOf(HasSubstr("a.toml:2: " + subject.name),
                                 HasSubstr("(allowed: " + limits.describe() + ")")))
          << text;
      EXPECT_THAT(message, HasSubstr(std::abs(value) < 1e6 ? "is " + shown + " (" : "is ")) << text;
      ++limited;
    };
    const double infinity = std::numeric_limits<double>::infinity();
    if (limits.low > -infinity)
      expect_refused(limits.low_open ? limits.low
                     : whole         ? limits.low - 1
                                     : std::nextafter(limits.low, -infinity));
    if (limits.high < infinity)
      expect_refused(limits.high_open ? limits.high
                     : whole          ? limits.high * 1.001 + 1
                                      : std::nextafter(limits.high, infinity));
  }
  EXPECT_GT(limited, 100);
}

TEST(EveryKey, RefusesWhatNoKeyOfItsKindCanMean) {
  const std::map<std::string, std::vector<std::string>> senseless{
      {"integer", {"1.5", "1e3", "99999999999999999999"}},
      {"number", {"nan", "inf", "-inf"}},
      {"duration", {"-1", "\"-1s\"", "\"soon\"", "inf", "\"1h30\""}},
      {"size", {"-1", "1.5", "\"9e99 TiB\"", "\"-4 MiB\""}},
      {"fraction or size", {"0", "0.0", "-0.5", "1.5", "nan", "\"0 B\"", "\"9e99 TiB\""}},
      {"two numbers", {"[]", "[1.0]", "[1.0, 2.0, 3.0]", "[nan, 1.0]", "[\"a\", 1.0]", "1.0"}},
      {"list of texts", {"[1]", "[\"a\", [\"b\"]]", "[\"a\\u0000b\"]"}},
      {"list of numbers", {"[\"a\"]", "[inf]", "1.0"}},
      {"list of integers", {"[\"a\"]", "[1.5]", "7", "[99999999999999999999]"}},
      {"text", {"\"a\\u0000b\""}},
  };
  for (const Subject& subject : subjects()) {
    const auto found = senseless.find(subject.kind());
    if (found == senseless.end()) continue;
    for (const std::string& value : found->second)
      EXPECT_THAT(refusal(subject.deck(value)), HasSubstr("a.toml:2")) << subject.deck(value);
  }
}

// One deck with a mistake in every key: each has its line, none hides another.
TEST(EveryKey, AllAreNamedInOneMessage) {
  std::string deck;
  std::vector<std::string> expected;
  std::string header;
  int line = 0;
  for (const Subject& subject : subjects()) {
    if (subject.header != header) {
      header = subject.header;
      deck += header + "\n";
      ++line;
    }
    deck += subject.tail + " = 1979-05-27\n";
    expected.push_back("a.toml:" + std::to_string(++line) + ": " + subject.name + " must be ");
  }
  const std::string message = refusal(deck);
  EXPECT_THAT(message, HasSubstr("a.toml has " + std::to_string(expected.size()) + " mistakes"));
  for (const std::string& part : expected) EXPECT_THAT(message, HasSubstr(part));
}

// A letter too many, too few or wrong: the right key is proposed.
TEST(EveryKey, IsProposedForASlipOfThePen) {
  for (const Subject& subject : subjects()) {
    if (subject.tail.size() < 5) continue;
    std::string slip = subject.tail;
    slip.insert(slip.size() - 2, "q");
    const std::string wanted = subject.header.starts_with("[[") ? subject.tail : subject.name;
    EXPECT_THAT(refusal(subject.header + "\n" + slip + " = 1\n"),
                AllOf(HasSubstr("a.toml:2"), HasSubstr("(nearest: " + wanted + ")")));
  }
}

// What the program says about names of OpenRLHF must name keys that are there.
TEST(Hints, NameKeysThatExist) {
  const char* const names[] = {"actor.model_name_or_path",
                               "critic.model_name_or_path",
                               "ref.model_name_or_path",
                               "actor.num_nodes",
                               "ref.num_nodes",
                               "reward.num_nodes",
                               "actor.gradient_checkpointing_enable",
                               "train.seed",
                               "train.max_tokens_per_gpu",
                               "train.async_enable",
                               "train.full_determinism_enable",
                               "train.dtype",
                               "rollout.max_tokens_per_gpu",
                               "data.input_key",
                               "data.output_key",
                               "ckpt.save_steps",
                               "ckpt.max_num",
                               "ckpt.best_metric_key",
                               "ckpt.load_enable",
                               "ckpt.output_dir",
                               "ds.param_dtype",
                               "ds.grad_accum_dtype",
                               "ds.zpg",
                               "ds.adam_offload",
                               "vllm.num_engines",
                               "vllm.tensor_parallel_size",
                               "vllm.gpu_memory_utilization",
                               "vllm.enable_prefix_caching"};
  for (const char* name : names) {
    EXPECT_EQ(option_keys().find(name), nullptr) << name << " is a key itself";
    const std::string hint = hint_for(name);
    const std::string lead = "here it is ";
    const size_t begin = hint.find(lead);
    ASSERT_NE(begin, std::string::npos) << name << ": " << hint;
    const std::string key = hint.substr(
        begin + lead.size(), hint.find_first_of(" ", begin + lead.size()) - begin - lead.size());
    EXPECT_NE(option_keys().find(key), nullptr) << name << ": " << hint;
  }
}

}  // namespace
}  // namespace trireme::config
