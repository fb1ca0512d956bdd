#include "torch/torch.hpp"

#include "driver/inputs.hpp"

#include <filesystem>
#include <string>

#include "trireme/base/text.hpp"
#include "trireme/learn/same_inputs.hpp"
#include "trireme/model/model_files.hpp"

namespace trireme::driver {
namespace {

// A folder that this rank does not see is another rank's to read.
void add_weights(Inputs& inputs, const std::string& key, const std::string& folder) {
  if (std::filesystem::exists(folder)) inputs.emplace_back(key, learn::digest_of_model(folder));
}

// What config.json says of a model with a folder of its own: weights of the same shapes compute something else with other frequencies. The key of the
// folder in ckpt.allow_changes is for this too.
void add_description(Inputs& inputs, const std::string& key, const std::string& folder) {
  if (std::filesystem::exists(folder)) inputs.emplace_back(key + ".config", learn::digest_of(model::open_model(folder).shape));
}

}  // namespace

Inputs common_inputs(const Run& run, const text::Tokenizer& tokenizer, const config::ModelShape& trained) {
  const config::Options& options = run.options;
  Inputs inputs{{"model.tokenizer", learn::digest_of(tokenizer)}, {options.model.path.empty() ? "model.shape" : "model.path", learn::digest_of(trained)}};
  if (run.command == config::Command::dpo || (run.command == config::Command::ppo && options.needs_reference())) {
    add_weights(inputs, "reference.path", options.reference.path.empty() ? options.model.path : options.reference.path);
    if (!options.reference.path.empty()) add_description(inputs, "reference.path", options.reference.path);
  }
  for (size_t i = 0; run.command == config::Command::ppo && i < options.reward.source.size(); ++i) {
    const config::RewardSource& source = options.reward.source[i];
    if (source.kind != config::RewardKind::model) continue;
    add_weights(inputs, base::text("reward.source.", i, ".path"), source.path);
    add_description(inputs, base::text("reward.source.", i, ".path"), source.path);
  }
  return inputs;
}

}  // namespace trireme::driver
