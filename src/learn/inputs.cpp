#include "torch/torch.hpp"

#include "trireme/learn/inputs.hpp"

#include <algorithm>
#include <filesystem>
#include <string>

#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/text.hpp"
#include "trireme/config/changes.hpp"
#include "trireme/config/models_of.hpp"
#include "trireme/learn/file_digest.hpp"
#include "trireme/learn/model_start.hpp"
#include "trireme/learn/same_inputs.hpp"
#include "trireme/model/adapter_files.hpp"
#include "trireme/model/model_files.hpp"

namespace trireme::learn {
namespace {

// A folder that this rank does not see is another rank's to read.
void add_weights(Inputs& inputs, const std::string& key, const std::string& folder) {
  if (std::filesystem::exists(folder)) inputs.emplace_back(key, digest_of_model(folder));
}

// What config.json says of a model with a folder of its own: weights of the same shapes compute
// something else with other frequencies. The key of the folder in ckpt.allow_changes is for this
// too.
void add_description(Inputs& inputs, const std::string& key, const std::string& folder) {
  if (std::filesystem::exists(folder))
    inputs.emplace_back(key + ".config", digest_of(model::open_model(folder).shape));
}

// How a reward model reads prompts and answers.
void add_reading(Inputs& inputs, const std::string& key, const std::string& path) {
  const std::filesystem::path folder = model::tokenizer_folder(path);
  if (std::filesystem::exists(folder / "tokenizer.json"))
    inputs.emplace_back(key + ".tokenizer", digest_of_reading(text::Tokenizer::load(folder)));
}

// Digests of two kinds say nothing of each other: "kind:" stands in front of later ones.
std::string kind_of(const std::string& digest) { return digest.substr(0, digest.find(':') + 1); }

// Names in `inputs` whose digest is another one than in `saved`; of unsaved ones nothing is known.
std::vector<std::string> changed_inputs(const Inputs& saved, const Inputs& inputs) {
  std::vector<std::string> out;
  for (const auto& [name, digest] : inputs) {
    const auto found = std::find_if(saved.begin(), saved.end(),
                                    [&, &key = name](const auto& one) { return one.first == key; });
    if (found != saved.end() && found->second != digest &&
        kind_of(found->second) == kind_of(digest))
      out.push_back(name);
  }
  return out;
}

bool is_allowed(const std::string& key, const config::Strings& allowed) {
  return std::any_of(allowed.begin(), allowed.end(), [&](const std::string& one) {
    return key == one || (key.starts_with(one) && (one.ends_with('.') || key[one.size()] == '.'));
  });
}

}  // namespace

Inputs common_inputs(const config::Options& options, config::Command command,
                     const text::Tokenizer& tokenizer, const model::ModelSpec& trained,
                     const model::ModelSpec* critic) {
  Inputs inputs{
      {"model.tokenizer", digest_of(tokenizer)},
      {options.model.path.empty() ? "model.shape" : "model.path", digest_of(trained.shape)}};
  const auto has_frozen = [](const model::ModelSpec& spec) {
    return spec.trainable_elements() < spec.elements();
  };
  if (has_frozen(trained)) add_weights(inputs, frozen_of_actor, options.model.path);
  if (critic != nullptr && has_frozen(*critic))
    add_weights(inputs, frozen_of_critic, critic_path(options).path);
  if (config::needs_reference(options, command)) {
    add_weights(inputs, "reference.path",
                options.reference.path.empty() ? options.model.path : options.reference.path);
    if (!options.reference.path.empty())
      add_description(inputs, "reference.path", options.reference.path);
  }
  for (size_t i = 0; command == config::Command::ppo && i < options.reward.source.size(); ++i) {
    const config::RewardSource& source = options.reward.source[i];
    if (source.path.empty()) continue;  // it has no model
    add_weights(inputs, base::text("reward.source.", i, ".path"), source.path);
    add_description(inputs, base::text("reward.source.", i, ".path"), source.path);
    add_reading(inputs, base::text("reward.source.", i, ".path"), source.path);
  }
  return inputs;
}

void check_changes(const RunContent& saved, const RunContent& now, const config::Strings& allowed) {
  std::vector<config::ChangedKey> changes;
  try {
    changes = config::changed_keys(config::parse_deck(saved.deck, "the checkpoint's deck"),
                                   config::parse_deck(now.deck));
  } catch (const UserError& error) {
    log::warning(
        base::text("the deck in the checkpoint is one of another version, so what has changed "
                   "since cannot be listed (",
                   error.what(), ")"));
  }
  std::vector<std::string> refused;
  for (const config::ChangedKey& change : changes) {
    if (change.kind == config::KeyKind::meaning && !is_allowed(change.key, allowed))
      refused.push_back(change.key);
  }
  std::string meaning = config::describe(changes, config::KeyKind::meaning);
  for (const std::string& name : changed_inputs(saved.inputs, now.inputs)) {
    meaning += base::text(meaning.empty() ? "" : "\n", name,
                          ": the files have other content than when the run began");
    if (!is_allowed(name, allowed)) refused.push_back(name);
  }
  const std::string conduct = config::describe(changes, config::KeyKind::conduct);
  if (!conduct.empty())
    log::info("changed since the checkpoint, without a change of what is computed:\n" + conduct);
  VALIDATE(refused.empty(), ExitCode::configuration,
           "this deck computes something else than the checkpoint's; changed keys:\n", meaning,
           "\nIf that is meant, start once with ckpt.allow_changes = [\"",
           base::join(refused, "\", \""), "\"]; a new run belongs into another run.dir");
  if (!meaning.empty())
    log::warning(
        "this deck computes something else than the checkpoint's, as ckpt.allow_changes allows; "
        "changed keys:\n" +
        meaning);
}

}  // namespace trireme::learn
