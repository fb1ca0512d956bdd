// A job without MPI: `trireme ppo DECK --dry-run --ranks N --ranks-per-node R` and
// `trireme plan`.
#pragma once

#include <filesystem>
#include <string>

#include "trireme/base/error.hpp"
#include "trireme/config/options.hpp"

namespace trireme::tools {

// Whether reward plugins are started and asked once.
enum class Plugins { tried, left_alone };

struct DryRun {
  int ranks = 1;
  int ranks_per_node = 0;  // 0: all on one node
  Plugins plugins = Plugins::tried;
};

// Checks what a run checks before it starts and prints the role map on standard output, with what
// of it costs time, and how many records the data have: reads config.json, headers of weights,
// tokenizer and all data, compares labels with the rules and tries the plugins. One process. The
// options are validated already. Throws UserErrors as the run would.
ExitCode run_dry(const config::Options& options, config::Command command, const DryRun& machine);

// `trireme plan DECK --nodes N --gpus-per-node G --machine h100`: the memory of the fullest rank of
// a job by phase and kind.
struct PlanCommand {
  int nodes = 1;
  int gpus_per_node = 8;
  std::string machine = "h100";
  bool search = false;         // go through settings instead and print the fastest that fit
  std::string pipeline;        // ppo, sft, rm, dpo; empty: by the deck's data
  std::filesystem::path deck;  // plan.* may be relative to its folder
};
// Prints the ledger on standard output. One process, reads config.json files only, no data and no
// weights; a model that is not here is planned by what the deck implies
// (machine::shapes_to_plan), and that is said. Validates the options. done where it fits,
// configuration where it does not; throws UserError as the run would.
ExitCode run_plan(const config::Options& options, const PlanCommand& command);

}  // namespace trireme::tools
