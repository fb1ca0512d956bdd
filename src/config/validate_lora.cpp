// Mistakes in the keys of adapters.
#include "config/validate_losses.hpp"
#include "trireme/base/text.hpp"
#include "trireme/config/models_of.hpp"

namespace trireme::config {
namespace {

class LoraMistakes {
 public:
  explicit LoraMistakes(const Options& options) : options_(options) {}

  std::vector<std::string> find() {
    const bool actor = check("actor.lora", options_.actor.lora, "model.path", options_.model.path);
    if (actor) check_actor();
    const std::string& own = options_.critic.path;
    check("critic.lora", options_.critic.lora, own.empty() ? "model.path" : "critic.path",
          critic_base(options_));
    refuse_if(options_.critic.lora.wanted() && !options_.has_critic(),
              "critic.lora with algo.advantage.estimator = \"",
              to_string(options_.algo.advantage.estimator),
              "\" (it has no critic): leave critic.lora out");
    return std::move(mistakes_);
  }

 private:
  template <class... Parts>
  void refuse_if(bool wrong, const Parts&... parts) {
    if (wrong) mistakes_.push_back(base::text(parts...));
  }

  // Whether an adapter is wanted there. `base`: the folder of its model, `of` the key that says it.
  bool check(const std::string& section, const LoraOptions& lora, const char* of,
             const std::string& base) {
    LoraOptions of_path;
    of_path.path = lora.path;
    const bool others = lora != of_path;
    refuse_if(!lora.path.empty() && others, section, ".path = ", lora.path,
              " has rank, alpha, targets and modules of its own (adapter_config.json): leave the "
              "other keys of ",
              section, " out");
    refuse_if(lora.path.empty() && lora.rank == 0 && others, section,
              " has keys, but no rank and no path (rank = 0 trains the model's own weights): set ",
              section, ".rank, or leave them out");
    if (!lora.wanted()) return false;
    refuse_if(!lora.path.empty() && base.empty(), section, ".path = ", lora.path,
              " needs the model that it was made on (model.shape is filled at random): set "
              "model.path");
    refuse_if(base.ends_with(".gguf"), section, " with ", of, " = ", base,
              " (adapters on quantised bases, QLoRA, are not supported): convert the file to a "
              "model folder (trireme convert)");
    return true;
  }

  void check_actor() {
    refuse_if(options_.generate.weights != RolloutWeights::model,
              "generate.weights = \"int8\" with actor.lora (adapters on quantised bases are not "
              "supported): set generate.weights = \"model\"");
    refuse_if(options_.reference.sync_every > 0,
              "reference.sync_every = ", options_.reference.sync_every,
              " with actor.lora (the reference is the model without its adapter): set it to 0");
  }

  const Options& options_;
  std::vector<std::string> mistakes_;
};

}  // namespace

std::vector<std::string> lora_mistakes(const Options& options) {
  return LoraMistakes(options).find();
}

}  // namespace trireme::config
