// What kinds of parameters there are: one row each. Names, shapes, tensor-parallel slices and
// initial values follow from it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "trireme/model/spec.hpp"

namespace trireme::model {

// A dimension of a parameter. Those of q, kv, ffn and vocabulary are cut over tensor-parallel
// ranks, the others are whole.
enum class Extent : uint8_t { none, one, hidden, head, q, kv, ffn, vocabulary };
int64_t length_of(Extent extent, const config::ModelShape& shape);

enum class Start : uint8_t { zeros, ones, normal, score };

struct ParameterKind {
  Role role;
  std::string_view name;  // in safetensors; of a block's parameters what follows "model.layers.N."
  std::string_view
      gguf;  // in GGUF; of a block's parameters what follows "blk.N."; empty: unknown there
  Extent rows;
  Extent columns;  // none: a vector
  Start start;
};

// In the order in which a stage lists its parameters.
std::span<const ParameterKind> parameter_kinds();
const ParameterKind& kind_of(Role role);

// "model.layers.3." of a block; "" of other stages.
std::string name_prefix(int layer);

}  // namespace trireme::model
