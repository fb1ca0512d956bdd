// The instruction set in use: its words, its limits. tests/integration/isa_test.py has the program
// under TRIREME_ISA and run.isa.
#include "trireme/base/isa.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/instruction_sets.hpp"
#include "trireme/base/error.hpp"

namespace trireme::test {
namespace {

using base::Isa;
using testing::HasSubstr;

TEST(InstructionSet, WordsAreThoseOfTheDeck) {
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16})
    EXPECT_EQ(base::isa_from(base::to_string(isa)), isa);
  EXPECT_EQ(base::to_string(Isa::avx512_bf16), "avx512_bf16");
  for (const char* word : {"", "auto", "AVX2", "avx", "sse4"})
    EXPECT_FALSE(base::isa_from(word)) << word;
}

TEST(InstructionSet, TheBestIsNotAboveTheProcessorsAndInUseAtStart) {
  EXPECT_LE(base::best_isa(), base::processor_isa());
  EXPECT_EQ(base::active_isa(), base::best_isa());
}

TEST(InstructionSet, EveryLowerOneMayBeChosenAndNoHigherOne) {
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16}) {
    if (isa <= base::best_isa()) {
      const UnderInstructionSet use(isa);
      EXPECT_EQ(base::active_isa(), isa);
      continue;
    }
    try {
      base::use_isa(isa);
      ADD_FAILURE() << base::to_string(isa) << " was taken";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::unfit_environment);
      EXPECT_THAT(error.what(), HasSubstr(base::to_string(isa)));
      EXPECT_THAT(error.what(),
                  HasSubstr(isa > base::processor_isa() ? "this processor" : "TRIREME_ISA"));
    }
  }
  EXPECT_EQ(base::active_isa(), base::best_isa());
}

}  // namespace
}  // namespace trireme::test
