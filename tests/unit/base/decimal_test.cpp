// Decimals of any length against values worked out by hand, and as a property: a number written in
// another way is equal, one with another digit is not.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "trireme/base/decimal.hpp"

namespace trireme::test {
namespace {

using base::Decimal;

TEST(Decimals, HaveOneForm) {
  const auto is = [](const char* text, bool negative, const char* digits, int64_t exponent) {
    EXPECT_EQ(Decimal::parse(text), (Decimal{negative, digits, exponent})) << text;
  };
  is("12.50", false, "125", 2);
  is("-0.00125", true, "125", -2);
  is("+2e3", false, "2", 4);
  is("2000", false, "2", 4);
  is(".5", false, "5", 0);
  is("5.", false, "5", 1);
  is("-0.0", false, "", 0);
  is("0e99", false, "", 0);
  is("18446744073709551616", false, "18446744073709551616", 20);
  is("1E-999999", false, "1", -999998);
}

TEST(Decimals, TextsThatAreNone) {
  for (const char* text : {"",
                           "-",
                           "+",
                           ".",
                           "-.",
                           "e5",
                           "1e",
                           "1e+",
                           "1e+-5",
                           "1e5x",
                           "1.2.3",
                           " 1",
                           "1 ",
                           "--1",
                           "+-1",
                           "0x10",
                           "inf",
                           "nan",
                           "1,000",
                           "1e99999999999999999999",
                           "1e1000000000000001",
                           "\u0663"}) {
    EXPECT_EQ(Decimal::parse(text), std::nullopt) << text;
  }
}

TEST(Decimals, AreRoundedToPlacesHalvesToTheEvenDigit) {
  const auto rounded = [](const char* text, const char* to) {
    EXPECT_EQ(Decimal::parse(text)->rounded(2), *Decimal::parse(to)) << text;
  };
  rounded("1.234", "1.23");
  rounded("1.235", "1.24");
  rounded("1.245", "1.24");
  rounded("1.2450001", "1.25");
  rounded("-1.236", "-1.24");
  rounded("0.996", "1");
  rounded("9999.999", "10000");
  rounded("0.004", "0");
  rounded("0.005", "0");
  rounded("0.0051", "0.01");
  rounded("1e-30", "0");
  rounded("123456789012345678901.004", "123456789012345678901");
}

TEST(Decimals, OtherWritingsAreEqualAndOtherDigitsAreNot) {
  std::mt19937_64 random(31);
  const auto below = [&](uint64_t end) { return random() % end; };
  for (int time = 0; time < 2000; ++time) {
    std::string digits(1, static_cast<char>('1' + below(9)));
    for (uint64_t i = below(60); i > 0; --i) digits += static_cast<char>('0' + below(10));
    const auto point = static_cast<size_t>(below(digits.size() + 1));
    const auto shift = static_cast<int64_t>(below(40)) - 20;
    const std::string plain =
        digits.substr(0, point) + "." + digits.substr(point) + "e" + std::to_string(shift);
    const std::string whole = std::string(below(3), '0') + digits + std::string(below(4), '0');
    const auto zeros = static_cast<int64_t>(whole.size() - whole.find(digits) - digits.size());
    const int64_t exponent = shift - static_cast<int64_t>(digits.size() - point) - zeros;
    const auto value = Decimal::parse(plain);
    ASSERT_TRUE(value) << plain;
    EXPECT_EQ(value, Decimal::parse(whole + "E" + std::to_string(exponent))) << plain;
    EXPECT_NE(value, Decimal::parse("-" + plain)) << plain;
    std::string other = digits;
    const auto place = static_cast<size_t>(below(digits.size()));
    other[place] =
        static_cast<char>('0' + (other[place] - '0' + 1 + static_cast<int>(below(9))) % 10);
    EXPECT_NE(value, Decimal::parse(other.substr(0, point) + "." + other.substr(point) + "e" +
                                    std::to_string(shift)))
        << plain;
  }
}

}  // namespace
}  // namespace trireme::test
