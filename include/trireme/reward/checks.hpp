// Checks of reward sources against the data, before a run starts and in --dry-run.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "trireme/config/options.hpp"
#include "trireme/data/prompt_set.hpp"

namespace trireme::reward {

// Compiles the patterns of all rules. Local. Throws UserError(configuration) with all that do not
// compile.
void check_rules(const config::Options& options);

// Compares every rule with the label of every record of the sets (those that are trained on and
// those of the evaluation). Local. Returns warnings: plugins that get no labels. Throws
// UserError(bad_data) with file and line of up to ten records, and how many more there are.
std::vector<std::string> check_labels(const config::Options& options,
                                      std::span<const data::PromptSet* const> sets);

// Starts each plugin once and asks it for the reward of an empty answer to the first record of
// every data file, within its `timeout`; a line for each says what it answered. Local. Throws the
// UserErrors of a run.
std::vector<std::string> try_plugins(const config::Options& options,
                                     std::span<const data::PromptSet* const> sets);

}  // namespace trireme::reward
