#include "driver/run_control.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "driver/models.hpp"
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
  for (const SavedModel& model : savable_.models) checkpoints_.add(model);
  run_.context.watch(&checkpoints_);
}

RunControl::~RunControl() { run_.context.watch(nullptr); }

RunControl::Start RunControl::resume_or_begin(int64_t schedule_steps) {
  Start start;
  const auto found = checkpoints_.resume(start.parts);
  const std::string command(config::to_string(run_.command));
  start.resumed = found.has_value();
  Progress& progress = start.progress;
  if (found) {
    VALIDATE(found->command == command, ExitCode::bad_data, "the checkpoint in ",
             run_.folder.checkpoints().string(), " is one of `trireme ", found->command,
             "`: choose another run.dir or ckpt.resume = \"never\"");
    progress = *found;
    if (run_.leads()) {
      log::info(base::text("resumed after iteration ", progress.iteration,
                           progress.inside_iteration()
                               ? base::text(", inside the next one (", progress.phase, ", ",
                                            progress.mini_batch, " optimizer steps done)")
                               : std::string{}));
    }
  } else {
    progress.command = command;
    progress.schedule_steps = schedule_steps;
  }
  savable_.inputs = run_.roles.world.broadcast_value(savable_.inputs, 0);
  comm::fail_together_on_root(run_.roles.world, [&] {
    if (found)
      learn::check_changes({found->deck, found->inputs}, {run_.folder.deck(), savable_.inputs},
                           run_.options.ckpt.allow_changes);
    run_.folder.keep_deck();
  });
  progress.inputs = savable_.inputs;
  if (found && !progress.inside_iteration()) target_reached(progress);
  progress.deck = run_.folder.deck();
  progress.compute_type = config::to_string(run_.options.model.compute());
  progress.date = run_.options.data.date;
  if (run_.leads())
    metrics_file_ = std::make_unique<report::MetricsFile>(run_.folder.path() / "metrics.jsonl",
                                                          progress.metrics_cursor);
  return start;
}

bool RunControl::evaluation_due(int64_t iteration) const {
  return driver::evaluation_due(run_.options.eval, iteration, iterations_);
}

void RunControl::report(report::IterationMetrics& metrics, Progress& progress, double seconds) {
  const trace::Phase phase{"report", metrics.iteration};
  progress.rewards.push_back(metrics.get(curve()));
  metrics.version = progress.version;
  metrics.memory.merge(run_.memory.figures(run_.roles.world, run_.device));
  for (const auto& [name, phase_seconds] : trace::phase_seconds())
    metrics.seconds[name] = phase_seconds;
  for (const auto& [name, device_seconds] : trace::device_phase_seconds())
    metrics.seconds[name + "_device"] = device_seconds;
  metrics.seconds["total"] = seconds;
  if (!run_.device.is_cpu())
    metrics.seconds["device_waits"] = run_.roles.world.max(trace::take_device_wait());
  metrics.seconds["checkpoint_stall"] = checkpoints_.take_stall();
  if (checkpoints_.failures() > 0)
    metrics.set("failed_saves", static_cast<double>(checkpoints_.failures()));
  if (metrics_file_) {
    report::side_output("metrics.jsonl", [&] { metrics_file_->append(to_json(metrics)); });
    log::info(report::to_console(metrics, iterations_));
  }
  progress.metrics_cursor = metrics_cursor();
  last_ = metrics;
  generation_.add(metrics);
  divergence_.look_at({.kl = metrics.get("kl"),
                       .entropy = metrics.get("entropy"),
                       .reward = metrics.get("reward")});
}

std::optional<ExitCode> RunControl::end_iteration(const report::IterationMetrics& metrics,
                                                  Progress& progress, double seconds) {
  const config::CkptOptions& ckpt = run_.options.ckpt;
  const auto best = better_checkpoint(ckpt, progress.best, metrics.iteration,
                                      ckpt.best_metric.empty() ? 0 : metrics.get(ckpt.best_metric));
  if (best) progress.best = *best;
  if (best && run_.leads()) log::info(base::text("best ", best->metric, " so far: ", best->value));
  run_.context.phase_took(seconds);
  checkpoints_.look_after_save(progress.iteration);
  const auto stop = run_.context.agree_to_stop();
  if (progress.iteration >= iterations_ || target_reached(progress)) return std::nullopt;
  if (stop > job::StopReason::save_and_go_on) return leave(progress, stop);
  if (best || checkpoints_.due(progress.iteration) || stop == job::StopReason::save_and_go_on) {
    save(progress, false);
    if (stop == job::StopReason::save_and_go_on) run_.context.save_request_served();
  }
  return std::nullopt;
}

