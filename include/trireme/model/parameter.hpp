// The parameters of a model: the role of each, and its tensor.
#pragma once

#include <cstdint>
#include <optional>

#include "trireme/base/shard_layout.hpp"

namespace trireme::model {

// Role of a parameter; decides its name, shape, tensor-parallel slicing and initial values
// (src/model/parameter_table.hpp). Legend: V vocabulary, D hidden, H heads, K KV heads, hd head
// size, F ffn.
enum class Role : uint16_t {
  embedding,         // [V, D]
  input_norm,        // [D]
  q,                 // [H*hd, D]
  k,                 // [K*hd, D]
  v,                 // [K*hd, D]
  q_bias,            // [H*hd]
  k_bias,            // [K*hd]
  v_bias,            // [K*hd]
  q_norm,            // [hd]
  k_norm,            // [hd]
  whole_q_norm,      // [H*hd]
  whole_k_norm,      // [K*hd]
  o,                 // [D, H*hd]
  o_bias,            // [D]
  self_attn_norm,    // [D], after attention (GLM-4)
  post_norm,         // [D]
  ffn_input_norm,    // [D], before the feed-forward part (Gemma)
  attention_norm,    // [D], before attention (Apertus)
  feedforward_norm,  // [D], before the feed-forward part (Apertus)
  gate,              // [F, D]
  up,                // [F, D]
  down,              // [D, F]
  gate_bias,         // [F]
  up_bias,           // [F]
  down_bias,         // [D]
  alpha_p,           // [1] of xIELU, as is alpha_n
  alpha_n,
  beta,  // [1], not trained, as is eps
  eps,
  ffn_norm,    // [D], after the feed-forward part
  mlp_norm,    // [D], after the feed-forward part (GLM-4)
  final_norm,  // [D]
  lm_head,     // [V, D]
  score        // [1, D]
};

// A tensor of model files that a parameter is rows of.
struct StoredTensor {
  base::TensorSpec tensor;
  int64_t first_row = 0;
};

// The part that a parameter plays in the module of its role. An adapter's parameters have the role
// of the adapted weight, marked: adapter_role(Role::q, Part::lora_a). Of several adapters
// it also has its number. Legend: r rank.
enum class Part : uint8_t {
  base,
  lora_a,  // [r, inputs]
  lora_b,  // [outputs, r]
  saved    // takes the base parameter's place; of its shape
};
constexpr uint8_t role_bits = 6, part_bits = 2;
constexpr Role adapter_role(Role of, Part part, unsigned adapter = 0) {
  return static_cast<Role>(static_cast<unsigned>(of) | static_cast<unsigned>(part) << role_bits |
                           adapter << (role_bits + part_bits));
}
constexpr Role base_role(Role role) {
  return static_cast<Role>(static_cast<unsigned>(role) & ((1U << role_bits) - 1));
}
constexpr Part part_of(Role role) {
  return static_cast<Part>(static_cast<unsigned>(role) >> role_bits & ((1U << part_bits) - 1));
}

constexpr unsigned adapter_of_role(Role role) {
  return static_cast<unsigned>(role) >> (role_bits + part_bits);
}
// The same for parameters that are the same part of the same adapter.
constexpr unsigned mark_of(Role role) { return static_cast<unsigned>(role) >> role_bits; }

struct Parameter {
  base::TensorSpec spec;  // Hugging Face name and global shape
  Role role = Role::embedding;
  bool trainable = true;  // false: no gradient, no optimizer state; stored in the compute type only
  std::optional<StoredTensor> stored = {};  // none: model files have it under its name

  // The tensor of model files that has it, and where it begins there.
  const base::TensorSpec& file_tensor() const { return stored ? stored->tensor : spec; }
  base::Block in_file(base::Block block) const {
    if (stored) block.row += stored->first_row;
    return block;
  }
};

}  // namespace trireme::model
