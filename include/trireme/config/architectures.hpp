// The architectures that can be read and written: one line each says all that config.json, GGUF and
// the list of operations need to know.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "trireme/config/choices.hpp"

namespace trireme::config {

enum class Architecture {
  llama,
  mistral,
  qwen2,
  qwen3,
  smollm3,
  granite,
  olmo2,
  olmo3,
  ministral3,
  gemma2,
  gemma3,
  glm,
  glm4,
  phi3,
  cohere2,
  apertus
};

enum class AttentionBiases : uint8_t {
  none,
  qkv,         // of q, k and v, always
  by_key,      // of q, k, v and o, where config.json says attention_bias
  qkv_by_key,  // of q, k and v, where it does
};

// How config.json asks for sliding windows.
enum class WindowKey : uint8_t {
  none,   // not at all
  size,   // sliding_window, of every layer
  flag,   // use_sliding_window; of the layers that layer_types names, of those without rope or of
          // those from max_window_layers on
  types,  // of the layers that layer_types names, or of all but every n-th
};

// Weights that model files have as one matrix.
enum class FusedWeights : uint8_t { none, gate_up, qkv_gate_up };

// Defaults are those of transformers, where config.json does not say.
struct ArchitectureTraits {
  Architecture architecture;
  std::string_view word;          // model_type
  std::string_view class_prefix;  // of "...ForCausalLM" and "...ForSequenceClassification"
  std::string_view classifier_prefix = "";  // of the latter; empty: the same
  std::string_view gguf =
      "";  // general.architecture; empty: such models are written under another's
  bool gguf_interleaves = false;  // GGUF interleaves the halves of each head of q and k
  int64_t vocab = 0, heads = 0;   // 0: config.json says
  int64_t positions = 2048;
  int64_t head_dim = 0;      // 0: hidden_size / num_attention_heads
  bool head_dim_key = true;  // false: it is always that
  int64_t kv_heads = 0;      // 0: as many as query heads
  double theta = 1e4;        // rope_theta
  bool tied = false;         // tie_word_embeddings
  AttentionBiases biases = AttentionBiases::none;
  bool has_biases = false;    // attention_bias
  bool mlp_bias_key = false;  // config.json may say mlp_bias
  WindowKey window = WindowKey::none;
  int64_t window_size = 4096;        // 0: none
  int64_t window_pattern = 0;        // every so many layers one sees everything
  bool window_pattern_key = false;   // sliding_window_pattern
  bool head_norms = false;           // an RMS norm of each head of q and k, before they are rotated
  bool layers_without_rope = false;  // no_rope_layers, no_rope_layer_interval
  bool rope_in_windows_only = false;  // layers that see everything are not rotated
  bool multipliers = false;           // of embedding, attention, residual and logits
  double eps = 1e-6;
  const char* eps_key = "rms_norm_eps";
  std::string_view activation = "silu";
  const char* activation_key = "hidden_act";
  double rotated_share = 0;  // partial_rotary_factor; 0: there is no such key, heads are whole
  double local_theta = 0;    // of layers with a window; 0: the same rotation as the others'
  const char* local_theta_key = nullptr;
  std::string_view rope = "";      // rope_parameters
  bool longrope_only = false;      // "su" and "yarn" are names of longrope
  int64_t original_positions = 0;  // original_max_position_embeddings; 0: in rope_parameters
  bool position_scale = false;     // llama_4_scaling_beta
  double logit_scale = 0;          // 0: there is no such key
  bool scaled_embedding = false;   // by the square root of hidden_size
  double query_scalar =
      0;  // query_pre_attn_scalar, with soft caps of scores and logits; 0: no keys
  double attention_cap = 0, logit_cap = 0;  // 0: none
  FusedWeights fused = FusedWeights::none;
};

inline constexpr std::array architecture_table{
    ArchitectureTraits{.architecture = Architecture::llama,
                       .word = "llama",
                       .class_prefix = "Llama",
                       .gguf = "llama",
                       .gguf_interleaves = true,
                       .biases = AttentionBiases::by_key,
                       .mlp_bias_key = true},
    ArchitectureTraits{.architecture = Architecture::mistral,
                       .word = "mistral",
                       .class_prefix = "Mistral",
                       .positions = 131072,
                       .kv_heads = 8,
                       .window = WindowKey::size},
    ArchitectureTraits{.architecture = Architecture::qwen2,
                       .word = "qwen2",
                       .class_prefix = "Qwen2",
                       .gguf = "qwen2",
                       .positions = 32768,
                       .kv_heads = 32,
                       .biases = AttentionBiases::qkv,
                       .window = WindowKey::flag},
    ArchitectureTraits{.architecture = Architecture::qwen3,
                       .word = "qwen3",
                       .class_prefix = "Qwen3",
                       .gguf = "qwen3",
                       .positions = 32768,
                       .head_dim = 128,
                       .kv_heads = 32,
                       .biases = AttentionBiases::by_key,
                       .window = WindowKey::flag,
                       .head_norms = true},
    ArchitectureTraits{.architecture = Architecture::smollm3,
                       .word = "smollm3",
                       .class_prefix = "SmolLM3",
                       .positions = 32768,
                       .kv_heads = 4,
                       .theta = 2e6,
                       .tied = true,
                       .biases = AttentionBiases::by_key,
                       .mlp_bias_key = true,
                       .window = WindowKey::flag,
                       .layers_without_rope = true},
    ArchitectureTraits{.architecture = Architecture::granite,
                       .word = "granite",
                       .class_prefix = "Granite",
                       .biases = AttentionBiases::by_key,
                       .mlp_bias_key = true,
                       .multipliers = true},
    ArchitectureTraits{.architecture = Architecture::olmo2,
                       .word = "olmo2",
                       .class_prefix = "Olmo2",
                       .biases = AttentionBiases::by_key,
                       .eps = 1e-5},
    ArchitectureTraits{.architecture = Architecture::olmo3,
                       .word = "olmo3",
                       .class_prefix = "Olmo3",
                       .theta = 5e5,
                       .biases = AttentionBiases::by_key,
                       .window = WindowKey::types,
                       .window_pattern = 4,
                       .eps = 1e-5,
                       .local_theta = 5e5},
    ArchitectureTraits{.architecture = Architecture::ministral3,
                       .word = "ministral3",
                       .class_prefix = "Ministral3",
                       .positions = 262144,
                       .head_dim = 128,
                       .kv_heads = 8,
                       .window = WindowKey::size,
                       .window_size = 0,
                       .eps = 1e-5,
                       .rope = R"({"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0,
                    "original_max_position_embeddings": 16384, "mscale": 1.0,
                    "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1})",
                       .position_scale = true},
    ArchitectureTraits{.architecture = Architecture::gemma2,
                       .word = "gemma2",
                       .class_prefix = "Gemma2",
                       .positions = 8192,
                       .head_dim = 256,
                       .kv_heads = 4,
                       .tied = true,
                       .biases = AttentionBiases::by_key,
                       .window = WindowKey::types,
                       .window_pattern = 2,
                       .activation = "gelu_pytorch_tanh",
                       .activation_key = "hidden_activation",
                       .scaled_embedding = true,
                       .query_scalar = 256,
                       .attention_cap = 50,
                       .logit_cap = 30},
    ArchitectureTraits{.architecture = Architecture::gemma3,
                       .word = "gemma3_text",
                       .class_prefix = "Gemma3",
                       .classifier_prefix = "Gemma3Text",
                       .vocab = 262208,
                       .heads = 8,
                       .positions = 131072,
                       .head_dim = 256,
                       .kv_heads = 4,
                       .theta = 1e6,
                       .tied = true,
                       .biases = AttentionBiases::by_key,
                       .window = WindowKey::types,
                       .window_pattern = 6,
                       .window_pattern_key = true,
                       .head_norms = true,
                       .activation = "gelu_pytorch_tanh",
                       .activation_key = "hidden_activation",
                       .local_theta = 1e4,
                       .local_theta_key = "rope_local_base_freq",
                       .scaled_embedding = true,
                       .query_scalar = 256},
    ArchitectureTraits{.architecture = Architecture::glm,
                       .word = "glm",
                       .class_prefix = "Glm",
                       .positions = 131072,
                       .head_dim = 128,
                       .kv_heads = 2,
                       .biases = AttentionBiases::qkv_by_key,
                       .has_biases = true,
                       .eps = 1.5625e-7,
                       .rotated_share = 0.5,
                       .fused = FusedWeights::gate_up},
    ArchitectureTraits{.architecture = Architecture::glm4,
                       .word = "glm4",
                       .class_prefix = "Glm4",
                       .positions = 131072,
                       .head_dim = 128,
                       .kv_heads = 2,
                       .biases = AttentionBiases::qkv_by_key,
                       .has_biases = true,
                       .eps = 1.5625e-7,
                       .rotated_share = 0.5,
                       .fused = FusedWeights::gate_up},
    ArchitectureTraits{.architecture = Architecture::phi3,
                       .word = "phi3",
                       .class_prefix = "Phi3",
                       .positions = 4096,
                       .window = WindowKey::size,
                       .window_size = 0,
                       .eps = 1e-5,
                       .rotated_share = 1,
                       .longrope_only = true,
                       .original_positions = 4096,
                       .fused = FusedWeights::qkv_gate_up},
    ArchitectureTraits{.architecture = Architecture::cohere2,
                       .word = "cohere2",
                       .class_prefix = "Cohere2",
                       .positions = 8192,
                       .head_dim_key = false,
                       .tied = true,
                       .biases = AttentionBiases::by_key,
                       .window = WindowKey::types,
                       .window_pattern = 4,
                       .window_pattern_key = true,
                       .rope_in_windows_only = true,
                       .eps = 1e-5,
                       .eps_key = "layer_norm_eps",
                       .logit_scale = 0.0625},
    ArchitectureTraits{.architecture = Architecture::apertus,
                       .word = "apertus",
                       .class_prefix = "Apertus",
                       .positions = 65536,
                       .theta = 1.2e7,
                       .biases = AttentionBiases::by_key,
                       .head_norms = true,
                       .eps = 1e-5,
                       .activation = "xielu",
                       .rope = R"({"rope_type": "llama3", "rope_theta": 12000000.0, "factor": 8.0,
                                   "original_max_position_embeddings": 8192,
                                   "low_freq_factor": 1.0, "high_freq_factor": 4.0})"},
};

constexpr const ArchitectureTraits& traits(Architecture architecture) {
  return architecture_table[static_cast<size_t>(architecture)];
}

template <>
struct Words<Architecture> {
  static constexpr auto list = [] {
    std::array<std::string_view, architecture_table.size()> words;
    for (size_t i = 0; i < words.size(); ++i) words[i] = architecture_table[i].word;
    return words;
  }();
};

namespace detail {
constexpr bool architectures_in_order() {
  for (size_t i = 0; i < architecture_table.size(); ++i) {
    if (static_cast<size_t>(architecture_table[i].architecture) != i) return false;
  }
  return architecture_table.back().architecture ==
         Architecture::apertus;  // the last enumerator: none is missing
}
static_assert(architectures_in_order(),
              "architecture_table has one line per enumerator, in their order");
}  // namespace detail

}  // namespace trireme::config
