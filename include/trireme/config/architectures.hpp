// The architectures that can be read and written: one line each says all that config.json, GGUF and
// the list of operations need to know.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "trireme/config/choices.hpp"

namespace trireme::config {

enum class Architecture { llama, mistral, qwen2, qwen3, smollm3, granite, olmo2 };

enum class AttentionBiases : uint8_t {
  none,
  qkv,     // of q, k and v, always
  by_key,  // of q, k, v and o, where config.json says attention_bias
};

// How config.json asks for sliding windows, which are refused.
enum class WindowKey : uint8_t {
  none,
  size,  // sliding_window, 4096 when it is absent
  flag,  // use_sliding_window
};

struct ArchitectureTraits {
  Architecture architecture;
  std::string_view word;          // model_type
  std::string_view class_prefix;  // of "...ForCausalLM" and "...ForSequenceClassification"
  std::string_view gguf;  // general.architecture; empty: such models are written under another's
  bool gguf_interleaves;  // GGUF interleaves the halves of each head of q and k
  int64_t positions;      // where config.json does not say, as in transformers
  int64_t head_dim;       // likewise; 0: hidden_size / num_attention_heads
  double theta;           // likewise: rope_theta
  bool tied;              // likewise: tie_word_embeddings
  AttentionBiases biases;
  bool mlp_bias_key;  // config.json may say mlp_bias
  WindowKey window;
  bool head_norms;                   // an RMS norm of each head of q and k, before they are rotated
  bool layers_without_rope = false;  // no_rope_layers, no_rope_layer_interval
  bool multipliers = false;          // of embedding, attention, residual and logits
  double eps = 1e-6;                 // where config.json has no rms_norm_eps
};

inline constexpr std::array architecture_table{
    ArchitectureTraits{Architecture::llama, "llama", "Llama", "llama", true, 2048, 0, 1e4, false,
                       AttentionBiases::by_key, true, WindowKey::none, false},
    ArchitectureTraits{Architecture::mistral, "mistral", "Mistral", "", false, 131072, 0, 1e4,
                       false, AttentionBiases::none, false, WindowKey::size, false},
    ArchitectureTraits{Architecture::qwen2, "qwen2", "Qwen2", "qwen2", false, 32768, 0, 1e4, false,
                       AttentionBiases::qkv, false, WindowKey::flag, false},
    ArchitectureTraits{Architecture::qwen3, "qwen3", "Qwen3", "qwen3", false, 32768, 128, 1e4,
                       false, AttentionBiases::by_key, false, WindowKey::flag, true},
    ArchitectureTraits{Architecture::smollm3, "smollm3", "SmolLM3", "", false, 32768, 0, 2e6, true,
                       AttentionBiases::by_key, true, WindowKey::flag, false, true},
    ArchitectureTraits{Architecture::granite, "granite", "Granite", "", false, 2048, 0, 1e4, false,
                       AttentionBiases::by_key, true, WindowKey::none, false, false, true},
    ArchitectureTraits{Architecture::olmo2, "olmo2", "Olmo2", "", false, 2048, 0, 1e4, false,
                       AttentionBiases::by_key, false, WindowKey::none, false, false, false, 1e-5},
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
         Architecture::olmo2;  // the last enumerator: none is missing
}
static_assert(architectures_in_order(),
              "architecture_table has one line per enumerator, in their order");
}  // namespace detail

}  // namespace trireme::config
