// Mistakes in the keys of an adapter.
#include "config/validate_losses.hpp"
#include "trireme/base/text.hpp"

namespace trireme::config {

std::vector<std::string> lora_mistakes(const Options& options) {
  const LoraOptions& lora = options.actor.lora;
  std::vector<std::string> mistakes;
  const auto refuse_if = [&](bool wrong, const auto&... parts) {
    if (wrong) mistakes.push_back(base::text(parts...));
  };
  LoraOptions of_path;
  of_path.path = lora.path;
  const bool others = lora != of_path;
  refuse_if(!lora.path.empty() && others, "actor.lora.path = ", lora.path,
            " has rank, alpha, targets and modules of its own (adapter_config.json): leave the "
            "other keys of actor.lora out");
  refuse_if(lora.path.empty() && lora.rank == 0 && others,
            "actor.lora has keys, but no rank and no path (rank = 0 trains the model's own "
            "weights): set actor.lora.rank, or leave them out");
  if (!lora.wanted()) return mistakes;
  refuse_if(!lora.path.empty() && options.model.path.empty(), "actor.lora.path = ", lora.path,
            " needs the model that it was made on (model.shape is filled at random): set "
            "model.path");
  refuse_if(options.model.path.ends_with(".gguf"),
            "actor.lora with model.path = ", options.model.path,
            " (adapters on quantised bases, QLoRA, are not supported): convert the file to a model "
            "folder (trireme convert)");
  refuse_if(options.generate.weights != RolloutWeights::model,
            "generate.weights = \"int8\" with actor.lora (adapters on quantised bases are not "
            "supported): set generate.weights = \"model\"");
  refuse_if(options.reference.sync_every > 0,
            "reference.sync_every = ", options.reference.sync_every,
            " with actor.lora (the reference is the model without its adapter): set it to 0");
  return mistakes;
}

}  // namespace trireme::config
