// Models of a pipeline beside the one that it trains. One rule for the run, its plan and its
// trial.
#pragma once

#include "trireme/config/options.hpp"

namespace trireme::config {

// Whether it compares with a frozen reference.
bool needs_reference(const Options& options, Command command);
// Whether that is the trained model without its adapter, or a model of its own.
bool reference_is_actor(const Options& options, Command command);
inline bool has_reference_model(const Options& options, Command command) {
  return needs_reference(options, command) && !reference_is_actor(options, command);
}
// Whether the trainers have it, who run it in their steps, or the reward ranks.
inline bool trainers_have_reference(const Options& options, Command command) {
  return command != Command::ppo || options.algo.distill.in_steps();
}

// The folder of the model that critic.lora adapts; empty: model.shape.
inline const std::string& critic_base(const Options& options) {
  return options.critic.path.empty() ? options.model.path : options.critic.path;
}
// Whether actor and critic are adapters on one base, which is then in memory once.
bool critic_shares_base(const Options& options);
// Whether two paths name one folder: by their text, or by what is there.
bool same_folder(const std::string& a, const std::string& b);

// Kind of a row of data.dataset.
enum class RowKind : uint8_t { example, pair, labelled };
RowKind row_kind(const Options& options, Command command);

}  // namespace trireme::config
