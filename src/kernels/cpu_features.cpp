#include "trireme/kernels/cpu_features.hpp"

#include <atomic>

#include "trireme/base/error.hpp"

namespace trireme::kernels {
namespace {

Isa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();  // also asks the operating system whether it keeps the wide registers
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (avx512 && __builtin_cpu_supports("avx512bf16")) return Isa::avx512_bf16;
  if (avx512) return Isa::avx512;
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
    case Isa::avx512: return "AVX-512";
    case Isa::avx512_bf16: return "AVX-512 with bf16 products";
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

}  // namespace trireme::kernels
