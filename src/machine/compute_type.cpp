#include "torch/torch.hpp"

#include "trireme/machine/compute_type.hpp"

#include <algorithm>
#include <limits>

#include "trireme/base/error.hpp"
#include "trireme/base/isa.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/stopwatch.hpp"
#include "trireme/kernels/products.hpp"
#include "trireme/kernels/row_invariant.hpp"

namespace trireme::machine {
namespace {

using config::ComputeType;
using config::DType;

// "AVX512-BF16", or "2 of 4 ranks do not multiply bf16 natively (the first is rank 1: avx2)".
std::string describe(std::span<const ComputeDevice> ranks) {
  const auto lacks = [](const ComputeDevice& device) { return !device.native_bf16; };
  const auto first = std::ranges::find_if(ranks, lacks);
  if (first == ranks.end())
    return base::text("all ranks multiply bf16 natively: ", ranks.front().name);
  const auto count = std::ranges::count_if(ranks, lacks);
  return base::text(count, " of ", ranks.size(), ranks.size() == 1 ? " rank does" : " ranks do",
                    " not multiply bf16 natively (the first is rank ", first - ranks.begin(), ": ",
                    first->name, ")");
}

// " (bf16 products run at 2.10 times the rate of fp32's here)"; empty where nothing was measured.
// Collective.
std::string ratio_text(const comm::CommView& world, const comm::NodeTopology& topology,
                       at::Device device) {
  const bool measures = device.is_cpu() && topology.local_rank == 0;
  double lowest = std::numeric_limits<double>::infinity(), highest = 0;
  for (const double ratio : world.gather_values(measures ? measure_bf16_ratio() : 0.0)) {
    if (ratio == 0) continue;
    lowest = std::min(lowest, ratio);
    highest = std::max(highest, ratio);
  }
  if (highest == 0) return "";
  std::string range = base::fixed(lowest, 2);
  if (base::fixed(highest, 2) != range) range += " to " + base::fixed(highest, 2);
  return base::text("; measured: bf16 products run at ", range, " times the rate of fp32's");
}

}  // namespace

ComputeDevice compute_device(at::Device device) {
  if (!device.is_cpu()) return {true, "GPU"};
  return {kernels::multiplies_bf16(device), base::to_string(base::active_isa())};
}

ComputeDecision decide_compute_type(ComputeType asked, std::optional<DType> stored,
                                    std::span<const ComputeDevice> ranks) {
  EXPECT(!ranks.empty());
  const bool native = std::ranges::all_of(ranks, &ComputeDevice::native_bf16);
  ComputeDecision out;
  if (asked == ComputeType::automatic) {
    out.type = stored.value_or(native ? DType::bf16 : DType::f32);
    out.reason =
        base::text(stored ? "the run began in it; " : "model.dtype = \"auto\"; ", describe(ranks));
  } else {
    out.type = config::compute_type(asked);
    out.reason = base::text("model.dtype = \"", config::to_string(asked), "\"");
    if (stored && *stored != out.type)
      out.reason +=
          base::text(", instead of ", config::to_string(*stored), " in which the run began");
    if (out.type == DType::bf16 && !native) out.reason += "; " + describe(ranks);
  }
  out.warning = out.type == DType::bf16 && !native;
  if (out.warning) {
    out.reason += base::text(
        ": weights and activations are kept in bf16 and multiplied in fp32, which is no faster "
        "than fp32",
        stored ? "" : "; model.dtype = \"auto\" or \"fp32\" takes fp32 here");
  }
  return out;
}

ComputeDecision agree_on_compute_type(ComputeType asked, std::optional<DType> stored,
                                      const ComputeDevice& mine, const comm::CommView& world) {
  return decide_compute_type(asked, stored, world.gather_values(mine));
}

double measure_bf16_ratio() {
  constexpr int64_t rows = 256, inputs = 512, outputs = 512;  // 134 million operations
  const at::NoGradGuard no_grad;
  const auto seconds = [&](at::ScalarType type) {
    const at::Tensor x = at::ones({rows, inputs}, type), weight = at::ones({outputs, inputs}, type);
    double best = std::numeric_limits<double>::infinity();
    for (int repetition = 0; repetition < 4;
         ++repetition) {  // the first one makes the library's code
      const base::Stopwatch watch;
      kernels::linear(x, weight, std::nullopt);
      if (repetition > 0) best = std::min(best, watch.seconds());
    }
    return best;
  };
  const double fp32 = seconds(at::kFloat);
  return fp32 / seconds(at::kBFloat16);
}

DType settle_compute_type(ComputeType asked, std::optional<DType> stored, bool exact_products,
                          const comm::CommView& world, const comm::NodeTopology& topology,
                          at::Device device) {
  kernels::use_exact_products(exact_products);
  const auto decision = agree_on_compute_type(asked, stored, compute_device(device), world);
  const std::string measured = ratio_text(world, topology, device);
  if (world.rank() == 0) {
    const bool exact = decision.type == DType::bf16 && kernels::exact_products(device);
    const std::string line = base::text(
        "compute type: ", config::to_string(decision.type), " (", decision.reason, measured,
        exact ? base::text("; weight gradients are added unrounded, by ",
                           device.is_cpu() ? "AMX" : "cuBLAS")
              : "",
        ")");
    decision.warning ? log::warning(line) : log::info(line);
  }
  return decision.type;
}

DType settle_compute_type(ComputeType asked, const comm::CommView& world, at::Device device) {
  const auto decision = agree_on_compute_type(asked, std::nullopt, compute_device(device), world);
  const std::string line =
      base::text("compute type: ", config::to_string(decision.type), " (", decision.reason, ")");
  if (world.rank() == 0) decision.warning ? log::warning(line) : log::info(line);
  return decision.type;
}

}  // namespace trireme::machine
