// `trireme plan`: the memory that the job of a deck would hold and, by a model, how long an
// iteration would take, before it is submitted. One process, no MPI, no weights.
#include <algorithm>
#include <cstdio>

#include "trireme/config/deck.hpp"
#include "trireme/config/placement.hpp"
#include "trireme/job/core_share.hpp"
#include "trireme/job/node_limits.hpp"
#include "trireme/learn/model_start.hpp"
#include "trireme/machine/job_models.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/model/trained_head.hpp"
#include "trireme/plan/admission.hpp"
#include "trireme/plan/search.hpp"
#include "trireme/tools/dry_run.hpp"

namespace trireme::tools {
namespace {

void print(const std::string& line) { std::fputs((line + "\n").c_str(), stdout); }

std::string describe(const plan::ModelLayout& model) {
  const int64_t all = plan::elements(model), trained = plan::trainable_elements(model);
  return config::describe(model.shape, all) +
         (trained < all ? base::text(", ", trained, " of its ", all, " parameters are trained")
                        : "");
}

std::string gigabytes(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%8.2f", static_cast<double>(bytes) * 1e-9);
  return text;
}

void print_phases(const plan::Fullest& fullest, plan::Place place) {
  std::string names = "  phase", sizes = "  GB   ";
  for (int i = 0; i < plan::phase_count; ++i) {
    const auto phase = static_cast<plan::Phase>(i);
    char cell[32];
    std::snprintf(cell, sizeof cell, " %10s", plan::to_string(phase));
    names += cell;
    sizes += "   " + gigabytes(fullest.ledger.bytes(place, phase));
  }
  print(names);
  print(sizes);
}

void print_place(const plan::Fullest& fullest, plan::Place place, const char* title) {
  const plan::Phase phase = fullest.ledger.peak_phase(place);
  print(base::text(title, " (rank ", fullest.rank, "; GB = 1e9 bytes)"));
  print_phases(fullest, place);
  print(base::text("  at the peak, in ", plan::to_string(phase),
                   " (~: estimated from shapes, the others are what is allocated):"));
  for (const auto& entry : fullest.ledger.largest(place, phase, 64)) {
    print(base::text("  ", gigabytes(entry.bytes),
                     entry.accuracy == plan::Accuracy::estimate ? " ~ " : "   ", entry.owner, ": ",
                     entry.what));
  }
}

void print_verdict(bool fits, int64_t peak, int64_t capacity, const std::string& whose) {
  if (capacity > 0)
    print(base::text(fits ? "fits: " : "DOES NOT FIT: ", gigabytes(peak), " of ",
                     gigabytes(capacity), " GB of ", whose));
}

std::string seconds(double value) { return base::fixed(value, value < 10 ? 2 : 0); }

void print_times(const plan::Job& job) {
  if (job.machine.flops == 0 || job.command != config::Command::ppo) return;
  const plan::IterationTime time = plan::iteration_time(job);
  print("seconds of an iteration by a model of published systems, not measured with Trireme:");
  print(base::text(
      "  rollout ", seconds(time.rollout), ", reward ", seconds(time.reward),
      ", log-probs and values ", seconds(time.log_probs), ", train ", seconds(time.train),
      ", weight sync ", seconds(time.sync), "; together ", seconds(time.total), ", ",
      base::fixed(time.tokens_per_second / static_cast<double>(job.node_of_rank.size()), 0),
      " tokens/s a GPU"));
}

ExitCode print_search(const plan::Job& job, const plan::CutActor& cut) {
  const plan::SearchResult found = plan::search(job, cut, 10);
  print(base::text(
      found.tried, " settings tried, ", found.fitting,
      " fit; the fastest by the model of published systems, not measured with Trireme:"));
  print("   seconds  tokens/s/GPU  GPU GB");
  for (const auto& candidate : found.best) {
    char line[64];
    std::snprintf(line, sizeof line, "  %8s  %12.0f  %6.1f  ",
                  seconds(candidate.time.total).c_str(),
                  candidate.time.tokens_per_second / static_cast<double>(job.node_of_rank.size()),
                  1e-9 * static_cast<double>(candidate.fit.device.peak));
    print(line + candidate.deck);
  }
  return found.best.empty() ? ExitCode::configuration : ExitCode::done;
}

// "this": CPUs and the memory that is free here now.
plan::Machine find_machine(const std::string& name) {
  if (name.ends_with(".toml")) return plan::machine_of(config::load_machine_file(name));
  if (name == "this") return {.name = name, .host_bytes = job::available_memory().bytes};
  const plan::Machine* machine = plan::known_machine(name);
  VALIDATE(machine != nullptr, ExitCode::usage, "--machine ", name,
           " is not known: ", plan::known_machine_names(),
           ", this, or a file that ends in .toml (docs/user/plan.md)");
  return *machine;
}

// "auto": bf16 on GPUs, which multiply it natively. On CPUs the run decides by its processors and
// by probes: the type that needs more counts.
config::DType compute_type(const plan::Job& job) {
  const config::ComputeType asked = job.options.model.dtype;
  if (asked != config::ComputeType::automatic) return config::compute_type(asked);
  if (job.machine.device_bytes > 0) return config::DType::bf16;
  const auto peak = [&job](config::DType type) {
    plan::Job one = job;
    one.compute = type;
    return plan::fit(one).node_bytes;
  };
  const config::DType larger = peak(config::DType::bf16) > peak(config::DType::f32)
                                   ? config::DType::bf16
                                   : config::DType::f32;
  print(base::text("compute type: ", config::to_string(larger),
                   ", which needs more; the run chooses by its processors (model.dtype = "
                   "\"auto\")"));
  return larger;
}

ExitCode print_plan(const plan::Job& job, const plan::CutActor& cut) {
  const plan::Fit fit = plan::fit(job);
  const bool devices = job.machine.device_bytes > 0;
  if (devices) print_place(fit.device, plan::Place::device, "memory of the fullest GPU");
  if (fit.host.peak > 0)
    print_place(fit.host, plan::Place::host,
                devices ? "host memory of the rank with most" : "memory of the fullest rank");
  print_times(job);
  if (fit.host.peak > 0)
    print_verdict(fit.host_fits, fit.node_bytes, job.machine.host_bytes, "a node's memory");
  if (devices)
    print_verdict(fit.device_fits, fit.device.peak, job.machine.device_bytes, "a GPU's memory");
  if (fit.fits()) return ExitCode::done;
  for (const auto& remedy : plan::nearest_fits(job, cut, 6)) print("would fit: " + remedy.change);
  return ExitCode::configuration;
}

// The options that a run settles before its ledger is complete.
ExitCode print_kept_and_plan(plan::Job& job, config::Options& settled, const plan::CutActor& cut) {
  if (settled.train.keep_memory) {
    const int64_t layers = job.models.actor.shape.layers;
    settled.train.recompute = plan::fewest_recomputed(job);
    print(plan::describe_kept(layers - settled.train.recompute, layers));
  }
  const plan::CachesBesideTraining caches = plan::caches_beside_training(job);
  if (caches.bytes > 0) print(plan::describe(caches));
  job.keeps_caches = caches.stay;
  return print_plan(job, cut);
}

// The data of sft, rm and dpo look alike in a deck.
config::Command pipeline_of(const config::Options& options, const std::string& word,
                            std::vector<std::string>& assumed) {
  if (!word.empty()) return config::choice_of<config::Command>(word).value();
  if (options.data.dataset.empty() || !options.data.prompt_dataset.empty())
    return config::Command::ppo;
  assumed.emplace_back(
      "the deck has data.dataset: planned for dpo, which needs most of sft, rm and dpo (--command "
      "says which)");
  return config::Command::dpo;
}

// The critic, and reward models on the actor's base.
void print_other_models(const config::Options& options, const config::RoleMap& roles,
                        const plan::JobModels& models) {
  if (models.critic) {
    print(base::text("critic: ", describe(*models.critic),
                     models.critic->borrows() ? ", on the actor's base" : ""));
  }
  for (size_t i = 0; i < models.reward_models.size(); ++i) {
    if (!models.reward_models[i].borrows()) continue;
    const bool together = config::reward_shares_trainers(options, roles);
    print(base::text("reward model ", i, ": an adapter on the actor's base",
                     together ? ""
                              : ", which is on other ranks, or cut otherwise: it has a base of its "
                                "own (ranks.reward and train.shard_group like the trainers' share "
                                "it)"));
  }
}

}  // namespace

ExitCode run_plan(const config::Options& options, const PlanCommand& command) {
  const plan::Machine machine = find_machine(command.machine);
  std::vector<std::string> assumed;
  const config::Command pipeline = pipeline_of(options, command.pipeline, assumed);
  const std::vector<std::string> lacking =
      config::validate(options, pipeline, {.deck = command.deck, .shapes_suffice = true});
  const bool ppo = pipeline == config::Command::ppo;
  const int ranks = command.nodes * command.gpus_per_node;
  const auto node_of_rank = config::block_nodes(ranks, command.gpus_per_node);
  const auto roles = machine::planned_roles(
      config::resolve_ranks(options.ranks, ranks, node_of_rank), ranks, pipeline);
  if (ppo) config::check_placement(options, roles);
  const std::string critic = ppo && options.has_critic() ? learn::critic_path(options).path : "";
  const machine::ModelShapes shapes =
      machine::shapes_to_plan(options, pipeline, critic, command.deck, assumed);
  const plan::JobModels models = machine::job_models(options, pipeline, shapes);
  const model::ModelSpec actor = model::describe(shapes.actor, model::trained_head(pipeline));
  config::Options settled = options;
  plan::Job job{.options = settled,
                .roles = roles,
                .node_of_rank = node_of_rank,
                .models = models,
                .machine = machine,
                .command = pipeline,
                .length = {options.run.iterations, options.eval.dataset.empty() ? 0 : -1}};
  if (command.machine == "this") {
    const auto cores = job::physical_cores(job::cpus_of_process()).size();
    job.threads = std::max(1, static_cast<int>(cores) / command.gpus_per_node);
  }
  const auto cut = [&actor](int degree) { return model::tensor_parallel_layout(actor, degree); };

  print(base::text("job: ", command.nodes, command.nodes == 1 ? " node of " : " nodes of ",
                   command.gpus_per_node, " ", machine.name, ", ", ranks, " ranks"));
  for (const std::string& line : lacking) print("planned without it: " + line);
  for (const std::string& line : assumed) print("assumed: " + line);
  if (command.machine == "this")
    print(
        "machine: this node's CPUs and the memory that is free now; its GPUs, if it has some, are "
        "not looked at");
  print("actor: " + describe(models.actor));
  print_other_models(options, roles, models);
  job.compute = compute_type(job);
  if (command.search) {
    VALIDATE(ppo, ExitCode::usage, "--search is for ppo (it tries splits of its roles)");
    VALIDATE(machine.flops > 0, ExitCode::usage,
             "--search needs a machine whose speeds are known: --machine ",
             plan::known_machine_names(), ", or a file with all of them");
    return print_search(job, cut);
  }
  if (!ppo) {
    print(base::text("role: trainer    ranks ", config::rank_ranges(roles.trainer)));
    return print_kept_and_plan(job, settled, cut);
  }
  for (const auto& line : config::describe_placement(options, roles, node_of_rank))
    print("role: " + line);
  for (const auto& warning : config::placement_warnings(options, roles, node_of_rank))
    print("warning: " + warning);
  return print_kept_and_plan(job, settled, cut);
}

}  // namespace trireme::tools
