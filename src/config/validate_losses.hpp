// Mistakes in the keys of a loss, an adapter, an environment or a reward source, a line each; see
// validate.cpp.
#pragma once

#include <string>
#include <vector>

#include "trireme/config/options.hpp"

namespace trireme::config {

std::vector<std::string> policy_loss_mistakes(const Options& options);
std::vector<std::string> estimator_mistakes(const Options& options);
std::vector<std::string> dpo_mistakes(const Options& options);
std::vector<std::string> distill_mistakes(const Options& options, Command command);
std::vector<std::string> lora_mistakes(const Options& options);
std::vector<std::string> environment_mistakes(const Options& options);
// Keys and passwords among the arguments of a program; `key` is the deck's key of its command.
std::vector<std::string> command_mistakes(const std::string& key, const Strings& command);

// Of a reward source; `at` is "reward.source.0.".
std::vector<std::string> keys_of_other_kinds(const std::string& at, const RewardSource& source);
std::vector<std::string> judge_mistakes(const std::string& at, const RewardSource& judge);
// Of all judges together.
std::vector<std::string> vote_mistakes(const Options& options);

}  // namespace trireme::config
