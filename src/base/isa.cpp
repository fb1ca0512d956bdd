#include "trireme/base/isa.hpp"

#include <atomic>

#include "trireme/base/error.hpp"

namespace trireme::base {
namespace {

Isa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();  // also asks the operating system whether it keeps the wide registers
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (avx512 && __builtin_cpu_supports("avx512bf16")) return Isa::avx512_bf16;
  if (avx512) return Isa::avx512;
  if (avx2) return Isa::avx2;
#endif
  return Isa::portable;
}

std::atomic<Isa>& chosen() {
  static std::atomic<Isa> isa{best_isa()};
  return isa;
}

}  // namespace

std::string to_string(Isa isa) {
  switch (isa) {
    case Isa::portable: return "portable";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::avx512_bf16: return "avx512_bf16";
  }
  return "unknown";
}

Isa best_isa() {
  static const Isa isa = detect();
  return isa;
}

Isa active_isa() { return chosen().load(std::memory_order_relaxed); }

void use_isa(Isa isa) {
  VALIDATE(isa <= best_isa(), ExitCode::unfit_environment, "this processor has no ", to_string(isa), " (it offers ",
           to_string(best_isa()), ")");
  chosen().store(isa, std::memory_order_relaxed);
}

}  // namespace trireme::base
