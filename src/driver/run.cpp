#include "driver/run.hpp"

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "driver/resume_point.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/config/fault.hpp"
#include "trireme/job/crash.hpp"
#include "trireme/job/signals.hpp"
#include "trireme/learn/same_inputs.hpp"
#include "trireme/machine/compute_type.hpp"
#include "trireme/machine/device.hpp"
#include "trireme/machine/start_log.hpp"
#include "trireme/text/chat_template.hpp"

namespace trireme::driver {
namespace {

comm::Roles roles_for(const config::Options& options, const comm::Session& session,
                      config::Command command) {
  comm::Roles roles = comm::make_roles(options, session.world());
  if (command == config::Command::ppo) return roles;
  roles.generator = false;
  roles.reward = false;
  return roles;
}

// First of all: what follows is collective and goes by the deck.
const config::Options& same_on_all_ranks(const config::Options& deck, const comm::CommView& world) {
  learn::require_same_program(world);
  learn::require_same_deck(world, config::dump_deck(deck));
  return deck;
}

std::string crash_file(const std::filesystem::path& folder, int rank) {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "rank-%05d.crash", rank);
  return std::filesystem::absolute(folder / "logs" / name.data());
}

// The deck's date, else the one with which the run began, else today at rank 0: checkpoints of
// older programs have none. Collective.
void settle_date(std::string& date, const std::string& stored, const comm::CommView& world) {
  if (date.empty()) date = world.broadcast(stored.empty() ? text::today() : stored, 0);
}

std::vector<job::RankPlace> shared_places(const config::Options& options,
                                          const comm::Roles& roles) {
  auto places = machine::gather_places(options, roles.world, roles.topology, roles.of_rank());
  machine::share_threads(options.run.threads, places);
  return places;
}

}  // namespace

Handlers::Handlers(const config::Options& options, const RunFolder& folder, int rank) {
  config::install_faults(options.fault, options.run.dir, rank);
  comm::compare_collectives(options.run.mismatch_check);
  job::install_signal_handlers();
  job::install_crash_handlers(crash_file(folder.path(), rank));
  trace::record_events(options.trace.enabled);
  trace::record_kernels(options.trace.kernels);
  VALIDATE(!options.trace.nvtx || trace::forward_to_nvtx(), ExitCode::unfit_environment,
           "trace.nvtx = true, but this program was built ",
           "without NVTX (its headers come with the CUDA toolkit): build it where they are found, "
           "or set trace.nvtx = false");
  if (rank != 0) return;
  // Files of an earlier run would be taken for this one's.
  const base::FileWork work{"removal", comm::RunWatch::report_folder(options)};
  std::error_code ignored;
  std::filesystem::remove_all(comm::RunWatch::report_folder(options), ignored);
}

Run::Run(const config::Options& deck, const comm::Session& session_of_run,
         config::Command command_of_run)
    : options(same_on_all_ranks(deck, session_of_run.world())),
      asked_type(deck.model.dtype),
      session(session_of_run),
      command(command_of_run),
      roles(roles_for(options, session, command)),
      watch(options, roles, session.facts().thread_multiple),
      folder(options, roles.world),
      handlers(options, folder, roles.world.rank()),
      output(
          roles.world,
          {roles.text(), roles.topology.host_of_node.at(static_cast<size_t>(roles.topology.node))},
          folder.path(), options.trace.enabled ? options.trace.file : std::string(),
          options.train.async_depth > 0 ? trace::RolesRun::together : trace::RolesRun::in_turns,
          [this] { return watch.heard_written(); }),
      policy(options, roles, folder, watch),
      places(shared_places(options, roles)),
      threads(machine::plan_threads(options, places, roles.world.rank())),
      device(machine::choose_device(options.run.device, roles.world, roles.topology)),
      kernels(threads.trainer.count, device.is_cpu() ? -1 : device.index()) {
  VALIDATE(!device.is_cpu() || !options.train.optimizer_offload, ExitCode::configuration,
           "train.optimizer_offload = true, but this run computes on CPUs, where the optimizer's "
           "state lies in host memory anyway: leave it false");
  machine::log_start(options, roles, session, std::string(config::to_string(command)), places,
                     threads);
  threads.trainer.use();  // also for what is done before the first phase: loading, first touches
  const auto stored = stored_start(options.ckpt.resume, folder.checkpoints(), roles.world);
  settle_date(options.data.date, stored.date, roles.world);
  options.model.dtype = config::to_choice(
      machine::settle_compute_type(options, command, stored.compute_type, roles, threads, device));
}

model::StoredType Run::export_type(const model::ModelSpec& spec) const {
  const bool automatic = asked_type == config::ComputeType::automatic;
  const bool full =
      automatic ? spec.shape.dtype == "float32" : asked_type == config::ComputeType::fp32;
  return full ? model::StoredType::f32 : model::StoredType::bf16;
}

}  // namespace trireme::driver
