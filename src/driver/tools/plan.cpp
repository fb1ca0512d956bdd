// `trireme plan`: what the job of a deck would hold in memory, before it is submitted. One process, no MPI, no weights.
#include <algorithm>
#include <cstdio>

#include "driver/judge.hpp"
#include "driver/refuse.hpp"
#include "trireme/config/placement.hpp"
#include "trireme/driver/dry_run.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/plan/job.hpp"

namespace trireme::driver {
namespace {

void print(const std::string& line) { std::fputs((line + "\n").c_str(), stdout); }

plan::ModelLayout layout(const model::ModelSpec& spec) {
  plan::ModelLayout out{spec.shape, spec.tensors(), {}};
  for (const auto& stage : spec.stages) out.stages.push_back(stage.parameters);
  return out;
}

model::ModelSpec described(const std::string& path, model::HeadKind head) { return model::describe(config::load_model_shape(path), head); }

plan::JobModels models_of(const config::Options& options) {
  plan::JobModels out;
  const std::string trained = options.model.path.empty() ? options.model.shape : options.model.path;
  const model::ModelSpec actor = described(trained, model::HeadKind::language);
  out.actor = layout(actor);
  out.slices = model::tensor_parallel_layout(actor, static_cast<int>(options.generate.tensor_parallel));
  std::string critic = options.critic.path;
  for (const auto& source : options.reward.source) {
    if (source.kind != config::RewardKind::model) continue;
    out.reward_models.push_back(layout(described(source.path, model::HeadKind::score)));
    if (critic.empty()) critic = source.path;
  }
  if (options.has_critic()) out.critic = layout(described(critic.empty() ? trained : critic, model::HeadKind::score));
  if (needs_reference(options)) {
    out.reference = options.reference.path.empty() ? out.actor : layout(described(options.reference.path, model::HeadKind::language));
  }
  return out;
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
  print(base::text("  at the peak, in ", plan::to_string(phase), " (~: estimated from shapes, the others are what is allocated):"));
  for (const auto& entry : fullest.ledger.largest(place, phase, 64)) {
    print(base::text("  ", gigabytes(entry.bytes), entry.accuracy == plan::Accuracy::estimate ? " ~ " : "   ", entry.owner, ": ", entry.what));
  }
}

ExitCode verdict(const plan::Fullest& fullest, plan::Place place, int64_t capacity, const std::string& whose) {
  if (capacity == 0) return ExitCode::done;
  const bool fits = fullest.peak <= capacity;
  print(base::text(fits ? "fits: " : "DOES NOT FIT: ", gigabytes(fullest.peak), " of ", gigabytes(capacity), " GB of ", whose,
                   fits ? "" : ": use more ranks, fewer tokens (train.micro_batch_tokens), or less for KV pages (generate.kv_memory)"));
  return fits || place == plan::Place::host ? ExitCode::done : ExitCode::configuration;
}

}  // namespace

ExitCode run_plan(const config::Options& options, const PlanCommand& command) {
  refuse_unbuilt(options, config::Command::ppo);
  const plan::Machine* machine = plan::known_machine(command.machine);
  VALIDATE(machine != nullptr, ExitCode::usage, "--machine ", command.machine, " is not known: ", plan::known_machine_names());
  const int ranks = command.nodes * command.gpus_per_node;
  const auto node_of_rank = config::block_nodes(ranks, command.gpus_per_node);
  const auto roles = config::resolve_ranks(options.ranks, ranks, node_of_rank);
  config::check_placement(options, roles);
  const plan::JobModels models = models_of(options);
  // GPUs multiply bf16 natively: "auto" is bf16 there.
  const config::DType compute = options.model.dtype == config::ComputeType::fp32 ? config::DType::fp32 : config::DType::bf16;
  const plan::Job job{options, roles, node_of_rank, models, *machine, compute};

  print(base::text("job: ", command.nodes, " nodes of ", command.gpus_per_node, " ", machine->name, ", ", ranks, " ranks"));
  print("actor: " + config::describe(models.actor.shape));
  if (models.critic) print("critic: " + config::describe(models.critic->shape));
  for (const auto& line : config::describe_placement(options, roles, node_of_rank)) print("role: " + line);
  const plan::Fullest device = plan::fullest_rank(job, plan::Place::device), host = plan::fullest_rank(job, plan::Place::host);
  print_place(device, plan::Place::device, "memory of the fullest GPU");
  if (host.peak > 0) print_place(host, plan::Place::host, "host memory of that GPU's rank");
  if (host.peak > 0) verdict({host.rank, host.ledger, host.peak * command.gpus_per_node}, plan::Place::host, machine->host_bytes, "a node's host memory");
  return verdict(device, plan::Place::device, machine->device_bytes, "a GPU's memory");
}

}  // namespace trireme::driver
