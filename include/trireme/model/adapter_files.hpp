// Adapters on disk, as peft stores them: adapter_config.json and adapter_model.safetensors.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "trireme/model/adapter.hpp"
#include "trireme/model/model_files.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/model/weight_source.hpp"

namespace trireme::config {
struct LoraOptions;
}

namespace trireme::model {

inline constexpr const char* adapter_config_name = "adapter_config.json";
inline constexpr const char* adapter_stem = "adapter_model";             // of the weights' file
inline constexpr std::string_view adapter_prefix = "base_model.model.";  // of its tensors' names

struct AdapterFolder {
  std::filesystem::path path;
  Adapter adapter;          // its base: as it stands in the file
  bool score_head = false;  // task_type SEQ_CLS
  std::shared_ptr<const WeightSource> weights;
};

// Whether a folder has an adapter and no model.
bool is_adapter(const std::filesystem::path& folder);

// What adapter_config.json says, without the weights. Throws UserError: input_missing, bad_data for
// another kind of adapter than LoRA, and for what LoRA has and this program does not: named key by
// key.
Adapter load_adapter_config(const std::filesystem::path& folder);
AdapterFolder open_adapter(const std::filesystem::path& folder);

// A trained model, made of the one in the folder `base` (or of its shape): with the adapter of the
// deck's section `key`, "actor.lora" or "critic.lora", where that wants one.
ModelSpec adapted(const ModelSpec& spec, const config::LoraOptions& lora, const std::string& base,
                  const std::string& key);

// The folder of the model that an adapter was made on: base_model_name_or_path, from here or from
// the adapter's folder. Throws UserError(input_missing) where it is neither.
std::filesystem::path base_folder(const AdapterFolder& adapter);
// Where a model's tokenizer is: in its folder, or of an adapter's folder without one in its base's.
std::filesystem::path tokenizer_folder(const std::filesystem::path& model);
// Whether a path is the folder of an adapter that was made on the model in `base`. Reads
// adapter_config.json.
bool is_adapter_on(const std::filesystem::path& folder, const std::string& base);

// The weights of an adapted model `spec`: those of the base, and of the adapter; null: a new
// adapter, whose saved modules begin as they are in the base and whose other parameters the source
// does not contain (initial_values). Where the adapter's files have base parameters these replace
// the base's, as in peft. Throws UserError(bad_data) for tensors that `spec` does not have, or has
// in another shape: another base, or another adapter_config.json.
std::shared_ptr<const WeightSource> adapted_weights(const ModelSpec& spec,
                                                    std::shared_ptr<const WeightSource> base,
                                                    const AdapterFolder* adapter);
// The weights of the model without an adapter that computes the same: W + scale B A, added in fp32.
// `source` has all parameters of `spec`.
std::shared_ptr<const WeightSource> merged_weights(const ModelSpec& spec,
                                                   std::shared_ptr<const WeightSource> source);

// A model, with an adapter where its folder is not empty.
struct AdaptedModel {
  ModelSpec spec;
  std::shared_ptr<const WeightSource> weights;
};
AdaptedModel open_adapted(const std::filesystem::path& model, const std::filesystem::path& adapter,
                          config::AdapterForm form, HeadKind head);

// Several at once, by their place in the list (with_adapters()).
AdaptedModel open_with_adapters(const std::filesystem::path& model,
                                std::span<const std::filesystem::path> adapters, HeadKind head);

// The model that an adapter's folder merges to; `base`: base_folder(), or another place of it.
ModelFolder open_merged(const std::filesystem::path& folder, const std::filesystem::path& base);

// The same with the adapter beside the weights, which `weights` has then, too: the model is the
// spec.
std::pair<ModelFolder, ModelSpec> open_beside_base(const std::filesystem::path& folder);

// For models that are to read the base of `other`, with which they have frozen parameters alike:
// throws UserError(bad_data) where the adapter in `folder`, which `spec` has, replaces one of them.
void require_shared_base(const ModelSpec& spec, const std::filesystem::path& folder,
                         const ModelSpec& other);

// Name of a trained tensor in an export, as peft has it; and the export's config.
std::string exported_adapter_name(const Parameter& parameter);
std::string adapter_config_json(const ModelSpec& spec);

}  // namespace trireme::model