bool RunControl::target_reached(const Progress& progress) {
  const auto why = early_end(run_.options.ckpt, run_.options.eval, progress);
  if (why && run_.leads()) log::info(*why);
  ended_early_ = ended_early_ || why;
  return why.has_value();
}

void RunControl::save(const Progress& progress, bool wait) {
  run_.context.begin("checkpoint", progress.iteration, iterations_);
  run_.context.saving(true);
  if (run_.leads()) {  // what the checkpoint lies behind
    const trace::Region phase{"output files", progress.iteration, trace::Category::phase};
    const trace::Region region{"sync output files", trace::no_argument, trace::Category::io};
    report::side_output("metrics.jsonl", [&] { metrics_file_->sync(); });
    report::side_output("samples.jsonl",
                        [&] { report::sync_sample_log(run_.folder.path() / "samples.jsonl"); });
    report::side_output("the run folder", [&] { base::sync_folder(run_.folder.path()); });
  }
  StoredParts parts;
  {
    const trace::Region phase{"rollouts to save", progress.iteration, trace::Category::phase};
    parts = savable_.rollouts();
  }
  parts.unfinished = unfinished_;
  Progress saved = progress;  // a line of metrics.jsonl that waited may be written by now
  saved.metrics_cursor = metrics_cursor();
  checkpoints_.save(saved, parts, wait);
  run_.context.saving(false);
  const bool ended = !goes_on(progress.iteration);
  if (run_.options.ckpt.save_hf == config::SaveHf::checkpoint && !ended) {
    export_or_go_on(report::export_name(checkpoint::folder_name(progress.checkpoint_step())));
  }
  run_.context.write_trace();
}

bool RunControl::export_or_go_on(const std::string& name) {
  return report::side_output(base::text("the export ", name, "/"),
                             [&] { savable_.export_trained(name); });  // its errors are agreed
}

ExitCode RunControl::leave(const Progress& progress, job::StopReason reason) {
  if (run_.leads())
    log::info(base::text("stopping after iteration ", progress.iteration, " (",
                         job::to_string(reason), "): saving"));
  save(progress, true);
  return leave(progress.rewards);
}

ExitCode RunControl::leave_inside(const Progress& progress, std::string unfinished) {
  run_.context.leaving();
  unfinished_ = std::move(unfinished);
  const bool nothing_new = !progress.inside_iteration() && checkpoints_.holds(progress.iteration);
  if (run_.leads()) {
    const std::string place =
        nothing_new ? std::string("nothing is done of it that the last checkpoint lacks")
        : progress.inside_iteration()
            ? base::text(progress.phase, ", ", progress.mini_batch, " optimizer steps done: saving")
            : std::string("its rollout is made again: saving");
    log::info(base::text("stopping inside iteration ", progress.iteration + 1, " (",
                         job::to_string(run_.progress.reason()), "); ", place));
  }
  if (!nothing_new) save(progress, true);
  return leave(progress.rewards);
}

ExitCode RunControl::leave(const std::vector<double>& rewards) {
  run_.context.finish(curve(), rewards, last_, generation_);
  const std::string memory = machine::MemoryCheck::compare(last_.memory);
  if (run_.leads() && !memory.empty()) log::info(memory);
  if (run_.leads())
    log::info("stopped with a checkpoint: start the same command again to go on (exit code 75)");
  return ExitCode::stopped_with_checkpoint;
}

ExitCode RunControl::finish(const Progress& progress) {
  if (checkpoints_.committed() != progress.iteration) save(progress, true);
  const bool exported = run_.options.ckpt.save_hf == config::SaveHf::never || export_or_go_on("hf");
  run_.context.finish(base::text("mean ", curve(), " by iteration"), progress.rewards, last_,
                      generation_);
  if (run_.leads()) {
    log::info(machine::MemoryCheck::compare(last_.memory));
    log::info(base::text("metrics:     ", (run_.folder.path() / "metrics.jsonl").string()));
    log::info(base::text("trace:       ", (run_.folder.path() / run_.options.trace.file).string(),
                         " (open it in ui.perfetto.dev)"));
    log::info(base::text("checkpoints: ", run_.folder.checkpoints().string(),
                         " (HDF5; look inside with h5ls -r)"));
  }
  if (exported) return ExitCode::done;
  if (run_.leads()) {
    log::error(
        base::text("the run is done and its last checkpoint whole, but the export hf/ failed (see "
                   "above): make it with `trireme convert ",
                   run_.folder.path().string(), " FOLDER` (exit code 74)"));
  }
  return ExitCode::io_error;
}

}  // namespace trireme::driver
