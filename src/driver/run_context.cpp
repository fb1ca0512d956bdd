#include "driver/run_context.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/checkpoint/faults.hpp"
#include "trireme/checkpoint/position.hpp"
#include "trireme/comm/clock.hpp"
#include "trireme/comm/stop.hpp"
#include "trireme/driver/run_schedule.hpp"
#include "trireme/job/crash.hpp"
#include "trireme/job/end_of_job.hpp"
#include "trireme/report/run_end.hpp"
#include "trireme/report/side_output.hpp"
#include "trireme/trace/perfetto.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {
namespace {

std::string crash_file(const RunFolder& folder, int rank) {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "rank-%05d.crash", rank);
  return std::filesystem::absolute(folder.path() / "logs" / name.data());
}

std::string host_of(const comm::Roles& roles) {
  return roles.topology.host_of_node.at(static_cast<size_t>(roles.topology.node));
}

}  // namespace

RunContext::RunContext(const config::Options& options, const comm::Roles& roles,
                       const RunFolder& folder, comm::RunWatch& watch)
    : options_(options),
      roles_(roles),
      folder_(folder),
      watch_(watch),
      walltime_(roles.world.rank() == 0
                    ? job::walltime_of_job(options.run.walltime.seconds, roles.topology.nodes)
                    : job::Walltime(std::nullopt)) {
  checkpoint::install_faults(options.fault, options.run.dir, roles.world.rank());
  comm::compare_collectives(options.run.mismatch_check);
  job::install_signal_handlers();
  job::install_crash_handlers(crash_file(folder, roles.world.rank()));
  trace::record_events(options.trace.enabled);
  trace::record_kernels(options.trace.kernels);
  VALIDATE(!options.trace.nvtx || trace::forward_to_nvtx(), ExitCode::unfit_environment,
           "trace.nvtx = true, but this program was built ",
           "without NVTX (its headers come with the CUDA toolkit): build it where they are found, "
           "or set trace.nvtx = false");
  clock_offset_ = comm::measure_clock_offset(roles.world);
  origin_ = roles.world.broadcast_value(trace::start_seconds(), 0);
  if (roles.world.rank() == 0) {
    const base::FileWork work{"removal", comm::RunWatch::report_folder(options)};
    std::error_code ignored;
    std::filesystem::remove_all(
        comm::RunWatch::report_folder(options),
        ignored);  // what an earlier run left there would be taken for this one's
  }
  if (roles.world.rank() == 0) stop_file_ = std::make_unique<job::StopFile>(folder.stop_file());
  add_stop_conditions();
  watch_.ask([this] { return inside_.ask(); });
  term_watch_ = std::make_unique<job::TermWatch>(
      [this] { return term_facts(); },
      [this] {
        comm::abort_job([this] { return leave_at_once(); },
                        static_cast<int>(ExitCode::stopped_without_checkpoint));
      });
}

RunContext::~RunContext() { watch_.ask(nullptr); }

void RunContext::add_stop_conditions() {
  const auto when = [](bool holds, job::StopReason reason) {
    return holds ? reason : job::StopReason::none;
  };
  if (leaves_inside()) {
    inside_.add([=, this] {
      return when(base::monotonic_seconds() > standing_.latest_stop, job::StopReason::walltime);
    });
    inside_.add(
        [=, this] { return when(stop_file_ && stop_file_->seen(), job::StopReason::stop_file); });
    inside_.add(job::pending_signal);
  }
  between_.add(
      [=, this] { return when(walltime_.must_stop(next_iteration()), job::StopReason::walltime); });
  between_.add([=, this] {
    return when(checkpoints_ && checkpoints_.load()->time_is_due(),
                job::StopReason::save_and_go_on);
  });
  between_.add([=, this] { return when(measures_a_save(), job::StopReason::save_and_go_on); });
}

