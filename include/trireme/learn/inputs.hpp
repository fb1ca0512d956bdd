// A run's inputs as digests by deck key: a checkpoint keeps them beside the deck, and a later
// start notices other files under the same names.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "trireme/config/deck.hpp"
#include "trireme/config/options.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::learn {

using Inputs = std::vector<std::pair<std::string, std::string>>;

// The names of the digests of the weights that frozen parameters have.
inline constexpr const char* frozen_of_actor = "model.path.weights";
inline constexpr const char* frozen_of_critic = "critic.path.weights";

// Inputs of every command beside its rows: the tokenizer, what config.json says of the model that
// is trained, its weights and the critic's where some are frozen (checkpoints do not hold those),
// weights and config.json of the reference and of reward models, and how reward models read texts.
// `critic` may be null. Local, for rank 0.
Inputs common_inputs(const config::Options& options, config::Command command,
                     const text::Tokenizer& tokenizer, const model::ModelSpec& trained,
                     const model::ModelSpec* critic);

// What decides what a run computes.
struct RunContent {
  std::string deck;  // complete TOML
  Inputs inputs;     // empty: not known
};

// Differences from the inputs at the save: conduct is told; meaning is refused,
// UserError(configuration) with all changed keys, unless `allowed` (ckpt.allow_changes) has its key
// or the table that it lies in. Local, for rank 0.
void check_changes(const RunContent& saved, const RunContent& now, const config::Strings& allowed);

}  // namespace trireme::learn
