// What kinds of parameters there are: one row each. Names, shapes, tensor-parallel slices and
// initial values follow from it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "trireme/model/spec.hpp"

namespace trireme::model {

// A dimension of a parameter. Those of q, kv, ffn and vocabulary are cut over tensor-parallel
// ranks, the others are whole.
enum class Extent : uint8_t { none, one, hidden, head, q, kv, ffn, vocabulary };
int64_t length_of(Extent extent, const config::ModelShape& shape);

// number: ParameterKind::number; low: A of an adapter, uniform in +-1/sqrt(inputs); unit: N(0, 1).
enum class Start : uint8_t { zeros, ones, normal, score, number, low, unit };

struct ParameterKind {
  Role role;
  std::string_view name;  // in safetensors; of a block's parameters what follows "model.layers.N."
  std::string_view
      gguf;  // in GGUF; of a block's parameters what follows "blk.N."; empty: unknown there
  Extent rows;
  Extent columns;  // none: a vector
  Start start;
  double number = 0;  // of Start::number
};

// In the order in which a stage lists its parameters.
std::span<const ParameterKind> parameter_kinds();
const ParameterKind& kind_of(Role role);
// The initial value of every element, where it does not begin with random numbers.
double first_value(const ParameterKind& kind, const config::ModelShape& shape);

// The tensor of model files that has a parameter among others, or in another shape.
std::optional<StoredTensor> stored_tensor(Role role, const std::string& prefix,
                                          const config::ModelShape& shape);

// "model.layers.3." of a block; "" of other stages.
std::string name_prefix(int layer);

}  // namespace trireme::model
