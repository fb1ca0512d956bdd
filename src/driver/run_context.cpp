#include "driver/run_context.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/trace/activity.hpp"
#include "trireme/trace/perfetto.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {
namespace {

std::optional<double> walltime_limit(const config::Options& options) {
  if (options.run.walltime.seconds > 0) return options.run.walltime.seconds;
  return std::nullopt;
}

trace::Gather gather_of(const comm::CommView& world) {
  return [world](const std::string& mine) { return world.gather(mine, 0); };
}

std::string role_summary(const trace::RoleTable& role) {
  return base::text("{\"role\":\"", role.role, "\",\"ranks\":", role.ranks, ",\"seconds\":", role.seconds.avg,
                    ",\"communication\":", role.communication.avg, ",\"wait\":", role.wait.avg, ",\"io\":", role.io.avg,
                    ",\"host_peak\":", role.host_peak, ",\"device_peak\":", role.device_peak, "}");
}

}  // namespace

double measure_clock_offset(const comm::CommView& world) {
  constexpr int rounds = 20;
  constexpr int tag = 31000;
  double offset = 0;
  for (int peer = 1; peer < world.size(); ++peer) {
    if (world.rank() == 0) {
      for (int i = 0; i < rounds; ++i) {
        char ping = 0;
        world.receive(&ping, 1, peer, tag);
        const double now = base::monotonic_seconds();
        world.send(&now, sizeof now, peer, tag);
      }
    } else if (world.rank() == peer) {
      double shortest = std::numeric_limits<double>::infinity();
      for (int i = 0; i < rounds; ++i) {
        const double sent = base::monotonic_seconds();
        const char ping = 0;
        double theirs = 0;
        world.send(&ping, 1, 0, tag);
        world.receive(&theirs, sizeof theirs, 0, tag);
        const double received = base::monotonic_seconds();
        if (received - sent < shortest) {  // the shortest round trip bounds the error best
          shortest = received - sent;
          offset = theirs - 0.5 * (sent + received);
        }
      }
    }
  }
  return offset;
}

void log_start(const config::Options& options, const Roles& roles, const comm::Session& session, const std::string& command) {
  const auto& facts = session.facts();
  if (roles.world.rank() != 0) return;
  log::info(base::text("Trireme ", command, ": ", roles.world.size(), roles.world.size() == 1 ? " rank" : " ranks", " on ",
                       roles.topology.nodes, roles.topology.nodes == 1 ? " node" : " nodes", " (", facts.library, ", ",
                       base::join(roles.topology.host_of_node), ")"));
  if (command == "ppo") log::info(base::text("roles: ", config::describe(roles.map)));
  log::info(base::text("run folder: ", options.run.dir));
  if (!facts.thread_multiple) log::warning("this MPI gives less than MPI_THREAD_MULTIPLE: checkpoints are written synchronously");
}

RunContext::RunContext(const config::Options& options, const Roles& roles, const RunFolder& folder)
    : options_(options), roles_(roles), folder_(folder), walltime_(walltime_limit(options)) {
  comm::install_signal_handlers();
  trace::record_events(options.trace.enabled);
  trace::record_kernels(options.trace.kernels);
  clock_offset_ = measure_clock_offset(roles.world);
  origin_ = roles.world.broadcast_value(trace::start_seconds(), 0);
  watchdog_ = std::make_unique<comm::Watchdog>(roles.world.rank(), options.run.hang_timeout.seconds, folder.path() / "hang",
                                               [] { return trace::where(); }, [] { return trace::activity(); });
  if (const auto left = walltime_.remaining(); left && roles.world.rank() == 0) {
    log::info(base::text("walltime: ", base::human_seconds(*left), " left; the run saves and stops before that"));
  }
}

void RunContext::begin(const char* phase, int64_t iteration, int64_t iterations) {
  watchdog_->beat(phase);
  std::string line = base::text("iteration ", iteration, "/", iterations, "  ", phase);
  if (iteration > 1) {
    const double per_iteration = since_start_.seconds() / static_cast<double>(iteration - 1);
    line += base::text("  about ", base::human_seconds(per_iteration * static_cast<double>(iterations - iteration + 1)), " left");
  }
  log::live(line);
}

void RunContext::meet(const char* where) {
  // The ranks that still work are watched by their own watchdogs; this one only notices when they are gone for good.
  watchdog_->beat(where);
  watchdog_->set_deadline(std::max(options_.run.hang_timeout.seconds, options_.run.io_timeout.seconds));
  roles_.world.sleeping_barrier();
  watchdog_->set_deadline(0);
}

void RunContext::set_io_deadline(bool on) { watchdog_->set_deadline(on ? options_.run.io_timeout.seconds : 0); }

comm::StopReason RunContext::agree_to_stop() {
  watchdog_->beat("agree to stop");
  const trace::Phase phase{"agree to stop"};
  return comm::agree_to_stop(roles_.world, folder_.stop_file(), walltime_);
}

void RunContext::write_trace() {
  if (!options_.trace.enabled) return;
  const trace::Phase phase{"write trace"};
  trace::RankIdentity identity;
  identity.rank = roles_.world.rank();
  identity.roles = roles_.text();
  identity.host = roles_.topology.host_of_node.at(static_cast<size_t>(roles_.topology.node));
  identity.clock_offset = clock_offset_;
  identity.origin = origin_;
  trace::write_trace(folder_.path() / options_.trace.file, identity, gather_of(roles_.world));
}

void RunContext::finish(const std::string& title, const std::vector<double>& curve, const IterationMetrics& last) {
  watchdog_->beat("end of run");
  write_trace();
  const auto table = trace::gather_table(roles_.world.rank(), roles_.text(), gather_of(roles_.world));
  if (roles_.world.rank() != 0) return;
  std::vector<std::string> roles;
  for (const auto& role : table) roles.push_back(role_summary(role));
  base::write_file_atomically(folder_.path() / "summary.json",
                              base::text("{\"seconds\":", since_start_.seconds(), ",\"roles\":[", base::join(roles),
                                         "],\"last\":", to_json(last), "}\n"));
  log::info("\n" + trace::to_text(table));
  const auto advice = trace::notes(table, options_.train.async_depth > 0 ? trace::RolesRun::together : trace::RolesRun::in_turns);
  for (const auto& note : advice) log::info(note);
  const std::string plot = text_plot(curve, title);
  if (!plot.empty()) log::info("\n" + plot);
}

}  // namespace trireme::driver
