// How fast this rank multiplies in fp32 and in bf16: short probes, one type right after the other,
// so that a busy neighbour slows both.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "trireme/comm/comm.hpp"
#include "trireme/config/choices.hpp"
#include "trireme/machine/threads.hpp"
#include "trireme/plan/compute_work.hpp"

namespace trireme::machine {

// One probe of both types, as plan::ComputeSpeed counts: seconds of an operation, or of an element
// of the weights.
struct TypeSeconds {
  double fp32 = 0, bf16 = 0;
  double of(config::DType type) const { return type == config::DType::bf16 ? bf16 : fp32; }
};

// All probes of a rank; empty where it has not the role.
struct ComputeProbe {
  std::vector<TypeSeconds> products;  // of a trainer: forward, gradients of inputs and weights
  std::vector<TypeSeconds> decoding;  // of a generator: weights out of memory, some rows
  static constexpr auto fields = std::tuple{&ComputeProbe::products, &ComputeProbe::decoding};

  // The medians of one type.
  plan::ComputeSpeed speed(config::DType type) const;
};

// With the current number of LibTorch's threads and the instruction set in use, under a second.
std::vector<TypeSeconds> probe_products();
// `rows`: sequences of a step; many are probed by some of them.
std::vector<TypeSeconds> probe_decoding(int64_t rows);

// A rank's part in the probes.
struct ProbeRoles {
  bool trainer = false, generator = false;
};
// Trainers with their threads, all at once, then generators with theirs; ranks that wait sleep.
// Leaves the trainer's threads in use. Collective over world.
ComputeProbe probe(const comm::CommView& world, const ProbeRoles& roles, const ThreadPlan& threads,
                   int64_t decode_rows);

}  // namespace trireme::machine
