// Instruction sets for tests: all that may be used here, and one of them for a while.
#pragma once

#include <vector>

#include "trireme/base/isa.hpp"

namespace trireme::test {

// From portable to base::best_isa().
inline std::vector<base::Isa> usable_instruction_sets() {
  std::vector<base::Isa> out;
  for (const auto isa :
       {base::Isa::portable, base::Isa::avx2, base::Isa::avx512, base::Isa::avx512_bf16}) {
    if (isa <= base::best_isa()) out.push_back(isa);
  }
  return out;
}

class UnderInstructionSet {
 public:
  explicit UnderInstructionSet(base::Isa isa) : before_(base::active_isa()) { base::use_isa(isa); }
  ~UnderInstructionSet() { base::use_isa(before_); }
  UnderInstructionSet(const UnderInstructionSet&) = delete;

 private:
  base::Isa before_;
};

}  // namespace trireme::test
