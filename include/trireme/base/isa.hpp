// The instruction set that our kernels use: the processor's best, found once at start, unless a lower one is asked for (the deck's
// run.isa, the environment variable TRIREME_ISA). The only place that asks the processor.
#pragma once

#include <cstdint>
#include <string>

namespace trireme::base {

// In this order each can do what those before it can.
enum class Isa : uint8_t {
  portable,     // what the compiler makes of plain C++ for any processor of the build's family
  avx2,         // AVX2, FMA and BMI2: x86-64-v3 (Haswell, Zen 1 and later)
  avx512,       // AVX-512 F, BW, VL and DQ: x86-64-v4
  avx512_bf16,  // and VDPBF16PS
};
// "portable", "avx2", "avx512", "avx512_bf16": as the deck writes them.
std::string to_string(Isa isa);

// The best one that this processor and operating system support.
Isa best_isa();
// The one in use: best_isa() unless use_isa() chose another.
Isa active_isa();
// Throws UserError(unfit_environment) when this processor lacks it. Not while kernels run on other threads.
void use_isa(Isa isa);

}  // namespace trireme::base
