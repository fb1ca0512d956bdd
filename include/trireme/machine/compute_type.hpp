// The type in which the models of a run compute: bf16 where every rank multiplies it natively, else
// fp32, unless the deck or the checkpoint says which.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <tuple>

#include "trireme/comm/comm.hpp"
#include "trireme/comm/topology.hpp"
#include "trireme/config/options.hpp"

namespace trireme::machine {

// What a rank multiplies with.
struct ComputeDevice {
  bool native_bf16 = false;
  std::string name;  // "GPU", or the instruction set in use
  static constexpr auto fields = std::tuple{&ComputeDevice::native_bf16, &ComputeDevice::name};
  bool operator==(const ComputeDevice&) const = default;
};
ComputeDevice compute_device(at::Device device);

struct ComputeDecision {
  config::DType type = config::DType::f32;
  std::string reason;    // for the log
  bool warning = false;  // bf16 on ranks that do not multiply it natively
  bool operator==(const ComputeDecision&) const = default;
};
// The rule: what the deck asks for; with "auto" the type in which the run began (`stored`), else
// bf16 when all `ranks` multiply it natively, else fp32. By instruction sets alone, never by a
// clock.
ComputeDecision decide_compute_type(config::ComputeType asked, std::optional<config::DType> stored,
                                    std::span<const ComputeDevice> ranks);
// The same on every rank, from what each has. Collective over world.
ComputeDecision agree_on_compute_type(config::ComputeType asked,
                                      std::optional<config::DType> stored,
                                      const ComputeDevice& mine, const comm::CommView& world);

// How many times as fast bf16 products are as fp32's on this processor now, with the current number
// of LibTorch's threads: some milliseconds.
double measure_bf16_ratio();

// Decides, and says what and why on rank 0, with the ratio as the first rank of each node measures
// it. `exact_products`: train.exact_products, which holds for the process from here on. Collective
// over world.
config::DType settle_compute_type(config::ComputeType asked, std::optional<config::DType> stored,
                                  bool exact_products, const comm::CommView& world,
                                  const comm::NodeTopology& topology, at::Device device);
// For tools: without a checkpoint and without a measurement.
config::DType settle_compute_type(config::ComputeType asked, const comm::CommView& world,
                                  at::Device device);

}  // namespace trireme::machine
