// `trireme plan`: what the job of a deck would hold in memory and, by a model, how long an
// iteration would take, before it is submitted. One process, no MPI, no weights.
#include <algorithm>
#include <cstdio>

#include "trireme/config/placement.hpp"
#include "trireme/config/refuse.hpp"
#include "trireme/job/node_limits.hpp"
#include "trireme/learn/model_start.hpp"
#include "trireme/machine/memory_check.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/plan/admission.hpp"
#include "trireme/plan/search.hpp"
#include "trireme/tools/dry_run.hpp"

namespace trireme::tools {
namespace {

void print(const std::string& line) { std::fputs((line + "\n").c_str(), stdout); }

model::ModelSpec described(const std::string& path, model::HeadKind head) {
  return model::describe(config::load_model_shape(path), head);
}

std::string trained_path(const config::Options& options) {
  return options.model.path.empty() ? options.model.shape : options.model.path;
}

std::optional<model::ModelSpec> critic_of(const config::Options& options) {
  if (!options.has_critic()) return std::nullopt;
  const std::string path = learn::critic_path(options).path;
  return described(path.empty() ? trained_path(options) : path, model::HeadKind::score);
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
  if (job.machine.flops == 0) return;
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

// GPUs multiply bf16 natively: "auto" is bf16 there. On CPUs it depends on the processor: the
// larger type counts.
config::DType compute_type(const config::Options& options, const plan::Machine& machine) {
  const auto wide =
      machine.device_bytes > 0 ? config::ComputeType::fp32 : config::ComputeType::automatic;
  return options.model.dtype == config::ComputeType::fp32 || options.model.dtype == wide
             ? config::DType::f32
             : config::DType::bf16;
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

}  // namespace

ExitCode run_plan(const config::Options& options, const PlanCommand& command) {
  config::refuse_crash_in_production(options);
  const plan::Machine machine = find_machine(command.machine);
  const int ranks = command.nodes * command.gpus_per_node;
  const auto node_of_rank = config::block_nodes(ranks, command.gpus_per_node);
  const auto roles = config::resolve_ranks(options.ranks, ranks, node_of_rank);
  config::check_placement(options, roles);
  const model::ModelSpec actor = described(trained_path(options), model::HeadKind::language);
  const auto critic = critic_of(options);
  const plan::JobModels models =
      machine::job_models(options, config::Command::ppo, actor, critic ? &*critic : nullptr);
  config::Options settled = options;
  plan::Job job{settled, roles, node_of_rank, models, machine, compute_type(options, machine)};
  const auto cut = [&actor](int degree) { return model::tensor_parallel_layout(actor, degree); };

  print(base::text("job: ", command.nodes, command.nodes == 1 ? " node of " : " nodes of ",
                   command.gpus_per_node, " ", machine.name, ", ", ranks, " ranks"));
  if (command.machine == "this")
    print(
        "machine: this node's CPUs and the memory that is free now; its GPUs, if it has some, are "
        "not looked at");
  print("actor: " + config::describe(models.actor.shape, plan::elements(models.actor)));
  if (models.critic)
    print("critic: " + config::describe(models.critic->shape, plan::elements(*models.critic)));
  if (command.search) {
    VALIDATE(machine.flops > 0, ExitCode::usage,
             "--search needs a machine whose speeds are known: --machine ",
             plan::known_machine_names(), ", or a file with all of them");
    return print_search(job, cut);
  }
  for (const auto& line : config::describe_placement(options, roles, node_of_rank))
    print("role: " + line);
  for (const auto& warning : config::placement_warnings(options, roles, node_of_rank))
    print("warning: " + warning);
  if (options.train.keep_memory) {
    const int64_t layers = actor.shape.layers;
    settled.train.recompute = plan::fewest_recomputed(job);
    print(plan::describe_kept(layers - settled.train.recompute, layers));
  }
  const plan::CachesBesideTraining caches = plan::caches_beside_training(job);
  if (caches.bytes > 0) print(plan::describe(caches));
  job.keeps_caches = caches.stay;
  return print_plan(job, cut);
}

}  // namespace trireme::tools
