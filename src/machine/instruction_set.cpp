#include "torch/torch.hpp"

#include "trireme/machine/instruction_set.hpp"

#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include <algorithm>
#include <limits>
#include <map>

#include "trireme/base/log.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/base/text.hpp"

namespace trireme::machine {
namespace {

// The fastest of the calls that fit into `seconds`, at least two.
template <class Call>
double fastest(double seconds, const Call& call) {
  double best = std::numeric_limits<double>::infinity();
  const base::Stopwatch all;
  for (int i = 0; i < 2 || all.seconds() < seconds; ++i) {
    const base::Stopwatch one;
    call();
    best = std::min(best, one.seconds());
  }
  return best;
}

double product_rate(at::ScalarType type) {
  constexpr int64_t size = 256;
  const auto options = at::TensorOptions().dtype(type);
  const at::Tensor x = at::full({size, size}, 0.5, options),
                   weight = at::full({size, size}, 0.25, options);
  at::linear(x, weight);  // the library makes its kernel
  return 2.0 * size * size * size / fastest(2e-3, [&] { at::linear(x, weight); });
}

// Cycles per second from products that wait for each other: three cycles each on every x86-64
// processor with AVX2.
double clock_rate() {
#if defined(__x86_64__)
  constexpr int64_t products = 100000;
  return 3.0 * products / fastest(1e-3, [] {
           uint64_t x = 3;
           for (int64_t i = 0; i < products; ++i) asm volatile("imul %0, %0" : "+r"(x));
         });
#else
  return 0;
#endif
}

std::string giga(double rate) { return base::fixed(rate * 1e-9, 1); }

// "avx2 by TRIREME_ISA (the processor has avx512_bf16)", "avx512_bf16 with matrix units"
std::string own_instruction_set() {
  const base::Isa active = base::active_isa(), best = base::best_isa(),
                  processor = base::processor_isa();
  std::string out = base::to_string(active);
  if (base::has_matrix_units()) out += " with matrix units";
  if (active < best) out += " by run.isa";
  if (best < processor && active == best) out += " by TRIREME_ISA";
  if (active < processor)
    out += base::text(" (the processor has ", base::to_string(processor), ")");
  return out;
}

}  // namespace

ProductRates measure_products() {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  ProductRates rates;
  rates.cycles = clock_rate();
  rates.fp32 = product_rate(at::kFloat);
  rates.bf16 = product_rate(at::kBFloat16);
  at::set_num_threads(threads);
  return rates;
}

double most_per_cycle(base::Isa isa) {
  switch (isa) {
    case base::Isa::portable:
      return 16;  // two units of 4 lanes; fused multiply-add (AVX2) would be 32
    case base::Isa::avx2: return 32;
    case base::Isa::avx512: return 64;
    case base::Isa::avx512_bf16: return std::numeric_limits<double>::infinity();  // AMX has more
  }
  return std::numeric_limits<double>::infinity();
}

std::vector<std::string> ignored_caps(base::Isa isa, const ProductRates& rates) {
  std::vector<std::string> out;
  if (rates.cycles <= 0) return out;
  const auto check = [&](const char* library, const char* type, double rate) {
    const double per_cycle = rate / rates.cycles;
    if (per_cycle <= 1.1 * most_per_cycle(isa)) return;  // the clock is known to some per cent
    out.push_back(base::text(library, " takes no notice of the cap at ", base::to_string(isa), ": ",
                             type, " products at ", giga(rate), " GFLOP/s are ",
                             base::fixed(per_cycle, 0), " operations per cycle, more than the ",
                             base::fixed(most_per_cycle(isa), 0), " it has"));
  };
  check("MKL", "fp32", rates.fp32);
  check("oneDNN", "bf16", rates.bf16);
  return out;
}

void log_instruction_set(const comm::CommView& world) {
  std::map<std::string, int> ranks;
  for (const std::string& one : world.gather(own_instruction_set(), 0)) ++ranks[one];
  if (world.rank() != 0) return;
  if (ranks.size() > 1) {
    std::vector<std::string> kinds;
    for (const auto& [kind, count] : ranks)
      kinds.push_back(base::text(kind, " on ", count, count == 1 ? " rank" : " ranks"));
    log::warning(
        base::text("ranks compute with different instruction sets (their results may differ in the "
                   "last bits): ",
                   base::join(kinds),
                   ": give run.isa the lowest of them to make them alike, and where only some have "
                   "matrix units all of them ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"));
  }
  const std::string caps = base::library_caps();
  log::detail(base::text("instruction set: ", own_instruction_set(), "; LibTorch ",
                         at::get_cpu_capability(),
                         caps.empty() ? "" : base::text(", libraries capped by ", caps)));
  if (caps.empty()) return;
  const ProductRates rates = measure_products();
  log::detail(base::text("library products on one thread: fp32 ", giga(rates.fp32),
                         " GFLOP/s, bf16 ", giga(rates.bf16), " GFLOP/s",
                         rates.cycles > 0 ? base::text(", at ", giga(rates.cycles), " GHz") : ""));
  for (const std::string& line : ignored_caps(base::active_isa(), rates)) log::warning(line);
}

}  // namespace trireme::machine
