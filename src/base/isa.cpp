#include "trireme/base/isa.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <array>
#include <atomic>
#include <cstdlib>
#include <string>

#include "trireme/base/error.hpp"

namespace trireme::base {
namespace {

constexpr std::array<std::string_view, 4> isa_words{"portable", "avx2", "avx512", "avx512_bf16"};

Isa detect_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();  // also asks the operating system whether it keeps the wide registers
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  if (avx512 && __builtin_cpu_supports("avx512bf16")) return Isa::avx512_bf16;
  if (avx512) return Isa::avx512;
  if (avx2) return Isa::avx2;
#endif
  return Isa::portable;
}

// Not every compiler's __builtin_cpu_supports() knows the word.
bool detect_amx() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_OSXSAVE) == 0) return false;
  constexpr unsigned amx_bf16 = 1U << 22, amx_tile = 1U << 24, tiles_kept = 3U << 17;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & amx_bf16) == 0 || (d & amx_tile) == 0)
    return false;
  __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));  // kept by the operating system
  if ((a & tiles_kept) != tiles_kept) return false;
#if defined(__linux__)
  constexpr long ask_for_state = 0x1023,
                 tile_data = 18;  // ARCH_REQ_XCOMP_PERM: once, for all threads of the process
  return ::syscall(SYS_arch_prctl, ask_for_state, tile_data) == 0;
#else
  return false;
#endif
#else
  return false;
#endif
}

bool onednn_may_use_amx() {
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    const char* word = std::getenv(name);
    if (word == nullptr) continue;
    const std::string_view cap(word);
    return cap == "ALL" || cap == "DEFAULT" || cap.find("AMX") != std::string_view::npos;
  }
  return true;
}

Isa isa_of_environment() {
  const char* word = std::getenv("TRIREME_ISA");
  if (word == nullptr || *word == '\0' || std::string_view(word) == "auto") return processor_isa();
  const std::optional<Isa> isa = isa_from(word);
  VALIDATE(isa, ExitCode::usage, "TRIREME_ISA=", word,
           " is no instruction set: use auto, avx512_bf16, avx512, avx2 or portable, or unset it");
  VALIDATE(*isa <= processor_isa(), ExitCode::unfit_environment, "TRIREME_ISA=", word,
           ", but this processor has no ", word, " (it offers ", to_string(processor_isa()),
           "): use that or a lower one");
  return *isa;
}

std::atomic<Isa>& isa_in_use() {
  static std::atomic<Isa> isa{best_isa()};
  return isa;
}

struct LibraryVariable {
  const char* name;
  std::array<const char*, 4> value;  // by Isa; null: unset
};
// On processors that are not Intel's MKL takes no notice of MKL_ENABLE_INSTRUCTIONS: it has its own
// AVX2 code for AMD's, and leaves that only for MKL_CBWR=COMPATIBLE, its plain SSE2 code, which
// Intel's take as well.
constexpr std::array library_variables{
    LibraryVariable{"ATEN_CPU_CAPABILITY", {"default", "avx2", "avx512", "avx512"}},
    LibraryVariable{"ONEDNN_MAX_CPU_ISA", {"SSE41", "AVX2", "AVX512_CORE", "AVX512_CORE_BF16"}},
    LibraryVariable{"MKL_ENABLE_INSTRUCTIONS", {"SSE4_2", "AVX2", "AVX512", "AVX512"}},
    LibraryVariable{"MKL_CBWR", {"COMPATIBLE", nullptr, nullptr, nullptr}},
};

std::string& variables_set() {
  static std::string set;
  return set;
}

}  // namespace

std::string to_string(Isa isa) { return std::string(isa_words[static_cast<size_t>(isa)]); }

std::optional<Isa> isa_from(std::string_view word) {
  for (size_t i = 0; i < isa_words.size(); ++i) {
    if (isa_words[i] == word) return static_cast<Isa>(i);
  }
  return std::nullopt;
}

Isa processor_isa() {
  static const Isa isa = detect_isa();
  return isa;
}

Isa best_isa() {
  static const Isa isa = isa_of_environment();
  return isa;
}

Isa active_isa() { return isa_in_use().load(std::memory_order_relaxed); }

bool has_matrix_units() {
  static const bool found = std::getenv("MKL_ENABLE_INSTRUCTIONS") == nullptr &&
                            std::getenv("MKL_CBWR") == nullptr && onednn_may_use_amx() &&
                            detect_amx();
  return found && active_isa() == Isa::avx512_bf16;
}

void use_isa(Isa isa) {
  VALIDATE(isa <= processor_isa(), ExitCode::unfit_environment, "this processor has no ",
           to_string(isa), " (it offers ", to_string(processor_isa()),
           "): ask for that or a lower one");
  VALIDATE(isa <= best_isa(), ExitCode::unfit_environment, to_string(isa),
           " is above the cap of TRIREME_ISA=", to_string(best_isa()),
           ": raise or unset that, or ask for a lower one");
  isa_in_use().store(isa, std::memory_order_relaxed);
}

void cap_libraries() {
  const Isa isa = active_isa();
  if (isa == processor_isa()) return;
  std::string set;
  for (const LibraryVariable& variable : library_variables) {
    const char* value = variable.value[static_cast<size_t>(isa)];
    if (value == nullptr) continue;
    ::setenv(variable.name, value, 1);
    set += text(set.empty() ? "" : " ", variable.name, "=", value);
  }
  variables_set() = set;
}

std::string library_caps() { return variables_set(); }

}  // namespace trireme::base
