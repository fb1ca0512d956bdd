#include "driver/run_control.hpp"

#include <cmath>
#include <string>
#include <vector>

#include "driver/device.hpp"
#include "driver/side_output.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/config/changes.hpp"
#include "trireme/config/deck.hpp"

namespace trireme::driver {
namespace {

// What the deck says otherwise than when the checkpoint was saved.
void report_changed_keys(const std::string& saved, const std::string& deck) {
  std::vector<config::ChangedKey> changes;
  try {
    changes = config::changed_keys(config::parse_deck(saved, "the checkpoint's deck"), config::parse_deck(deck));
  } catch (const UserError& error) {
    log::warning(base::text("the deck in the checkpoint is one of another version, so what has changed since cannot be listed (", error.what(), ")"));
    return;
  }
  const std::string meaning = config::describe(changes, config::KeyKind::meaning);
  if (!meaning.empty()) log::warning("this deck computes something else than the checkpoint's; changed keys:\n" + meaning);
  const std::string conduct = config::describe(changes, config::KeyKind::conduct);
  if (!conduct.empty()) log::info("changed since the checkpoint, without a change of what is computed:\n" + conduct);
}

}  // namespace

RunControl::RunControl(Run& run, Savable savable, int64_t iterations)
    : run_(run),
      savable_(std::move(savable)),
      iterations_(iterations),
      checkpoints_(run.options, run.roles, run.folder, state_device(run.options, run.device), run.session.facts().thread_multiple) {
  for (const SavedModel& model : savable_.models) checkpoints_.add(model);
  run_.context.watch(&checkpoints_);
}

RunControl::~RunControl() { run_.context.watch(nullptr); }

RunControl::Start RunControl::resume_or_begin(int64_t schedule_steps) {
  Start start;
  const auto found = checkpoints_.resume(start.pending);
  const std::string command(config::to_string(run_.command));
  start.resumed = found.has_value();
  Progress& progress = start.progress;
  if (found) {
    VALIDATE(found->command == command, ExitCode::bad_data, "the checkpoint in ", run_.folder.checkpoints().string(),
             " is one of `trireme ", found->command, "`: choose another run.dir or ckpt.resume = \"never\"");
    progress = *found;
    if (run_.leads()) log::info(base::text("resumed after iteration ", progress.iteration));
  } else {
    progress.command = command;
    progress.schedule_steps = schedule_steps;
  }
  if (found && run_.leads()) report_changed_keys(found->deck, run_.folder.deck());
  progress.deck = run_.folder.deck();
  progress.compute_type = config::to_string(run_.options.model.compute());
  if (run_.leads()) metrics_file_ = std::make_unique<MetricsFile>(run_.folder.path() / "metrics.jsonl", progress.metrics_cursor);
  return start;
}

bool RunControl::evaluation_due(int64_t iteration) const {
  const int64_t steps = run_.options.eval.steps;
  return steps > 0 && (iteration % steps == 0 || iteration == iterations_);
}

void RunControl::report(IterationMetrics& metrics, Progress& progress, double seconds) {
  const trace::Phase phase{"report", metrics.iteration};
  progress.rewards.push_back(metrics.get(curve()));
  metrics.version = progress.version;
  run_.memory.add_metrics(run_.roles, run_.device, metrics);
  for (const auto& [name, phase_seconds] : trace::phase_seconds()) metrics.seconds[name] = phase_seconds;
  metrics.seconds["total"] = seconds;
  metrics.seconds["checkpoint_stall"] = checkpoints_.take_stall();
  if (checkpoints_.failures() > 0) metrics.set("failed_saves", static_cast<double>(checkpoints_.failures()));
  if (metrics_file_) {
    side_output("metrics.jsonl", [&] { metrics_file_->append(to_json(metrics)); });
    log::info(to_console(metrics, iterations_));
  }
  progress.metrics_cursor = run_.roles.world.broadcast_value(metrics_file_ ? metrics_file_->cursor() : int64_t{0}, 0);
  last_ = metrics;
}

std::optional<BestCheckpoint> RunControl::better(const BestCheckpoint& best, const IterationMetrics& metrics) const {
  const std::string& name = run_.options.ckpt.best_metric;
  const double value = name.empty() ? std::nan("") : metrics.get(name);
  if (!std::isfinite(value)) return std::nullopt;
  const bool better = config::smaller_is_better(name) ? value < best.value : value > best.value;
  if (best.metric == name && !better) return std::nullopt;
  if (run_.leads()) log::info(base::text("best ", name, " so far: ", value));
  return BestCheckpoint{name, metrics.iteration, value};
}

std::optional<ExitCode> RunControl::settle(const IterationMetrics& metrics, Progress& progress, double seconds) {
  const auto best = better(progress.best, metrics);
  if (best) progress.best = *best;
  run_.context.phase_took(seconds);
  checkpoints_.look_after_save(progress.iteration);
  const auto stop = run_.context.agree_to_stop();
  if (progress.iteration >= iterations_) return std::nullopt;
  if (stop > job::StopReason::save_and_go_on) return leave(progress, stop);
  if (best || checkpoints_.due(progress.iteration) || stop == job::StopReason::save_and_go_on) {
    save(progress, false);
    if (stop == job::StopReason::save_and_go_on) run_.context.save_request_served();
  }
  return std::nullopt;
}

void RunControl::save(const Progress& progress, bool wait) {
  run_.context.begin("checkpoint", progress.iteration, iterations_);
  run_.context.saving(true);
  if (metrics_file_) side_output("metrics.jsonl", [&] { metrics_file_->sync(); });  // its cursor goes into the checkpoint
  checkpoints_.save(progress, savable_.pending_rollout(), wait);
  run_.context.saving(false);
  const bool ended = progress.iteration >= iterations_;
  if (run_.options.ckpt.save_hf == config::SaveHf::checkpoint && !ended) {
    export_or_go_on(base::text("hf-", checkpoint::folder_name(progress.iteration)));
  }
  run_.context.write_trace();
}

bool RunControl::export_or_go_on(const std::string& name) {
  return side_output(base::text("the export ", name, "/"), [&] { savable_.export_trained(name); });  // its errors are agreed
}

ExitCode RunControl::leave(const Progress& progress, job::StopReason reason) {
  if (run_.leads()) {
    log::info(base::text("stopping after iteration ", progress.iteration, " (", job::to_string(reason), "): saving"));
  }
  save(progress, true);
  run_.context.finish(curve(), progress.rewards, last_);
  if (run_.leads()) log::info(MemoryCheck::compare(last_));
  if (run_.leads()) log::info("stopped with a checkpoint: start the same command again to go on (exit code 75)");
  return ExitCode::stopped_with_checkpoint;
}

ExitCode RunControl::finish(const Progress& progress) {
  if (checkpoints_.committed() != progress.iteration) save(progress, true);
  const bool exported = run_.options.ckpt.save_hf == config::SaveHf::never || export_or_go_on("hf");
  run_.context.finish(base::text("mean ", curve(), " by iteration"), progress.rewards, last_);
  if (run_.leads()) {
    log::info(MemoryCheck::compare(last_));
    log::info(base::text("metrics:     ", (run_.folder.path() / "metrics.jsonl").string()));
    log::info(base::text("trace:       ", (run_.folder.path() / run_.options.trace.file).string(), " (open it in ui.perfetto.dev)"));
    log::info(base::text("checkpoints: ", run_.folder.checkpoints().string(), " (HDF5; look inside with h5ls -r)"));
  }
  if (exported) return ExitCode::done;
  if (run_.leads()) {
    log::error(base::text("the run is done and its last checkpoint whole, but the export hf/ failed (see above): make it with `trireme convert ",
                          run_.folder.path().string(), " FOLDER` (exit code 74)"));
  }
  return ExitCode::io_error;
}

}  // namespace trireme::driver
