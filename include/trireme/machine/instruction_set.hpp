// Log lines about instruction sets: which one our kernels use and why, what LibTorch,
// oneDNN and MKL were capped to, and whether they keep to it.
#pragma once

#include <string>
#include <vector>

#include "trireme/base/isa.hpp"
#include "trireme/comm/comm.hpp"

namespace trireme::machine {

// Rates of the library's matrix products, on one thread.
struct ProductRates {
  double fp32 = 0;  // operations (two per multiply-add) per second
  double bf16 = 0;
  double cycles = 0;  // clock of the core per second; 0: not known
};
// Some milliseconds; main thread, nothing else running.
ProductRates measure_products();

// Operations that one core can start in a cycle with two units of this width: more than that has
// other instructions.
double most_per_cycle(base::Isa isa);

// One sentence for each kind of product that is faster than `isa` allows: the library that makes it
// takes no notice of the cap.
std::vector<std::string> ignored_caps(base::Isa isa, const ProductRates& rates);

// Logs on rank 0 the instruction sets of all ranks; under a cap the libraries' variables and rates
// too, with a warning for each library that ignores it. Collective. Before the run's own threads
// work.
void log_instruction_set(const comm::CommView& world);

}  // namespace trireme::machine
