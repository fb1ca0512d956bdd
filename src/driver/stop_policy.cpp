#include "driver/stop_policy.hpp"

#include <algorithm>
#include <string>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/progress.hpp"
#include "trireme/checkpoint/position.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/comm/stop.hpp"
#include "trireme/job/end_of_job.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::driver {

StopPolicy::StopPolicy(const config::Options& options, const comm::Roles& roles,
                       const RunFolder& folder, comm::RunWatch& watch)
    : options_(options),
      roles_(roles),
      folder_(folder),
      watch_(watch),
      walltime_(roles.world.rank() == 0
                    ? job::walltime_of_job(options.run.walltime.seconds, roles.topology.nodes)
                    : job::Walltime(std::nullopt)) {
  if (roles.world.rank() == 0) {
    stop_file_ = std::make_unique<job::StopFile>(folder.stop_file());
    job::say_at_stop(folder.stop_file());
  }
  add_conditions();
  watch_.ask([this] { return inside_.ask(); });
  term_watch_ = std::make_unique<job::TermWatch>(
      [this] { return term_facts(); },
      [this] {
        comm::abort_job([this] { return leave_at_once(); },
                        static_cast<int>(ExitCode::stopped_without_checkpoint));
      });
}

StopPolicy::~StopPolicy() {
  watch_.ask(nullptr);
  job::forget_requests();
}

void StopPolicy::plan(int64_t iterations, const Checkpointing* checkpoints) {
  iterations_ = iterations;
  checkpoints_ = checkpoints;
}

bool StopPolicy::goes_on(const RunState& state) const {
  if (state.iteration >= iterations_) return false;
  return state.inside_iteration() || !early_end(options_.ckpt, options_.eval, state);
}

AfterIteration StopPolicy::after(const RunState& state, double seconds, bool better) {
  const auto phases = trace::phase_seconds();
  const auto evaluation = phases.find("evaluate");
  walltime_.phase_took(seconds, evaluation == phases.end() ? 0 : evaluation->second);
  const job::StopReason agreed = agree_to_stop();
  const bool due = checkpoints_ && checkpoints_.load()->due(state.iteration);
  return after_iteration(goes_on(state), agreed, better || due);
}

void StopPolicy::begins(int64_t iteration) {
  if (standing_.finished < 0) standing_.finished = iteration - 1;
  standing_.current = iteration;
  standing_.began = base::monotonic_seconds();
}

void StopPolicy::closed() {
  if (closing_) walltime_.closing_took(closing_->seconds());
  closing_.reset();
}

void StopPolicy::add_conditions() {
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
  between_.add([=, this] {
    return when(walltime_.must_stop({evaluates(standing_.current + 1), saves_at_work()}),
                job::StopReason::walltime);
  });
  between_.add([=, this] {
    return when(checkpoints_ && checkpoints_.load()->time_is_due(),
                job::StopReason::save_and_go_on);
  });
  between_.add([=, this] { return when(measures_a_save(), job::StopReason::save_and_go_on); });
}

void StopPolicy::saving(bool on) {
  standing_.saving = on || saves_at_work();
  if (!on) closing_.emplace();
}

void StopPolicy::mark_place() {
  const double now = base::monotonic_seconds();
  const double began = standing_.began.exchange(now);
  if (began > 0) standing_.stretch = std::max(standing_.stretch.load(), now - began);
}

job::StopReason StopPolicy::wish() {
  if (!leaves_inside()) return job::StopReason::none;
  mark_place();
  return std::max(inside_.ask(), watch_.heard_wish());
}

void StopPolicy::waited() {
  if (leaves_inside()) standing_.began = base::monotonic_seconds();
}

void StopPolicy::leaving() {
  trace::instant("stop requested");
  job::leaving_with_checkpoint();
  standing_.leaving = true;
  standing_.saving = true;
}

// A save in the background is measured by its own thread, from its start to the commit.
void StopPolicy::measure_saves() {
  if (!checkpoints_) return;
  if (checkpoints_.load()->saves() > saves_seen_) {
    saves_seen_ = checkpoints_.load()->saves();
    walltime_.save_took(checkpoints_.load()->last_save_seconds());
  }
  standing_.save = walltime_.save_seconds().value_or(0);
  standing_.saving = checkpoints_.load()->busy();
}

bool StopPolicy::measures_a_save() {
  const int64_t current = standing_.current;
  int64_t until_save = iterations_ - current;
  if (checkpoints_) until_save = std::min(until_save, checkpoints_.load()->until_due(current));
  if (!walltime_.wants_measurement(static_cast<double>(until_save))) return false;
  if (saves_at_work()) return false;  // it is being measured
  log::info("walltime: a checkpoint is made now, to know how long one takes before the job ends");
  return true;
}

void StopPolicy::announce_stop() {
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

job::StopReason StopPolicy::agree_to_stop() {
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
    standing_.latest_stop = walltime_.latest_stop(standing_.stretch, saves_at_work())
                                .value_or(std::numeric_limits<double>::infinity());
  }
  return stop;
}

void StopPolicy::save_request_served() {
  job::clear_save_request();
  if (roles_.world.rank() != 0) return;
  const base::FileWork work{"removal", folder_.save_file()};
  std::error_code error;
  std::filesystem::remove(folder_.save_file(), error);
  if (error)
    log::warning(base::text("the file ", folder_.save_file().string(), " cannot be removed (",
                            error.message(), "): every iteration is saved"));
}

int64_t StopPolicy::newest_committed() const {
  const auto began_behind = checkpoints_ ? checkpoints_.load()->began_behind() : std::nullopt;
  int64_t newest = began_behind.value_or(-1);
  try {
    const auto found = checkpoint::list_committed(folder_.checkpoints());
    if (!began_behind) return found.empty() ? -1 : found.front().step;
    // Ignore newer steps of an abandoned branch.
    for (const auto& one : found) {
      if (one.fence == folder_.lock().fence()) newest = std::max(newest, one.step);
    }
  } catch (const std::exception&) {  // the folder cannot be read now: as if nothing were saved
                                     // since the start
  }
  return newest;
}

job::TermFacts StopPolicy::term_facts() const {
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

int StopPolicy::leave_at_once() const {
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

}  // namespace trireme::driver
