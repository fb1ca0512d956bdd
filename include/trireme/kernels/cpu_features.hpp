// Which instruction set the decode GEMM uses: found once at start, chosen at run time (the build is for any x86-64). The
// row-wise kernels are compiled for several instruction sets with the same results (src/kernels/vector16.hpp).
#pragma once

#include <cstdint>
#include <string>

namespace trireme::kernels {

// portable: plain C++ with std::fma; avx512: AVX-512 F/BW/VL/DQ; avx512_bf16: the same with VDPBF16PS.
enum class Isa : uint8_t { portable, avx512, avx512_bf16 };
std::string to_string(Isa isa);

// The best one that this processor and operating system support.
Isa best_isa();
// The one in use: best_isa() unless use_isa() chose another.
Isa active_isa();
// For tests and for comparing machines; throws UserError(unfit_environment) when this processor lacks it. Not while
// kernels run on other threads.
void use_isa(Isa isa);

}  // namespace trireme::kernels
