#include "driver/loop.hpp"

#include <cmath>
#include <string>
#include <vector>

#include "driver/compute_type.hpp"
#include "driver/device.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/config/changes.hpp"
#include "trireme/config/deck.hpp"

namespace trireme::driver {
namespace {

Roles roles_for(const config::Options& options, const comm::Session& session, config::Command command) {
  Roles roles = make_roles(options, session.world());
  if (command == config::Command::ppo) return roles;
  roles.generator = false;
  roles.reward = false;
  return roles;
}

std::vector<comm::RankPlace> shared_places(const config::Options& options, const Roles& roles) {
  auto places = gather_places(options, roles);
  share_threads(options.run.threads, places);
  return places;
}

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

Loop::Loop(const config::Options& options, const comm::Session& session, config::Command command)
    : options_(options),
      asked_type_(options.model.dtype),
      session_(session),
      command_(command),
      roles_(roles_for(options_, session, command)),
      folder_(options_, roles_.world),
      context_(options_, roles_, folder_),
      places_(shared_places(options_, roles_)),
      threads_(plan_threads(options_, places_, roles_.world.rank())),
      device_(choose_device(options_, roles_)) {
  log_start(options_, roles_, session_, std::string(config::to_string(command)), places_, threads_);
  threads_.trainer.use();  // also for what is done before the first phase: loading, first touches
  const auto stored = stored_compute_type(options_.ckpt.resume, folder_.checkpoints(), roles_.world);
  options_.model.dtype = config::to_choice(settle_compute_type(asked_type_, stored, roles_, device_));
}

model::StoredType Loop::export_type(const model::ModelSpec& spec) const {
  const bool automatic = asked_type_ == config::ComputeType::automatic;
  const bool full = automatic ? spec.shape.dtype == "float32" : asked_type_ == config::ComputeType::fp32;
  return full ? model::StoredType::f32 : model::StoredType::bf16;
}

void Loop::start_device() {
  use_device(device_, options_.train.deterministic);
  checkpoint_ = std::make_unique<Checkpointing>(options_, roles_, folder_, device_, session_.facts().thread_multiple);
  context_.watch(*checkpoint_);
}

void Loop::check_memory(const model::ModelSpec& actor, const std::optional<model::ModelSpec>& critic) {
  const auto cut = [&actor](int degree) { return model::tensor_parallel_layout(actor, degree); };
  memory_.admit(options_, roles_, command_, job_models(options_, command_, actor, critic), cut, device_);
}

bool Loop::resume_or_begin(int64_t schedule_steps, std::string& pending) {
  const auto found = checkpoint_->resume(pending);
  const std::string command(config::to_string(command_));
  if (found) {
    VALIDATE(found->command == command, ExitCode::bad_data, "the checkpoint in ", folder_.checkpoints().string(),
             " is one of `trireme ", found->command, "`: choose another run.dir or ckpt.resume = \"never\"");
    progress_ = *found;
    if (roles_.world.rank() == 0) log::info(base::text("resumed after iteration ", progress_.iteration));
  } else {
    progress_.command = command;
    progress_.schedule_steps = schedule_steps;
  }
  if (found && roles_.world.rank() == 0) report_changed_keys(found->deck, folder_.deck());
  progress_.deck = folder_.deck();
  progress_.compute_type = config::to_string(options_.model.compute());
  if (roles_.world.rank() == 0) {
    metrics_file_ = std::make_unique<MetricsFile>(folder_.path() / "metrics.jsonl", progress_.metrics_cursor);
  }
  return found.has_value();
}

bool Loop::evaluation_due(int64_t iteration) const {
  const int64_t steps = options_.eval.steps;
  return steps > 0 && (iteration % steps == 0 || iteration == iterations_);
}

void Loop::report(IterationMetrics& metrics, double seconds) {
  const trace::Phase phase{"report", metrics.iteration};
  progress_.rewards.push_back(metrics.get(curve()));
  metrics.version = progress_.version;
  memory_.add_metrics(roles_, device_, metrics);
  for (const auto& [name, phase_seconds] : trace::phase_seconds()) metrics.seconds[name] = phase_seconds;
  metrics.seconds["total"] = seconds;
  if (metrics_file_) {
    metrics_file_->append(to_json(metrics));
    log::info(to_console(metrics, iterations_));
  }
  progress_.metrics_cursor = roles_.world.broadcast_value(metrics_file_ ? metrics_file_->cursor() : int64_t{0}, 0);
  last_ = metrics;
}

bool Loop::is_best(const IterationMetrics& metrics) {
  const std::string& name = options_.ckpt.best_metric;
  const double value = name.empty() ? std::nan("") : metrics.get(name);
  if (!std::isfinite(value)) return false;
  BestCheckpoint& best = progress_.best;
  const bool better = config::smaller_is_better(name) ? value < best.value : value > best.value;
  if (best.metric == name && !better) return false;
  best = {name, metrics.iteration, value};
  if (roles_.world.rank() == 0) log::info(base::text("best ", name, " so far: ", value));
  return true;
}

std::optional<ExitCode> Loop::settle(const IterationMetrics& metrics, double seconds) {
  const bool best = is_best(metrics);
  context_.phase_took(seconds);
  const auto stop = context_.agree_to_stop();
  if (progress_.iteration >= iterations_) return std::nullopt;
  if (stop > comm::StopReason::save_and_go_on) return leave(stop);
  if (best || checkpoint_->due(progress_.iteration) || stop == comm::StopReason::save_and_go_on) {
    save(false);
    comm::clear_save_request();
  }
  return std::nullopt;
}

void Loop::save(bool wait) {
  context_.begin("checkpoint", progress_.iteration, iterations_);
  context_.set_io_deadline(true);
  checkpoint_->save(progress_, pending_rollout(), wait);
  context_.set_io_deadline(false);
  const bool ended = progress_.iteration >= iterations_;
  if (options_.ckpt.save_hf == config::SaveHf::checkpoint && !ended) {
    export_trained(base::text("hf-", checkpoint::folder_name(progress_.iteration)));
  }
  context_.write_trace();
}

ExitCode Loop::leave(comm::StopReason reason) {
  if (roles_.world.rank() == 0) {
    log::info(base::text("stopping after iteration ", progress_.iteration, " (", comm::to_string(reason), "): saving"));
  }
  save(true);
  context_.finish(curve(), progress_.rewards, last_);
  if (roles_.world.rank() == 0) log::info(MemoryCheck::compare(last_));
  if (roles_.world.rank() == 0) log::info("stopped with a checkpoint: start the same command again to go on (exit code 75)");
  return ExitCode::stopped_with_checkpoint;
}

ExitCode Loop::finish() {
  if (checkpoint_->committed() != progress_.iteration) save(true);
  if (options_.ckpt.save_hf != config::SaveHf::never) export_trained("hf");
  context_.finish(base::text("mean ", curve(), " by iteration"), progress_.rewards, last_);
  if (roles_.world.rank() == 0) {
    log::info(MemoryCheck::compare(last_));
    log::info(base::text("metrics:     ", (folder_.path() / "metrics.jsonl").string()));
    log::info(base::text("trace:       ", (folder_.path() / options_.trace.file).string(), " (open it in ui.perfetto.dev)"));
    log::info(base::text("checkpoints: ", folder_.checkpoints().string(), " (HDF5; look inside with h5ls -r)"));
  }
  return ExitCode::done;
}

}  // namespace trireme::driver