void RunContext::begin(const char* phase, int64_t iteration, int64_t iterations) {
  iterations_ = iterations;
  if (standing_.current != iteration) {
    if (standing_.finished < 0) standing_.finished = iteration - 1;
    standing_.current = iteration;
    standing_.began = base::monotonic_seconds();
  }
  std::string line = base::text("iteration ", iteration, "/", iterations, "  ", phase);
  if (iteration > 1) {
    const double per_iteration = since_start_.seconds() / static_cast<double>(iteration - 1);
    line += base::text(
        "  about ",
        base::human_seconds(per_iteration * static_cast<double>(iterations - iteration + 1)),
        " left");
  }
  log::live(line);
}

void RunContext::saving(bool on) {
  standing_.saving = on || (checkpoints_ && checkpoints_.load()->busy());
  if (!on) closing_.emplace();
}

void RunContext::phase_took(double seconds) {
  const auto phases = trace::phase_seconds();
  const auto evaluation = phases.find("evaluate");
  walltime_.phase_took(seconds, evaluation == phases.end() ? 0 : evaluation->second);
}

void RunContext::mark_place() {
  const double now = base::monotonic_seconds();
  const double began = standing_.began.exchange(now);
  if (began > 0) standing_.stretch = std::max(standing_.stretch.load(), now - began);
}

job::StopReason RunContext::wish() {
  if (!leaves_inside()) return job::StopReason::none;
  mark_place();
  return std::max(inside_.ask(), watch_.heard_wish());
}

void RunContext::waited() {
  if (leaves_inside()) standing_.began = base::monotonic_seconds();
}

void RunContext::leaving() {
  trace::instant("stop requested");
  job::leaving_with_checkpoint();
  standing_.leaving = true;
  standing_.saving = true;
}

// A save in the background is measured by its own thread, from its start to the commit.
void RunContext::measure_saves() {
  if (!checkpoints_) return;
  if (checkpoints_.load()->saves() > saves_seen_) {
    saves_seen_ = checkpoints_.load()->saves();
    walltime_.save_took(checkpoints_.load()->last_save_seconds());
  }
  standing_.save = walltime_.save_seconds().value_or(0);
  standing_.saving = checkpoints_.load()->busy();
}

job::NextIteration RunContext::next_iteration() const {
  return {evaluation_due(options_.eval, standing_.current + 1, iterations_),
          checkpoints_ && checkpoints_.load()->busy()};
}

bool RunContext::measures_a_save() {
  const int64_t current = standing_.current;
  int64_t until_save = iterations_ - current;
  if (checkpoints_) until_save = std::min(until_save, checkpoints_.load()->until_due(current));
  if (!walltime_.wants_measurement(static_cast<double>(until_save))) return false;
  if (checkpoints_ && checkpoints_.load()->busy()) return false;  // it is being measured
  log::info("walltime: a checkpoint is made now, to know how long one takes before the job ends");
  return true;
}

void RunContext::announce_stop() {
  const auto left = walltime_.remaining();
  const auto save = walltime_.save_seconds();
  if (!left || iterations_ <= standing_.current ||
      (iteration_announced_ && (save_announced_ || !save)))
    return;
  iteration_announced_ = true;
  save_announced_ = save.has_value();
  log::info(base::text(
      "walltime: will stop at about ", job::clock_time(*left - walltime_.needed()),
      " (an iteration takes ", base::human_seconds(walltime_.longest_phase()),
      save ? ", a checkpoint " + base::human_seconds(*save) : ", no checkpoint measured yet",
      "; the job ends at ", job::clock_time(*left), ")"));
}

job::StopReason RunContext::agree_to_stop() {
  const trace::Phase phase{"agree to stop"};
  measure_saves();
  mark_place();
  const auto stop = comm::agree_to_stop(
      roles_.world, {.stop = folder_.stop_file(), .save = folder_.save_file()}, between_.ask());
  standing_.finished = standing_.current.load();
  if (stop > job::StopReason::save_and_go_on) {
    leaving();
  } else {
    announce_stop();
    standing_.latest_stop =
        walltime_.latest_stop(standing_.stretch, checkpoints_ && checkpoints_.load()->busy())
            .value_or(std::numeric_limits<double>::infinity());
  }
  return stop;
}

