// Low-rank adapters (LoRA; Hu et al., arXiv 2106.09685), in the words of peft: a linear layer's
// y = W x becomes W x + scale B (A x), with W frozen. An adapter is parameters, the only trainable
// ones, and operations that every engine knows already. Legend: r rank, V vocabulary.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::config {
struct LoraOptions;
}

namespace trireme::model {

struct ModelSpec;

// The settings of an adapter: the deck's [actor.lora], or an adapter_config.json.
struct Adapter {
  int64_t rank = 0;
  double alpha = 0;
  bool rslora = false;  // scale = alpha / sqrt(r) instead of alpha / r (Kalajdzievski, 2312.03732)
  double dropout = 0;   // of A's input, in training
  // Last parts of module names ("q_proj"), or whole ones; "all-linear": those of all blocks.
  std::vector<std::string> targets;
  std::string target_pattern;         // instead: a regular expression of whole names
  std::vector<std::string> excluded;  // as targets
  std::string excluded_pattern;       // instead: as target_pattern
  std::vector<int64_t> layers;        // empty: all
  // First match decides: regular expressions of a name's end.
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::vector<std::string> modules_to_save;  // as targets; trained whole, in a copy
  std::string bias = "none";  // peft's word; another one needs a model without biases
  std::string base;           // folder of the model, for exports
  // A word that names nothing, or a rank larger than a dimension, is a mistake. peft takes both.
  bool strict = true;

  int64_t rank_of(const std::string& module) const;
  double scale_of(const std::string& module) const;
};

// Of the deck's keys alone, without actor.lora.path.
Adapter adapter_of(const config::LoraOptions& options);

// The same model with an adapter: base parameters frozen, at the indices that they have; those of
// the adapter after them, under peft's names without "base_model.model.", copies of saved modules
// as "lm_head.modules_to_save.weight". Throws UserError(configuration) naming the word: a target or
// saved module that the model does not have, a rank that is larger than a dimension, a module that
// is named twice, an adapter on the embedding or the head of a tied model, on a score head or on a
// module that is not linear. `where` is said first: "actor.lora", a file.
ModelSpec with_adapter(const ModelSpec& base, const Adapter& adapter, const std::string& where);
// For generation with several adapters in one batch: to a sequence of adapter i (Request::adapter)
// the model is with_adapter() of the i-th, without its dropout. The parameters of adapter i have
// the names of numbered(). Throws UserError(configuration) also for adapters of the head and for
// modules saved whole: a pass has one of each.
struct NamedAdapter {
  Adapter adapter;
  std::string where;
};
ModelSpec with_adapters(const ModelSpec& base, std::span<const NamedAdapter> adapters);
// "q_proj.lora_A.weight" of adapter 2 of several: "q_proj.lora_A.2.weight".
std::string numbered(std::string parameter, unsigned adapter);

// Whether `spec` comes from with_adapters(): each sequence then selects its adapter.
bool selects_adapters(const ModelSpec& spec);

// The model that it was made of.
ModelSpec without_adapter(const ModelSpec& spec);
// For generation: the same parameters, and no operations that matter in training alone.
ModelSpec without_dropout(const ModelSpec& spec);

// Between module and parameter in the name of a saved copy.
inline constexpr std::string_view saved_mark = ".modules_to_save";
// The name of the module that a parameter belongs to: "model.layers.0.self_attn.q_proj".
std::string module_of(const std::string& parameter);

}  // namespace trireme::model
