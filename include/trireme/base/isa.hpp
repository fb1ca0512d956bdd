// The instruction set that our kernels use: the processor's best, found once at start, unless a
// lower one is asked for: by the environment variable TRIREME_ISA, a cap from outside for every
// program and test (`auto` or one of the words below), or within it by the deck's run.isa. The only
// place that asks the processor.
//
// A machine under a cap behaves like an older one: best_isa() is the cap, and cap_libraries() hands
// it on to LibTorch, oneDNN and MKL.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::base {

// In this order each can do what those before it can.
enum class Isa : uint8_t {
  portable,     // plain C++, for any processor of the build's family
  avx2,         // AVX2, FMA and BMI2: x86-64-v3 (Haswell, Zen 1 and later)
  avx512,       // AVX-512 F, BW, VL and DQ: x86-64-v4
  avx512_bf16,  // and VDPBF16PS
};
// "portable", "avx2", "avx512", "avx512_bf16": as the deck writes them.
std::string to_string(Isa isa);
std::optional<Isa> isa_from(std::string_view word);

// Supported by this processor and operating system, whatever is asked for.
Isa processor_isa();
// The best one that may be used: processor_isa(), or the lower one that TRIREME_ISA names. Throws
// UserError(usage) when its word is unknown and UserError(unfit_environment) when the processor
// lacks it; a program's main calls it first (cap_libraries() does).
Isa best_isa();
// The one in use: best_isa() unless use_isa() chose another.
Isa active_isa();
// Throws UserError(unfit_environment) when it is above best_isa(). Not while kernels run on other
// threads.
void use_isa(Isa isa);

// Whether the processor has matrix units that multiply bf16 (AMX), the operating system lets this
// process use them, and nothing caps what may be used: neither TRIREME_ISA and run.isa nor the
// libraries' own variables (MKL_ENABLE_INSTRUCTIONS, MKL_CBWR, ONEDNN_MAX_CPU_ISA).
bool has_matrix_units();

// Makes LibTorch, oneDNN and MKL use no more than active_isa(), by the environment variables that
// they read at their first operation: before that, and before other threads start. Does nothing
// where nothing was asked for. Child processes inherit it.
void cap_libraries();
// "ATEN_CPU_CAPABILITY=avx2 ...", what cap_libraries() set; "" when it set nothing.
std::string library_caps();

}  // namespace trireme::base
