// How answers end: special tokens, texts, and what must not end one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "support/samples.hpp"
#include "trireme/text/logit_bias.hpp"
#include "trireme/text/stops.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::text {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// <|pad|> 256, <|bos|> 257, <|eos|> 258; below them the bytes.
constexpr int64_t vocabulary = 272;

Stops stops(bool ignore_eos, const std::vector<int64_t>& ids,
            const std::vector<std::string>& strings) {
  return stops_of(test::tokenizer(), ignore_eos, ids, strings, vocabulary,
                  "rollout.stop_token_ids");
}

TEST(Stops, ATextThatIsOneSpecialTokenIsAStopId) {
  const Stops found = stops(false, {}, {"<|pad|>", "end", "a", "<|eos|>", "x<|bos|>"});
  EXPECT_THAT(found.ids, ElementsAre(256, 258));
  EXPECT_THAT(found.strings, ElementsAre("end", "a", "x<|bos|>"))
      << "an ordinary token may be a part of another text";
}

TEST(Stops, IdsOfTheDeckCountWithAndWithoutTheEndToken) {
  EXPECT_THAT(stops(false, {271, 5, 258}, {}).ids, ElementsAre(5, 258, 271));
  EXPECT_THAT(stops(true, {271, 5}, {}).ids, ElementsAre(5, 271));
  EXPECT_THAT(stops(true, {}, {}).ids, IsEmpty());
  for (const int64_t wrong : {int64_t{-1}, vocabulary, int64_t{1} << 40}) {
    const auto message = config::error_of(ExitCode::configuration, [&] {
      stops(false, {3, wrong}, {});
    });
    EXPECT_THAT(message, AllOf(HasSubstr("rollout.stop_token_ids"), HasSubstr(base::text(wrong)),
                               HasSubstr("272")));
  }
}

TEST(LogitBias, NamesTokensByIdAndByText) {
  const auto read = [](const std::vector<std::string>& entries) {
    return token_biases(test::tokenizer(), entries, vocabulary, "rollout.logit_bias");
  };
  const int32_t x = test::tokenizer().encode("x").front(),
                equals = test::tokenizer().encode("=").front();
  std::vector<TokenBias> want{{x, -1.5f}, {equals, 2}, {258, 100}, {271, -100}};
  std::ranges::sort(want, {}, &TokenBias::id);
  EXPECT_EQ(read({"271=-100", "text:<|eos|>=100", "text:x=-1.5", "text:==2"}), want)
      << "the last equals sign stands before the bias";
  EXPECT_THAT(read({}), IsEmpty());
  for (const char* wrong : {"x=1", "5", "5=", "=1", "text:=1", "5=101", "5=nan", "5=1.0x",
                            "text:xx=1", "272=1", "-1=1", "5 =1"}) {
    EXPECT_THAT(config::error_of(ExitCode::configuration, [&] { read({wrong}); }),
                HasSubstr("rollout.logit_bias"))
        << wrong;
  }
  EXPECT_THAT(config::error_of(ExitCode::configuration,
                               [&] {
                                 read({"258=1", "text:<|eos|>=1"});
                               }),
              HasSubstr("258 twice"));
}

TEST(LogitBias, TextsOfTheCommandLineMayBeBroken) {
  EXPECT_THAT(
      config::error_of(
          ExitCode::configuration,
          [] { token_biases(test::tokenizer(), {"text:\xFF=1"}, vocabulary, "--logit-bias"); }),
      HasSubstr("--logit-bias has a text that is not UTF-8"));
}

// Tokens until the predicate says stop; -1: never.
int64_t stopped_after(const std::vector<std::string>& strings, const std::vector<int32_t>& tokens) {
  const auto stop = stop_string_predicate(test::tokenizer(), strings);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (stop(tokens[i])) return static_cast<int64_t>(i) + 1;
  }
  return -1;
}

TEST(StopStrings, SeeSpecialTokens) {
  const auto x = test::tokenizer().encode("x").front();
  EXPECT_EQ(stopped_after({"x<|bos|>"}, {x, 256, x, 257, x}), 4);
  EXPECT_EQ(stopped_after({"<|bos|>x"}, {x, 257, x}), 3);
}

// The engine does not obey it before min_new_tokens: a text that came by then must not end the
// answer later.
TEST(StopStrings, AreSaidOnceWhenTheyAreComplete) {
  const auto stop = stop_string_predicate(test::tokenizer(), {"ab", "a longer one"});
  std::vector<bool> said;
  for (const auto token : test::tokenizer().encode("xabxxab")) said.push_back(stop(token));
  EXPECT_THAT(said, ElementsAre(false, false, true, false, false, false, true));
}

TEST(StopStrings, AreFoundAcrossTokensAndCharacters) {
  const auto tokens = test::tokenizer().encode("say \xC3\xBC now");
  EXPECT_EQ(stopped_after({"\xC3\xBC n"}, tokens),
            static_cast<int64_t>(test::tokenizer().encode("say \xC3\xBC n").size()));
  EXPECT_EQ(stopped_after({"never"}, tokens), -1);
  EXPECT_FALSE(stop_string_predicate(test::tokenizer(), {}));
}

// Against the definition: the text so far ends in one of the strings. Each token is a byte here.
TEST(StopStrings, AreWhatTheTextEndsIn) {
  std::mt19937 random(6);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> strings(1 + random() % 3);
    for (std::string& text : strings) {
      for (size_t length = 1 + random() % 5; length > 0; --length)
        text += random() % 2 == 0 ? 'a' : 'b';
    }
    const auto stop = stop_string_predicate(test::tokenizer(), strings);
    const auto copy = stop;  // they share what has been seen: one request
    std::string text;
    for (int i = 0; i < 40; ++i) {
      text += random() % 2 == 0 ? 'a' : 'b';
      const bool ends = std::any_of(strings.begin(), strings.end(),
                                    [&](const std::string& s) { return text.ends_with(s); });
      ASSERT_EQ((i % 3 == 0 ? copy : stop)(text.back()), ends) << text;
    }
  }
}

TEST(StopStrings, OfBrokenCharacters) {
  EXPECT_EQ(stopped_after({"\xEF\xBF\xBD"
                           "a"},
                          {0xE2, 0x82, 'a'}),
            3)
      << "what is broken counts as it will be written";
  EXPECT_EQ(stopped_after({"\xE2\x82\xAC"}, {0xE2, 0x82, 0xAC}), 3)
      << "not before the character is whole";
  EXPECT_EQ(stopped_after({"b"}, {0xE2, 'b'}), 2) << "the byte that ends a broken one is looked at";
}

}  // namespace
}  // namespace trireme::text
