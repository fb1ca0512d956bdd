// Mistakes in the keys of a loss, or of an adapter, a line each; see validate.cpp.
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

}  // namespace trireme::config
