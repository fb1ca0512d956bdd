#include "torch/torch.hpp"

#include "trireme/machine/start_log.hpp"

#include <algorithm>

#include "trireme/base/log.hpp"
#include "trireme/base/text.hpp"
#include "trireme/comm/device_links.hpp"
#include "trireme/config/placement.hpp"
#include "trireme/job/core_share.hpp"
#include "trireme/job/facts.hpp"
#include "trireme/kernels/runtime.hpp"
#include "trireme/machine/device.hpp"
#include "trireme/machine/instruction_set.hpp"

namespace trireme::machine {
namespace {

void warn_of_placement(const config::Options& options, const comm::Roles& roles) {
  for (const auto& warning : config::placement_warnings(options, roles.map, roles.topology.node_of))
    log::warning(warning);
}

// Log lines about cores and threads: the plan, likely mistakes, idle cores.
void log_threads(const config::Options& options, const std::vector<job::RankPlace>& places,
                 const ThreadPlan& threads) {
  log::info(base::text("threads: ", job::describe_threads(places), ", ",
                       threads.not_pinned.empty() ? "pinned one to a core"
                                                  : "not pinned (" + threads.not_pinned + ")"));
  const auto node_cores = static_cast<int>(places.front().node_cores.size());
  for (const auto& warning : job::affinity_warnings_of_job(places, node_cores))
    log::warning(warning);
  const bool threads_of_ours = std::any_of(
      places.begin(), places.end(),
      [](const job::RankPlace& place) { return place.threads[1] > 1 && place.gpus == 0; });
  const std::string spinning =
      threads_of_ours ? job::spinning_warning(job::process_environment) : "";
  if (!spinning.empty()) log::warning(spinning);
  for (const auto& note : job::idle_notes_of_job(places, options.train.async_depth == 0))
    log::info("NOTE: " + note);
}

}  // namespace

void log_start(const config::Options& options, const comm::Roles& roles,
               const comm::Session& session, const std::string& command,
               const std::vector<job::RankPlace>& places, const ThreadPlan& threads) {
  const auto& facts = session.facts();
  log_instruction_set(roles.world);
  if (roles.world.rank() != 0) return;
  log::detail("launcher: " + job::describe(facts.launch));
  log::debug(base::text("kernels: ", kernels::runtime_name()));
  log::info(base::text("Trireme ", command, ": ", roles.world.size(),
                       roles.world.size() == 1 ? " rank" : " ranks", " on ", roles.topology.nodes,
                       roles.topology.nodes == 1 ? " node" : " nodes", " (", facts.library, ", ",
                       base::join(roles.topology.host_of_node), ")"));
  if (command == "ppo") {
    log::info(base::text("roles: ", config::describe(roles.map)));
    warn_of_placement(options, roles);
  }
  log_threads(options, places, threads);
  log::info(base::text("run folder: ", options.run.dir));
  if (!facts.thread_multiple)
    log::warning(
        "this MPI gives less than MPI_THREAD_MULTIPLE: checkpoints are written synchronously");
}

void log_device_links(const std::string& role, const std::optional<comm::CommView>& group,
                      const comm::CommView& world, at::Device device) {
  if (device.is_cpu()) return;
  const auto links = group ? comm::measure_device_links(*group) : std::nullopt;
  if (links && group->rank() == 0) log::info(base::text(role, ": ", comm::describe(*links)));
  const std::string problem = problem_of_any(world, links ? comm::problem_of(*links) : "");
  if (!problem.empty() && world.rank() == 0) log::warning(base::text(role, ", ", problem));
}

}  // namespace trireme::machine
