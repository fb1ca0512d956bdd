// The shapes that figures are given for.
#pragma once

#include <string_view>

#include "trireme/config/model_shape.hpp"

namespace trireme::perf {

// 135M: SmolLM2-135M. 25M: 8 layers of 384, vocabulary 16384. Both with tied embeddings.
inline config::ModelShape shape_of(std::string_view name) {
  config::ModelShape shape;
  const bool large = name == "135M";
  shape.layers = large ? 30 : 8;
  shape.hidden = large ? 576 : 384;
  shape.heads = large ? 9 : 6;
  shape.kv_heads = large ? 3 : 2;
  shape.head_dim = 64;
  shape.ffn = large ? 1536 : 1024;
  shape.vocab = large ? 49152 : 16384;
  shape.norm_eps = 1e-5;
  shape.tied = true;
  shape.max_positions = 2048;
  return shape;
}

}  // namespace trireme::perf
