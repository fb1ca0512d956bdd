// The shapes that figures are given for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/config/model_shape.hpp"

namespace trireme::perf {

struct NamedShape {
  std::string_view name;
  int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
  bool tied;
};
// 135M: SmolLM2-135M; 1B, 8B: Llama 3. 1M: for rehearsals.
inline constexpr NamedShape named_shapes[] = {{"1M", 2, 32, 2, 1, 16, 64, 16384, true},
                                              {"25M", 8, 384, 6, 2, 64, 1024, 16384, true},
                                              {"135M", 30, 576, 9, 3, 64, 1536, 49152, true},
                                              {"1B", 16, 2048, 32, 8, 64, 8192, 128256, true},
                                              {"8B", 32, 4096, 32, 8, 128, 14336, 128256, false}};

inline std::vector<std::string> shape_names() {
  std::vector<std::string> out;
  for (const NamedShape& shape : named_shapes) out.emplace_back(shape.name);
  return out;
}

// Of those names.
inline config::ModelShape shape_of(std::string_view name) {
  for (const NamedShape& named : named_shapes) {
    if (named.name != name) continue;
    config::ModelShape shape;
    shape.layers = named.layers;
    shape.hidden = named.hidden;
    shape.heads = named.heads;
    shape.kv_heads = named.kv_heads;
    shape.head_dim = named.head_dim;
    shape.ffn = named.ffn;
    shape.vocab = named.vocab;
    shape.norm_eps = 1e-5;
    shape.tied = named.tied;
    shape.max_positions = 2048;
    return shape;
  }
  throw InternalError("no shape is called so");
}

}  // namespace trireme::perf
