#include "torch/torch.hpp"

#include "driver/ppo_roles.hpp"

#include <algorithm>
#include <limits>

#include "driver/role_metrics.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/text.hpp"
#include "trireme/config/models_of.hpp"
#include "trireme/config/placement.hpp"
#include "trireme/learn/datasets.hpp"
#include "trireme/learn/sharded_models.hpp"
#include "trireme/machine/device.hpp"
#include "trireme/machine/start_log.hpp"
#include "trireme/plan/decisions.hpp"
#include "trireme/plan/model_bytes.hpp"
#include "trireme/report/exports.hpp"
#include "trireme/rollout/generation_metrics.hpp"
#include "trireme/trace/region.hpp"
#include "trireme/zero/replica_check.hpp"

namespace trireme::driver {

PpoRoles::PpoRoles(Run& of_run, const text::Tokenizer& tokenizer, const data::PromptSet& prompts,
                   const std::optional<data::PromptSet>& held_out, int64_t iterations,
                   int64_t schedule_steps)
    : run(of_run), actor_start(learn::actor_start(run.options)) {
  const config::Options& options = run.options;
  const comm::Roles& roles = run.roles;
  tokenizer.check_model(actor_start.spec.shape.vocab);
  if (options.has_critic()) start_critic();
  learn::check_positions(options, actor_start, critic_start);
  actor_files_ = learn::files_for_exports(options, roles.world);
  if (exports_critic()) critic_files_ = learn::critic_files_for_exports(options, roles.world);
  start_programs(tokenizer);
  machine::use_device(run.device, options.train.deterministic, roles.world);  // after the programs
  const learn::SequenceLimits limits = learn::sequence_limits(options, prompts, held_out);
  run.memory.admit(
      options,
      {.command = run.command,
       .actor = actor_start.spec,
       .critic = critic_start ? std::optional(critic_start->spec.shape) : std::nullopt,
       .length = {.iterations = iterations,
                  .evaluated = held_out ? held_out->size() * options.eval.n_samples_per_prompt : 0,
                  .longest = limits.longest,
                  .shortest_prompt = limits.shortest_prompt}},
      roles, run.device);
  if (roles.trainer) {
    const learn::TrainedModels models{actor_start.spec,
                                      critic_start ? &critic_start->spec : nullptr};
    trainer = std::make_unique<learn::Trainer>(
        options, roles, models, machine::ComputeResources{run.device, run.threads.trainer},
        run.memory, schedule_steps);
  }
  if (roles.reward) {
    const bool together = config::reward_shares_trainers(options, roles.map);
    scorer->make_sources(generate::engine_options(options.generate, run.threads.reward.count,
                                                  run.threads.reward.cpus),
                         together ? &trainer->actor() : nullptr);
  }
  start_reference();
  const auto shared = shared_weights(options, roles, trainer ? &trainer->actor() : nullptr);
  if (roles.generator) {
    generator = std::make_unique<rollout::Generator>(
        options, roles,
        rollout::Policy{model::without_dropout(actor_start.spec), tokenizer, shared},
        machine::ComputeResources{run.device, run.threads.generator}, environments.get());
  }
  weight_bridge_ =
      std::make_unique<WeightBridge>(options, roles, actor_start.spec, run.device,
                                     !roles.world.all(!roles.generator || shared.empty()));
  if (run.leads()) log::detail(weight_bridge_->describe());
  start_generators(prompts);  // measures the memory that is left
  compare_numerics();
  log_links();
}

void PpoRoles::start_programs(const text::Tokenizer& tokenizer) {
  const comm::Roles& roles = run.roles;
  const auto logs = run.folder.path() / "logs";
  if (roles.reward) {
    scorer = std::make_unique<reward::Scorer>(run.options,
                                              reward::ModelRanks(roles.rewards, roles.rings),
                                              tokenizer, logs, run.device, &run.progress);
  }
  if (run.options.environment.wanted() && roles.leads_replica())
    environments =
        std::make_unique<environment::Environments>(run.options, logs, roles.world.rank());
}

void PpoRoles::log_links() const {
  const comm::Roles& roles = run.roles;
  using Group = std::optional<comm::CommView>;
  machine::log_device_links(
      "trainers", roles.trainer ? Group(roles.trainers.along(comm::Axis::shard)) : Group(),
      roles.world, run.device);
  machine::log_device_links(
      "a replica", roles.generator ? Group(roles.generators.along(comm::Axis::tensor)) : Group(),
      roles.world, run.device);
}

void PpoRoles::start_critic() {
  critic_start = learn::critic_start(run.options, actor_start);
  const auto [path, passed_over] = learn::critic_path(run.options);
  if (passed_over.empty() || !run.leads()) return;
  log::warning(base::text("the critic starts from ", path.empty() ? "the actor's shape" : path,
                          ", not from the reward model ", passed_over,
                          ", to which the policy's token ids are other tokens: critic.path says "
                          "where else to start"));
}

void PpoRoles::start_reference() {
  const bool teaches = config::trainers_have_reference(run.options, run.command);
  if (!config::has_reference_model(run.options, run.command) || (teaches ? !trainer : !scorer))
    return;
  const learn::ModelStart start = learn::reference_start(run.options, actor_start);
  if (teaches)
    trainer->add_teacher(learn::make_reference(run.options, run.roles, start, run.device));
  else scorer->add_reference(start.spec, start.reader());
}

void PpoRoles::start_generators(const data::PromptSet& prompts) {
  const comm::Roles& roles = run.roles;
  const std::vector<int> here = machine::ranks_on_device(roles.world, roles.topology, run.device);
  const bool beside_trainers =
      !run.device.is_cpu() && machine::count_here(here, roles.map.trainer) > 0;
  caches_give_way_ =
      generator && plan::caches_give_way(run.options, trainer != nullptr, beside_trainers);
  roles.world.barrier();      // all roles of all ranks have their weights: now memory is measured
  run.threads.trainer.use();  // the generator compares its sums with those of training, made as
                              // training makes them
  if (generator) {
    const int64_t judges = scorer ? scorer->judge_cache_bytes() : 0;  // taken when they write
    generator->start(std::max<int64_t>(0, machine::free_memory(run.device) - judges) /
                     std::max<int64_t>(1, machine::count_here(here, roles.map.generator)));
    if (roles.world.rank() == roles.map.generator.front()) {
      for (const auto& line : generator->describe()) log::detail("generator: " + line);
    }
  }
  const int64_t least =
      roles.world.min(generator ? generator->kv_bytes() : std::numeric_limits<int64_t>::max());
  const auto shortage = plan::kv_shortage(
      plan::kv_need(run.options, rollout::mean_prompt_tokens(prompts), roles.replicas()), least,
      plan::kv_bytes_per_token(actor_start.spec.shape, roles.tensor_parallel(),
                               config::bytes_per_element(run.options.model.compute())));
  if (run.leads() && !shortage.empty()) log::warning(shortage);
}

void PpoRoles::compare_numerics() {
  std::vector<std::string> differences;
  std::string orders;
  if (generator) differences = generator->differences_from_training();
  if (run.device.is_cpu() && (trainer || generator)) {
    orders = learn::summation_orders(actor_start.spec.shape, run.options.model.compute(),
                                     run.options.model.logits());
  }
  const learn::OldLogProbs old_log_probs(
      run.options, learn::bit_differences(run.roles.world, differences, orders));
  if (trainer) trainer->set_old_log_probs(old_log_probs);
  if (run.leads()) log::info(old_log_probs.describe());
}

void PpoRoles::load() {
  if (!trainer) return;
  trainer->actor().load(actor_start.reader());
  if (trainer->critic()) trainer->critic()->load(critic_start->reader());
  trainer->start_average();
}

std::vector<SavedModel> PpoRoles::saved() const {
  std::vector<SavedModel> models;
  if (critic_start) {
    models.push_back({"critic", &critic_start->spec, trainer ? trainer->critic() : nullptr, false,
                      &learn::TrainingState::critic_steps});
  }
  models.push_back({"actor", &actor_start.spec, trainer ? &trainer->actor() : nullptr,
                    run.options.train.enable_ema});
  return models;
}

void PpoRoles::sync_weights(int64_t version) {
  last_sync_ = weight_bridge_->totals(weight_bridge_->run(
      version, trainer ? &trainer->actor() : nullptr, generator ? &generator->weights() : nullptr));
  if (!run.leads()) return;
  if (last_sync_.moved()) {
    log::detail(weightsync::describe(last_sync_));
  } else {
    log::debug(
        base::text("weight sync ", version,
                   ": generators read the trainers' weights in shared memory, 0 bytes copied, in ",
                   base::human_seconds(last_sync_.seconds)));
  }
}

void PpoRoles::release_caches() {
  if (!caches_give_way_) return;
  if (run.memory.keeps_caches()) {
    trace::count("kv_cache_bytes_kept", generator->memory().kv_cache_peak);
    return;
  }
  const int64_t held = machine::held_memory(run.device);
  generator->release_cache();
  const int64_t caches = held - machine::held_memory(run.device);
  // All of them come with the next sync.
  trace::count("generator_weight_bytes_given_back", generator->weights().release());
  if (!run.device.is_cpu() && !trainer)
    machine::give_back_unused(run.device);  // another process waits for it
  trace::count("kv_cache_bytes_given_back", std::max<int64_t>(0, caches));
}

void PpoRoles::add_metrics(report::IterationMetrics& metrics) const {
  const trace::Phase phase{"report", metrics.iteration};
  add_thread_metrics(run.roles.world, run.threads, trainer.get(), generator.get(), metrics);
  if (const int64_t healed = weight_bridge_->healed(); healed > 0)
    metrics.set("healed_syncs", static_cast<double>(healed));
  add_sync_metrics(last_sync_, metrics);
  if (run.options.has_plugins()) reward::add_plugin_metrics(run.roles.world, scorer.get(), metrics);
  if (run.options.has_judges()) reward::add_judge_metrics(run.roles.world, scorer.get(), metrics);
  if (run.options.environment.wanted()) {
    rollout::add_environment_metrics(
        run.roles.world, run.options.environment,
        generator ? generator->take_environment_work() : rollout::EnvironmentWork{}, metrics);
  }
  std::vector<ModelMemory> models = scorer ? scorer->memory() : std::vector<ModelMemory>{};
  if (trainer) {
    models.emplace_back("actor", trainer->actor().memory());
    if (trainer->critic()) models.emplace_back("critic", trainer->critic()->memory());
    if (trainer->teacher()) models.emplace_back("reference", trainer->teacher()->memory());
  }
  const auto work =
      run.roles.leads_replica() ? std::optional(generator->take_work()) : std::nullopt;
  rollout::add_generation_metrics(run.roles.world, work ? &*work : nullptr,
                                  run.options.generate.max_batch, metrics);
  const auto memory = generator ? std::optional(generator->memory()) : std::nullopt;
  add_memory_metrics(run.roles, std::move(models), memory ? &*memory : nullptr, metrics);
}

void PpoRoles::check_replicas(int64_t iteration) const {
  const int64_t every = run.options.train.replica_check;
  if (every == 0 || iteration % every != 0 || run.roles.trainers.size(comm::Axis::data) == 1)
    return;
  const comm::CommView replicas = run.roles.trainers.along(comm::Axis::data);
  const int rank = run.roles.world.rank();
  zero::require_equal_replicas(replicas, rank, "actor", trainer->actor());
  if (trainer->critic()) zero::require_equal_replicas(replicas, rank, "critic", *trainer->critic());
}

void PpoRoles::export_trained(const std::string& name) const {
  const config::Options& options = run.options;
  zero::ShardedModel* actor = trainer ? &trainer->actor() : nullptr;
  const model::ModelSpec& spec = actor_start.spec;
  const auto folder = run.folder.path();
  const model::ModelExport::Options how{.type = run.export_type(spec), .kept = actor_files_};
  learn::export_model(run.roles, actor_start, actor, folder / name, how);
  if (options.train.enable_ema) {
    learn::export_model(run.roles, actor_start, actor, folder / (name + report::ema_suffix), how,
                        learn::Weights::average);
  }
  if (!exports_critic()) return;
  learn::export_model(run.roles, *critic_start, trainer ? trainer->critic() : nullptr,
                      folder / (name + report::critic_suffix),
                      {.type = run.export_type(critic_start->spec), .kept = critic_files_});
}

}  // namespace trireme::driver
