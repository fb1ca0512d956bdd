#include "trireme/base/wire.hpp"

#include <gtest/gtest.h>

#include <array>

namespace trireme::base {
namespace {

enum class Colour : uint8_t { red, green };
struct Point {
  int32_t x = 0;
  double y = 0;
  bool operator==(const Point&) const = default;
};
struct Shape {
  Colour colour = Colour::red;
  std::string name;
  std::vector<Point> points;
  std::vector<std::string> words;
  std::vector<std::pair<std::string, int64_t>> counts;
  std::array<int16_t, 3> numbers{};
  static constexpr auto fields = std::tuple{&Shape::colour, &Shape::name,   &Shape::points,
                                            &Shape::words,  &Shape::counts, &Shape::numbers};
  bool operator==(const Shape&) const = default;
};
struct Pair {
  uint8_t a = 1;
  uint32_t b = 2;
  static constexpr auto fields = std::tuple{&Pair::a, &Pair::b};
};
const Shape shape{Colour::green,       std::string("a\0b", 3),
                  {{1, 2.5}, {-3, 0}}, {"", "word\n"},
                  {{"n", -7}},         {1, 2, 3}};

TEST(Wire, ValuesGoThereAndBack) {
  EXPECT_EQ(from_bytes<Shape>(to_bytes(shape)), shape);
  EXPECT_EQ(from_bytes<Shape>(to_bytes(Shape{})), Shape{});
  const std::vector<Shape> list{shape, {}, shape};
  EXPECT_EQ(from_bytes<std::vector<Shape>>(to_bytes(list)), list);
  EXPECT_EQ(from_bytes<double>(to_bytes(0.1)), 0.1);
}

// Members one behind the other without padding, lists with their length in 64 bits in front.
TEST(Wire, HasTheDocumentedForm) {
  EXPECT_EQ(to_bytes(Pair{}), std::string("\1\2\0\0\0", 5));
  EXPECT_EQ(to_bytes(std::string("xy")), std::string("\2\0\0\0\0\0\0\0xy", 10));
}

TEST(Wire, BytesThatDoNotFitAreRefused) {
  const std::string bytes = to_bytes(shape);
  for (size_t cut = 0; cut < bytes.size(); ++cut)
    EXPECT_THROW(from_bytes<Shape>(bytes.substr(0, cut)), UserError) << cut;
  EXPECT_THROW(from_bytes<Shape>(bytes + "x"), UserError);
  try {
    from_bytes<std::vector<double>>(to_bytes(uint64_t{1} << 61), "the letter");
    ADD_FAILURE() << "a list of 2^61 numbers";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    EXPECT_TRUE(std::string(error.what()).starts_with("the letter: ")) << error.what();
  }
}

}  // namespace
}  // namespace trireme::base
