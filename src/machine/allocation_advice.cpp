#include "machine/allocation_advice.hpp"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "trireme/base/allocation.hpp"
#include "trireme/base/text.hpp"
#include "trireme/job/node_limits.hpp"
#include "trireme/plan/admission.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::machine {
namespace {

std::string amount(int64_t bytes) { return base::human_bytes(static_cast<double>(bytes)); }

// The ledger's phase of a region stack; of those of `train` the one that needs most.
plan::Phase phase_at(const std::string& where, const plan::Ledger& ledger, plan::Place place) {
  const std::pair<const char*, plan::Phase> names[] = {
      {"start", plan::Phase::start},     {"resume", plan::Phase::start},
      {"rollout", plan::Phase::rollout}, {"reward", plan::Phase::reward},
      {"sync", plan::Phase::sync},       {"checkpoint", plan::Phase::save}};
  const std::string stack = " > " + where;
  size_t innermost = 0;
  std::optional<plan::Phase> found;
  for (const auto& [name, phase] : names) {
    const size_t at = stack.rfind(base::text(" > ", name));
    if (at == std::string::npos || (found && at < innermost)) continue;
    innermost = at;
    found = phase;
  }
  if (found) return *found;
  plan::Phase best = plan::Phase::log_probs;
  for (const plan::Phase phase :
       {plan::Phase::forward, plan::Phase::head, plan::Phase::backward, plan::Phase::step}) {
    if (ledger.bytes(place, phase) > ledger.bytes(place, best)) best = phase;
  }
  return best;
}

std::string advice(const PlannedJob& planned, const base::FailedAllocation& failure,
                   const std::string& where) {
  plan::Job job = planned.job();
  const plan::Place place = failure.device ? plan::Place::device : plan::Place::host;
  const plan::Ledger ledger = plan::memory_of_rank(job, planned.rank);
  const plan::Phase phase = phase_at(where, ledger, place);
  std::string out =
      base::text("\nplanned for ", plan::to_string(phase),
                 " on this rank: ", amount(ledger.bytes(place, phase)),
                 ", most of it (~: estimated)\n", plan::contributors(ledger, place, phase, 6));
  if (!failure.device) {
    const auto free = job::available_memory();
    const trace::Memory held = trace::host_memory();
    out +=
        base::text("\nthis process holds ", amount(held.resident), " (at most ", amount(held.peak),
                   " so far); free: ", amount(free.bytes), " of ", free.limited_by);
  }
  // The plan fitted and the job does not: look for what needs clearly less than the plan.
  constexpr double share = 0.8;
  const plan::Fit now = plan::fit(job);
  if (failure.device) {
    job.machine.device_bytes = static_cast<int64_t>(share * static_cast<double>(now.device.peak));
  } else {
    job.machine.host_bytes = static_cast<int64_t>(share * static_cast<double>(now.node_bytes));
  }
  const auto remedies = plan::nearest_fits(job, planned.cut(), 4);
  if (remedies.empty())
    out +=
        "\nno change of the deck needs a fifth less: use fewer ranks on a node, more nodes or a "
        "smaller model";
  for (const auto& remedy : remedies) out += base::text("\nneeds a fifth less: ", remedy.change);
  return out;
}

}  // namespace

plan::Job PlannedJob::job() const {
  return {options,      roles,       node_of_rank,    models,  machine,   compute, command,
          keeps_caches, own_kernels, process_started, threads, host_bf16, length};
}

plan::CutActor PlannedJob::cut() const {
  return [this](int degree) { return model::tensor_parallel_layout(actor, degree); };
}

void advise_on_allocations(PlannedJob planned) {
  base::advise_on_allocations([kept = std::make_shared<const PlannedJob>(std::move(planned))](
                                  const base::FailedAllocation& failure, const std::string& where) {
    return advice(*kept, failure, where);
  });
}

}  // namespace trireme::machine
