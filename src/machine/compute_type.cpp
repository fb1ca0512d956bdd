#include "torch/torch.hpp"

#include "trireme/machine/compute_type.hpp"

#include <algorithm>

#include "trireme/base/error.hpp"
#include "trireme/base/isa.hpp"
#include "trireme/base/log.hpp"
#include "trireme/config/model_folders.hpp"
#include "trireme/kernels/products.hpp"
#include "trireme/machine/job_models.hpp"
#include "trireme/model/model_files.hpp"

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

// Of an iteration, of the slowest rank of each role.
struct MeasuredType {
  plan::ComputeSpeed speed;
  double seconds = 0;
};
MeasuredType slowest_ranks(const ComputeProbes& probes, DType type) {
  MeasuredType out;
  for (const ComputeProbe& rank : probes.ranks) {
    const plan::ComputeSpeed speed = rank.speed(type);
    out.speed.product = std::max(out.speed.product, speed.product);
    out.speed.decode = std::max(out.speed.decode, speed.decode);
  }
  out.seconds = plan::seconds_of(probes.work, out.speed);
  return out;
}

std::string figure(double value) {
  return base::fixed(value, value < 10 ? 2 : value < 100 ? 1 : 0);
}

// "; measured, bf16 and fp32: products at 171 and 279 GFLOP/s, decode steps of 64 sequences in 9.10
// and 12.3 ms, an iteration's together in 14.1 and 9.20 s"
std::string describe_probes(const ComputeProbes& probes, const MeasuredType& bf16,
                            const MeasuredType& fp32) {
  const auto both = [&](auto value) { return figure(value(bf16)) + " and " + figure(value(fp32)); };
  std::string out = "; measured, bf16 and fp32: ";
  if (bf16.speed.product > 0) {
    out += base::text("products at ",
                      both([](const MeasuredType& m) { return 1e-9 / m.speed.product; }),
                      " GFLOP/s, ");
  }
  if (bf16.speed.decode > 0) {
    out += base::text("decode steps of ", probes.work.decode_rows, " sequences in ",
                      both([&](const MeasuredType& m) {
                        return 1e3 * m.speed.decode * probes.work.decode_weights;
                      }),
                      " ms, ");
  }
  return out + base::text("an iteration's together in ",
                          both([](const MeasuredType& m) { return m.seconds; }), " s");
}

}  // namespace

ComputeDevice compute_device(at::Device device) {
  if (!device.is_cpu()) return {true, "GPU"};
  return {kernels::multiplies_bf16(device), base::to_string(base::active_isa())};
}

ComputeDecision decide_compute_type(ComputeType asked, std::optional<DType> stored,
                                    std::span<const ComputeDevice> ranks,
                                    const ComputeProbes* probes) {
  EXPECT(!ranks.empty());
  const bool native = std::ranges::all_of(ranks, &ComputeDevice::native_bf16);
  ComputeDecision out;
  if (asked == ComputeType::automatic) {
    out.type = stored.value_or(native ? DType::bf16 : DType::f32);
    out.reason =
        base::text(stored ? "the run began in it; " : "model.dtype = \"auto\"; ", describe(ranks));
    if (probes && !stored && native) {
      const MeasuredType bf16 = slowest_ranks(*probes, DType::bf16),
                         fp32 = slowest_ranks(*probes, DType::f32);
      if (fp32.seconds > 0 && bf16.seconds >= fp32_gain * fp32.seconds) out.type = DType::f32;
      out.reason += describe_probes(*probes, bf16, fp32);
    }
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

bool wants_probes(ComputeType asked, std::optional<DType> stored,
                  std::span<const ComputeDevice> ranks, bool deterministic,
                  const plan::ComputeWork& work) {
  if (asked != ComputeType::automatic || stored || deterministic) return false;
  const double operations =
      work.products + 2 * (work.decode_steps * work.decode_weights + work.judging_weights) *
                          static_cast<double>(std::max<int64_t>(work.decode_rows, 1));
  return operations >= probed_operations && std::ranges::all_of(ranks, &ComputeDevice::native_bf16);
}

namespace {

// The work of an iteration on CPUs, by the deck and the shapes of the models, which every rank
// reads; nothing where the choice is not open.
plan::ComputeWork work_to_weigh(const config::Options& options, config::Command command,
                                std::optional<DType> stored, const comm::Roles& roles,
                                at::Device device) {
  if (!device.is_cpu() || options.model.dtype != ComputeType::automatic || stored ||
      options.train.deterministic)
    return {};
  const config::RoleMap map = planned_roles(roles.map, roles.world.size(), command);
  const auto actor = model::shape_with_weights(config::trained_folder(options));
  const plan::JobModels models =
      job_models(options, command, shapes_of(options, command, actor, std::nullopt));
  return plan::compute_work({.options = options,
                             .roles = map,
                             .node_of_rank = roles.topology.node_of,
                             .models = models,
                             .machine = {},
                             .command = command});
}

}  // namespace

DType settle_compute_type(const config::Options& options, config::Command command,
                          std::optional<DType> stored, const comm::Roles& roles,
                          const ThreadPlan& threads, at::Device device) {
  kernels::use_exact_products(options.train.exact_products);
  const comm::CommView& world = roles.world;
  const ComputeType asked = options.model.dtype;
  const auto ranks = world.gather_values(compute_device(device));
  ComputeProbes probes{work_to_weigh(options, command, stored, roles, device), {}};
  if (wants_probes(asked, stored, ranks, options.train.deterministic, probes.work)) {
    probes.ranks = world.gather_values(
        probe(world, {roles.trainer, roles.generator}, threads, probes.work.decode_rows));
  }
  const auto decision =
      decide_compute_type(asked, stored, ranks, probes.ranks.empty() ? nullptr : &probes);
  if (world.rank() == 0) {
    const bool exact = decision.type == DType::bf16 && kernels::exact_products(device);
    const std::string line =
        base::text("compute type: ", config::to_string(decision.type), " (", decision.reason,
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
