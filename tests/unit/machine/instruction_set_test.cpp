// What the log says about libraries that take no notice of a cap, from rates that such machines
// gave.
#include "trireme/machine/instruction_set.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme::test {
namespace {

using base::Isa;
using machine::ignored_caps;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(IgnoredCaps, ALibraryWithinTheCapIsNotNamed) {
  EXPECT_THAT(machine::ignored_caps(Isa::avx2, {.fp32 = 94e9, .bf16 = 9e9, .cycles = 3.7e9}),
              IsEmpty());
  EXPECT_THAT(machine::ignored_caps(Isa::portable, {.fp32 = 28e9, .bf16 = 2e9, .cycles = 3.7e9}),
              IsEmpty());
  EXPECT_THAT(machine::ignored_caps(Isa::avx512_bf16, {.fp32 = 1e12, .bf16 = 2e13, .cycles = 3e9}),
              IsEmpty())
      << "AMX is not capped";
}

TEST(IgnoredCaps, MoreThanTheUnitsOfTheInstructionSetCanDoIsNamedWithItsRate) {
  EXPECT_THAT(machine::ignored_caps(Isa::avx2, {.fp32 = 170e9, .bf16 = 9e9, .cycles = 3e9}),
              ElementsAre("MKL takes no notice of the cap at avx2: fp32 products at 170.0 GFLOP/s "
                          "are 57 operations per cycle, more than the 32 it has"));
  EXPECT_THAT(machine::ignored_caps(Isa::avx2, {.fp32 = 90e9, .bf16 = 190e9, .cycles = 3.7e9}),
              ElementsAre(HasSubstr("oneDNN takes no notice")));
  EXPECT_THAT(
      machine::ignored_caps(Isa::portable, {.fp32 = 94e9, .bf16 = 90e9, .cycles = 3.7e9}),
      ElementsAre(HasSubstr("MKL takes no notice of the cap at portable"), HasSubstr("oneDNN")));
}

TEST(IgnoredCaps, WithoutAClockNothingIsSaid) {
  EXPECT_THAT(machine::ignored_caps(Isa::portable, {.fp32 = 1e15, .bf16 = 1e15, .cycles = 0}),
              IsEmpty());
}

TEST(IgnoredCaps, ProductsAreMeasured) {
  const auto rates = machine::measure_products();
  EXPECT_GT(rates.fp32, 0);
  EXPECT_GT(rates.bf16, 0);
#if defined(__x86_64__)
  EXPECT_GT(rates.cycles, 0);
#endif
}

}  // namespace
}  // namespace trireme::test