void RunContext::save_request_served() {
  job::clear_save_request();
  if (roles_.world.rank() != 0) return;
  const base::FileWork work{"removal", folder_.save_file()};
  std::error_code error;
  std::filesystem::remove(folder_.save_file(), error);
  if (error)
    log::warning(base::text("the file ", folder_.save_file().string(), " cannot be removed (",
                            error.message(), "): every iteration is saved"));
}

int64_t RunContext::newest_committed() const {
  const auto began_behind = checkpoints_ ? checkpoints_.load()->began_behind() : std::nullopt;
  int64_t newest = began_behind.value_or(-1);
  try {
    const auto found = checkpoint::list_committed(folder_.checkpoints());
    if (!began_behind) return found.empty() ? -1 : found.front().step;
    // A branch that this run has left may have greater steps: they are not what it did.
    for (const auto& one : found) {
      if (one.fence == folder_.lock().fence()) newest = std::max(newest, one.step);
    }
  } catch (const std::exception&) {  // the folder cannot be read now: as if nothing were saved
                                     // since the start
  }
  return newest;
}

job::TermFacts RunContext::term_facts() const {
  job::TermFacts facts;
  facts.grace = options_.run.term_grace.seconds;
  facts.leads = roles_.world.rank() == 0;
  facts.saving = facts.leads && standing_.saving && newest_committed() != standing_.finished;
  if (standing_.leaving)
    return facts;  // the last checkpoint is being written, or the run is at its end
  const double stretch = standing_.stretch;
  const double save = standing_.save;
  if (stretch > 0 && save > 0) {
    const double elapsed = base::monotonic_seconds() - standing_.began;
    facts.to_commit = std::max(0.0, stretch - elapsed) + save;
  }
  return facts;
}

int RunContext::leave_at_once() const {
  const int64_t finished = standing_.finished;
  const int64_t newest = newest_committed();
  const bool whole = newest >= 0 && newest >= finished;
  const auto code =
      whole ? ExitCode::stopped_with_checkpoint : ExitCode::stopped_without_checkpoint;
  const std::string lost = whole ? "only the unfinished iteration is lost"
                                 : base::text("iterations ", std::max<int64_t>(newest, 0) + 1,
                                              " to ", standing_.current.load(), " are lost");
  log::warning(base::text(
      "leaving at once: run.term_grace, ", base::human_seconds(options_.run.term_grace.seconds),
      " from SIGTERM to the kill, is too short for what is under way and a checkpoint; ",
      newest >= 0 ? base::text("the last checkpoint is of iteration ", newest)
                  : std::string("there is no checkpoint"),
      ", ", lost, " (exit code ", static_cast<int>(code), ")"));
  return static_cast<int>(code);
}

void RunContext::write_trace() {
  // The end of the run writes it once more.
  if (options_.trace.enabled && !standing_.leaving) merge_trace();
  if (closing_) walltime_.closing_took(closing_->seconds());
  closing_.reset();
}

void RunContext::merge_trace() {
  const trace::Phase phase{"write trace"};
  trace::RankIdentity identity;
  identity.rank = roles_.world.rank();
  identity.roles = roles_.text();
  identity.host = host_of(roles_);
  identity.clock_offset = clock_offset_;
  identity.origin = origin_;
  const std::vector<std::string> fragments = roles_.world.gather(trace::trace_events(identity), 0);
  if (roles_.world.rank() != 0) return;
  report::side_output(options_.trace.file, [&] {
    base::write_file_atomically(folder_.path() / options_.trace.file,
                                trace::merge_trace(fragments));
  });
}

void RunContext::finish(const std::string& title, const std::vector<double>& curve,
                        const report::IterationMetrics& last,
                        const report::GenerationTotals& generation) {
  if (roles_.world.rank() == 0) folder_.obey_stop_file();
  if (options_.trace.enabled) merge_trace();
  const auto run =
      options_.train.async_depth > 0 ? trace::RolesRun::together : trace::RolesRun::in_turns;
  report::write_end(roles_.world, roles_.text(), folder_.path(),
                    {since_start_.seconds(), run, generation, last, title, curve});
}

}  // namespace trireme::driver
