// Mistakes in the keys of a loss, an adapter or an environment, a line each; see validate.cpp.
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

}  // namespace trireme::config
