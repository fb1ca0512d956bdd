// The parameters of a model: what each is, and its tensor.
#pragma once

#include <cstdint>

#include "trireme/base/shard_layout.hpp"

namespace trireme::model {

// Role of a parameter; decides its name, shape, tensor-parallel slicing and initial values
// (src/model/parameter_table.hpp). Legend: V vocabulary, D hidden, H heads, K KV heads, hd head
// size, F ffn.
enum class Role : uint8_t {
  embedding,     // [V, D]
  input_norm,    // [D]
  q,             // [H*hd, D]
  k,             // [K*hd, D]
  v,             // [K*hd, D]
  q_bias,        // [H*hd]
  k_bias,        // [K*hd]
  v_bias,        // [K*hd]
  q_norm,        // [hd]
  k_norm,        // [hd]
  whole_q_norm,  // [H*hd]
  whole_k_norm,  // [K*hd]
  o,             // [D, H*hd]
  o_bias,        // [D]
  post_norm,     // [D]
  gate,          // [F, D]
  up,            // [F, D]
  down,          // [D, F]
  ffn_norm,      // [D], after the feed-forward part
  final_norm,    // [D]
  lm_head,       // [V, D]
  score          // [1, D]
};

struct Parameter {
  base::TensorSpec spec;  // Hugging Face name and global shape
  Role role = Role::embedding;
  bool trainable = true;  // false: no gradient, no optimizer state; stored in the compute type only
};

}  // namespace trireme::model
