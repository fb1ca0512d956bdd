#include "trireme/tools/dry_run.hpp"

#include <algorithm>
#include <cstdio>

#include "trireme/config/refuse.hpp"
#include "trireme/config/placement.hpp"

namespace trireme::tools {
namespace {

void print_line(const std::string& line) { std::fputs((line + "\n").c_str(), stdout); }

}  // namespace

ExitCode run_dry(const config::Options& options, config::Command command, const DryRun& machine) {
  config::refuse_crash_in_production(options);
  const int per_node = machine.ranks_per_node > 0 ? std::min(machine.ranks_per_node, machine.ranks) : machine.ranks;
  const auto node_of_rank = config::block_nodes(machine.ranks, per_node);
  config::Options asked = options;
  if (command != config::Command::ppo) asked.ranks = {};  // every rank trains
  const auto roles = config::resolve_ranks(asked.ranks, machine.ranks, node_of_rank);
  config::check_placement(asked, roles);

  const int nodes = node_of_rank.back() + 1;
  print_line(base::text("deck: valid for ", config::to_string(command)));
  print_line(base::text("ranks: ", machine.ranks, " on ", nodes, nodes == 1 ? " node" : " nodes", ", ", per_node, " a node"));
  const auto lines = config::describe_placement(asked, roles, node_of_rank);
  if (command == config::Command::ppo) {
    for (const auto& line : lines) print_line("role: " + line);
    for (const auto& warning : config::placement_warnings(asked, roles, node_of_rank)) print_line("warning: " + warning);
  } else {
    print_line("role: " + lines.front());
  }
  return ExitCode::done;
}

}  // namespace trireme::tools
