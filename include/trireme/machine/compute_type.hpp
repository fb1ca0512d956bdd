// The type in which the models of a run compute: bf16 where every rank multiplies it natively,
// unless probes say that fp32 is clearly faster for this deck; else fp32; unless the deck or the
// checkpoint says which.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "trireme/comm/comm.hpp"
#include "trireme/comm/roles.hpp"
#include "trireme/config/options.hpp"
#include "trireme/machine/compute_probe.hpp"
#include "trireme/plan/compute_work.hpp"

namespace trireme::machine {

// The units that a rank multiplies with.
struct ComputeDevice {
  bool native_bf16 = false;
  std::string name;  // "GPU", or the instruction set in use
  static constexpr auto fields = std::tuple{&ComputeDevice::native_bf16, &ComputeDevice::name};
  bool operator==(const ComputeDevice&) const = default;
};
ComputeDevice compute_device(at::Device device);

// The measurements that decide "auto" where every rank multiplies bf16 natively.
struct ComputeProbes {
  plan::ComputeWork work;
  std::vector<ComputeProbe> ranks;
};
// fp32 is taken from so many times the speed of bf16 on.
inline constexpr double fp32_gain = 1.15;
// Operations and elements of an iteration from which on probes are worth their time.
inline constexpr double probed_operations = 2e10;

struct ComputeDecision {
  config::DType type = config::DType::f32;
  std::string reason;    // for the log
  bool warning = false;  // bf16 on ranks that do not multiply it natively
  bool operator==(const ComputeDecision&) const = default;
};
// The rule: the deck's type; with "auto" the type in which the run began (`stored`), else
// fp32 unless all `ranks` multiply bf16 natively, else bf16, unless by the medians of the probes
// (null: none were made) the slowest rank of each role takes at least fp32_gain times as long in
// bf16.
ComputeDecision decide_compute_type(config::ComputeType asked, std::optional<config::DType> stored,
                                    std::span<const ComputeDevice> ranks,
                                    const ComputeProbes* probes = nullptr);
// Whether that rule has a use for probes: "auto" without a stored type, on processors all of which
// multiply bf16 natively, and an iteration that is long enough. `deterministic`
// (train.deterministic): the kind of processor decides, no clock.
bool wants_probes(config::ComputeType asked, std::optional<config::DType> stored,
                  std::span<const ComputeDevice> ranks, bool deterministic,
                  const plan::ComputeWork& work);
// The same on every rank, from what each has. Collective over world.
ComputeDecision agree_on_compute_type(config::ComputeType asked,
                                      std::optional<config::DType> stored,
                                      const ComputeDevice& mine, const comm::CommView& world);

// Decides for a run, with probes where they are wanted, and says what and why on rank 0. `stored`:
// the type in which the run began. train.exact_products holds for the process from here on.
// Collective over roles.world.
config::DType settle_compute_type(const config::Options& options, config::Command command,
                                  std::optional<config::DType> stored, const comm::Roles& roles,
                                  const ThreadPlan& threads, at::Device device);
// For tools: without a checkpoint and without a measurement.
config::DType settle_compute_type(config::ComputeType asked, const comm::CommView& world,
                                  at::Device device);

}  // namespace trireme::machine
