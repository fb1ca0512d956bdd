#include "trireme/text/utf8.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "text/byte_alphabet.hpp"

namespace trireme::text {
namespace {

// Table 3-8 of the Unicode standard 15 ("U+FFFD for non-shortest form sequences") and its
// neighbours.
TEST(Utf8, MaximalSubparts) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(utf8_lossy("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(utf8_lossy("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(utf8_lossy("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(utf8_lossy("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
}

TEST(Utf8, EveryCodePointRoundTrips) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c == 0xD800) c = 0xE000;
    std::string text;
    append_utf8(text, c);
    const Utf8Step step = utf8_step(text);
    ASSERT_EQ(step.kind, Utf8::valid);
    ASSERT_EQ(step.character, c);
    ASSERT_EQ(step.length, text.size());
    ASSERT_EQ(first_invalid_utf8(text), std::string::npos);
    for (size_t cut = 1; cut < text.size(); ++cut) {
      ASSERT_EQ(utf8_step(text.substr(0, cut)).kind, Utf8::incomplete);
      ASSERT_EQ(utf8_step(text.substr(0, cut)).length, cut);
    }
  }
}

TEST(Utf8, Space) {
  EXPECT_EQ(leading_space("\xC2\xA0 \xE3\x80\x80x", is_white_space), 6u);
  EXPECT_EQ(trailing_space("x\xC2\xA0 \xE3\x80\x80", is_white_space), 6u);
  EXPECT_EQ(trailing_space("\x1Cx\x1C", is_white_space), 0u);
  EXPECT_EQ(trailing_space("\x1Cx\x1C", is_python_space), 1u);
  EXPECT_EQ(leading_space("\xE1\xA0\x8Ex", is_white_space), 0u) << "U+180E is no white space";
}

// Maximal subparts by the definition: the longest start of the rest that some character's bytes
// start with.
TEST(Utf8, LossyTextsByDefinition) {
  std::set<std::string> starts;  // of the bytes of some character, itself not among them
  for (char32_t c = 0; c <= 0x10FFFF;
       c += c < 0x900 ? 1 : 61) {  // 61: every lead byte and every range of second bytes comes by
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    for (size_t cut = 1; cut < text.size(); ++cut) starts.insert(text.substr(0, cut));
  }
  const auto is_character =
      [](std::string_view s) {  // RFC 3629: the shortest form of a scalar value
        const auto at = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(s[i])); };
        for (size_t i = 1; i < s.size(); ++i) {
          if (at(i) >> 6 != 2) return false;
        }
        if (s.size() == 1) return at(0) < 0x80;
        if (s.size() == 2) return at(0) >> 5 == 6 && (at(0) & 31) >= 2;
        const uint32_t low = (at(s.size() - 2) & 63) << 6 | (at(s.size() - 1) & 63);
        const uint32_t c =
            s.size() == 3 ? (at(0) & 15) << 12 | low : (at(0) & 7) << 18 | (at(1) & 63) << 12 | low;
        if (s.size() == 3) return at(0) >> 4 == 14 && c >= 0x800 && (c < 0xD800 || c > 0xDFFF);
        return at(0) >> 3 == 30 && c >= 0x10000 && c <= 0x10FFFF;
      };
  std::mt19937 random(4);
  const std::string bytes =
      "a\x7F\x80\x8F\x90\x9F\xA0\xBF\xC0\xC1\xC2\xDF\xE0\xE1\xED\xEE\xEF\xF0\xF1\xF3\xF4\xF5\xFF";
  for (int round = 0; round < 20000; ++round) {
    std::string text(random() % 9, '\0');
    for (char& c : text) c = bytes[random() % bytes.size()];
    std::string expected;
    size_t first = std::string::npos;
    for (size_t at = 0; at < text.size();) {
      size_t length = 0;
      for (size_t n = 1; n <= 4 && at + n <= text.size(); ++n) {
        if (is_character(text.substr(at, n))) length = n;
      }
      if (length > 0) {
        expected += text.substr(at, length);
      } else {
        if (first == std::string::npos) first = at;
        expected += "\xEF\xBF\xBD";
        for (length = 1; at + length < text.size() && starts.contains(text.substr(at, length + 1));)
          ++length;
      }
      at += length;
    }
    ASSERT_EQ(utf8_lossy(text), expected) << testing::PrintToString(text);
    ASSERT_EQ(first_invalid_utf8(text), first) << testing::PrintToString(text);
  }
}

TEST(Utf8, SpaceStopsAtBrokenBytes) {
  EXPECT_EQ(leading_space(" \xC2", is_white_space), 1u);
  EXPECT_EQ(leading_space("", is_white_space), 0u);
  EXPECT_EQ(trailing_space("", is_white_space), 0u);
  EXPECT_EQ(trailing_space(" \x80 ", is_white_space), 1u) << "a byte that continues nothing";
  EXPECT_EQ(trailing_space("\xE3\x80 ", is_white_space), 1u) << "the start of a character";
  EXPECT_EQ(trailing_space("\x80\x80\x80\x80\x80", is_white_space), 0u);
  EXPECT_EQ(trailing_space(" \xE2\x80\x89", is_white_space), 4u);
}

TEST(ByteAlphabet, IsABijection) {
  for (int byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(char_to_byte(byte_to_char(static_cast<uint8_t>(byte))), byte);
  }
  EXPECT_EQ(byte_to_char(' '), char32_t{0x120});
  EXPECT_EQ(byte_to_char('\n'), char32_t{0x10A});
  EXPECT_EQ(char_to_byte(U' '), -1);
  EXPECT_EQ(char_to_byte(U'\x144'), -1);
  EXPECT_EQ(token_to_bytes("\xC4\xA0the"), " the");
  EXPECT_EQ(token_to_bytes("<a b>"), "<a b>") << "a token outside the alphabet stands for itself";
}

}  // namespace
}  // namespace trireme::text
