#include "trireme/text/utf8.hpp"

#include <gtest/gtest.h>

#include "text/byte_alphabet.hpp"

namespace trireme::text {
namespace {

// Table 3-8 of the Unicode standard 15 ("U+FFFD for non-shortest form sequences") and its neighbours.
TEST(Utf8, MaximalSubparts) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(utf8_lossy("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(utf8_lossy("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(utf8_lossy("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
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
