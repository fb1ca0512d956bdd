#include "driver/run_control.hpp"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "driver/role_metrics.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/driver/run_schedule.hpp"
#include "trireme/machine/device.hpp"
#include "trireme/report/exports.hpp"
#include "trireme/report/sample_log.hpp"
#include "trireme/report/side_output.hpp"
#include "trireme/trace/device_clock.hpp"
#include "trireme/trace/device_wait.hpp"

namespace trireme::driver {

RunControl::RunControl(Run& run, Savable savable, int64_t iterations)
    : run_(run),
      savable_(std::move(savable)),
      iterations_(iterations),
      checkpoints_(run.options, run.roles, run.folder,
                   machine::state_device(run.options, run.device),
                   run.session.facts().thread_multiple) {
  checkpoints_.belong_to(std::string(config::to_string(run_.command)));
  for (const SavedModel& model : savable_.models) checkpoints_.add(model);
  run_.policy.plan(iterations_, &checkpoints_);
}

RunControl::~RunControl() { run_.policy.plan(iterations_, nullptr); }

RunControl::Start RunControl::resume_or_begin(int64_t schedule_steps) {
  Start start;
  const auto found = checkpoints_.resume(start.parts);
  const std::string command(config::to_string(run_.command));
  start.resumed = found.has_value();
  RunState& state = start.state;
  if (found) {
    state = *found;
    if (run_.leads()) {
      log::info(base::text("resumed after iteration ", state.iteration,
                           state.inside_iteration()
                               ? base::text(", inside the next one (", state.phase, ", ",
                                            state.mini_batch, " optimizer steps done)")
                               : std::string{}));
    }
  } else {
    state.command = command;
    state.schedule_steps = schedule_steps;
  }
  savable_.inputs = run_.roles.world.broadcast_value(savable_.inputs, 0);
  comm::fail_together_on_root(run_.roles.world, [&] {
    if (found)
      learn::check_changes({found->deck, found->inputs}, {run_.folder.deck(), savable_.inputs},
                           run_.options.ckpt.allow_changes);
    run_.folder.keep_deck();
  });
  state.inputs = savable_.inputs;
  state.deck = run_.folder.deck();
  state.compute_type = config::to_string(run_.options.model.compute());
  state.date = run_.options.data.date;
  if (run_.leads()) {
    metrics_file_ = std::make_unique<report::MetricsFile>(run_.folder.path() / "metrics.jsonl",
                                                          state.metrics_cursor);
    reporter_ = std::make_unique<report::RunReporter>(run_.folder.path(), record_of_start(state),
                                                      run_.options.report.sinks);
  }
  return start;
}

report::RunRecord RunControl::record_of_start(const RunState& state) const {
  std::error_code unknown;
  return {.command = state.command,
          .name = run_.options.run.name,
          .model = run_.options.model.path,
          .iterations = iterations_,
          .starts = {{.time = report::wall_clock(),
                      .after = state.iteration,
                      .ranks = run_.roles.world.size(),
                      .nodes = run_.roles.topology.nodes,
                      .version = TRIREME_VERSION,
                      .folder = std::filesystem::current_path(unknown).string()}}};
}

void RunControl::report(report::IterationMetrics& metrics, RunState& state, double seconds) {
  const trace::Phase phase{"report", metrics.iteration};
  const auto figure = [](const std::optional<double>& value) {
    return value.value_or(std::numeric_limits<double>::quiet_NaN());
  };
  state.rewards.push_back(figure(state.outcome.curve));
  metrics.version = state.version;
  metrics.time = report::wall_clock();
  metrics.iterations = iterations_;
  metrics.memory.merge(run_.memory.figures(run_.roles.world, run_.device));
  for (const auto& [name, phase_seconds] : trace::phase_seconds())
    metrics.seconds[name] = phase_seconds;
  for (const auto& [name, device_seconds] : trace::device_phase_seconds())
    metrics.seconds[name + "_device"] = device_seconds;
  metrics.seconds["total"] = seconds;
  waited_ = add_busy_metrics(run_.roles, waited_, metrics);
  if (!run_.device.is_cpu())
    metrics.seconds["device_waits"] = run_.roles.world.max(trace::take_device_wait());
  metrics.seconds["checkpoint_stall"] = checkpoints_.take_stall();
  if (checkpoints_.failures() > 0)
    metrics.set("failed_saves", static_cast<double>(checkpoints_.failures()));
  if (metrics_file_) {
    const std::string line = to_json(metrics);
    report::side_output("metrics.jsonl", [&] { metrics_file_->append(line); });
    reporter_->add(metrics, line);
  }
  state.metrics_cursor = metrics_cursor();
  last_ = metrics;
  generation_.add(metrics);
  const bool has_rewards = run_.command == config::Command::ppo;
  divergence_.look_at({.kl = figure(state.outcome.kl),
                       .entropy = figure(state.outcome.entropy),
                       .reward = figure(has_rewards ? state.outcome.curve : std::nullopt)});
}

std::optional<ExitCode> RunControl::end_iteration(RunState& state, double seconds) {
  const auto best = state.outcome.judged ? better_checkpoint(run_.options.ckpt, state.best,
                                                             state.iteration, *state.outcome.judged)
                                         : std::nullopt;
  if (best) state.best = *best;
  if (best && run_.leads()) log::info(base::text("best ", best->metric, " so far: ", best->value));
  checkpoints_.look_after_save(state.iteration);
  const AfterIteration next = run_.policy.after(state, seconds, best.has_value());
  if (next.leave != job::StopReason::none) return leave(state, next.leave);
  if (next.save) save(state, false);
  if (next.serves_request) run_.policy.save_request_served();
  return std::nullopt;
}

void RunControl::save(const RunState& state, bool wait) {
  run_.output.begin("checkpoint", state.iteration, iterations_);
  run_.policy.saving(true);
  if (run_.leads()) {  // before the checkpoint
    const trace::Region phase{"output files", state.iteration, trace::Category::phase};
    const trace::Region region{"sync output files", trace::no_argument, trace::Category::io};
    report::side_output("metrics.jsonl", [&] { metrics_file_->sync(); });
    report::side_output("samples.jsonl",
                        [&] { report::sync_sample_log(run_.folder.path() / "samples.jsonl"); });
    report::side_output("the run folder", [&] { base::sync_folder(run_.folder.path()); });
  }
  StoredParts parts;
  {
    const trace::Region phase{"rollouts to save", state.iteration, trace::Category::phase};
    parts = savable_.rollouts();
  }
  parts.unfinished = unfinished_;
  RunState saved = state;  // a line of metrics.jsonl that waited may be written by now
  saved.metrics_cursor = metrics_cursor();
  checkpoints_.save(saved, parts, wait);
  run_.policy.saving(false);
  const bool ended = !run_.policy.goes_on(state);
  if (run_.options.ckpt.save_hf == config::SaveHf::checkpoint && !ended) {
    export_or_go_on(report::export_name(checkpoint::folder_name(state.checkpoint_step())));
  }
  if (reporter_) reporter_->write();
  if (!run_.policy.is_leaving()) run_.output.write_trace();  // the end writes it once more
  run_.policy.closed();
}

bool RunControl::export_or_go_on(const std::string& name) {
  return report::side_output(base::text("the export ", name, "/"),
                             [&] { savable_.export_trained(name); });  // its errors are agreed
}

ExitCode RunControl::leave(const RunState& state, job::StopReason reason) {
  if (run_.leads())
    log::info(base::text("stopping after iteration ", state.iteration, " (", job::to_string(reason),
                         "): saving"));
  save(state, true);
  return leave(state.rewards);
}

ExitCode RunControl::leave_inside(const RunState& state, std::string unfinished) {
  run_.policy.leaving();
  unfinished_ = std::move(unfinished);
  const bool nothing_new = !state.inside_iteration() && checkpoints_.holds(state.iteration);
  if (run_.leads()) {
    const std::string place =
        nothing_new ? std::string("nothing is done of it that the last checkpoint lacks")
        : state.inside_iteration()
            ? base::text(state.phase, ", ", state.mini_batch, " optimizer steps done: saving")
            : std::string("its rollout is made again: saving");
    log::info(base::text("stopping inside iteration ", state.iteration + 1, " (",
                         job::to_string(run_.progress.reason()), "); ", place));
  }
  if (!nothing_new) save(state, true);
  return leave(state.rewards);
}

ExitCode RunControl::leave(const std::vector<double>& rewards) {
  if (run_.leads()) run_.folder.obey_stop_file();
  run_.output.finish(curve(), rewards, last_, generation_);
  const std::string memory = machine::MemoryCheck::compare(last_.memory);
  if (run_.leads() && !memory.empty()) log::info(memory);
  if (reporter_) reporter_->end(static_cast<int>(ExitCode::stopped_with_checkpoint), "stopped");
  if (run_.leads())
    log::info("stopped with a checkpoint: start the same command again to go on (exit code 75)");
  return ExitCode::stopped_with_checkpoint;
}

ExitCode RunControl::finish(const RunState& state) {
  if (const auto why = early_end(run_.options.ckpt, run_.options.eval, state);
      why && state.iteration < iterations_ && run_.leads())
    log::info(*why);
  if (checkpoints_.committed() != state.iteration) save(state, true);
  const bool exported = run_.options.ckpt.save_hf == config::SaveHf::never || export_or_go_on("hf");
  if (run_.leads()) run_.folder.obey_stop_file();
  run_.output.finish(base::text("mean ", curve(), " by iteration"), state.rewards, last_,
                     generation_);
  const ExitCode code = exported ? ExitCode::done : ExitCode::io_error;
  if (run_.leads()) {
    log::info(machine::MemoryCheck::compare(last_.memory));
    reporter_->end(static_cast<int>(code), "done");
    reporter_->say_where(run_.options.trace.file, run_.folder.checkpoints());
  }
  if (exported) return code;
  if (run_.leads()) {
    log::error(
        base::text("the run is done and its last checkpoint whole, but the export hf/ failed (see "
                   "above): make it with `trireme convert ",
                   run_.folder.path().string(), " FOLDER` (exit code 74)"));
  }
  return code;
}

}  // namespace trireme::driver
