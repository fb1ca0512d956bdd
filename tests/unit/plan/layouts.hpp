// A model of a given size, and a described one as the ledger takes it.
#pragma once

#include "trireme/config/model_shape.hpp"
#include "trireme/machine/model_layout.hpp"
#include "trireme/model/spec.hpp"
#include "trireme/plan/model_bytes.hpp"

namespace trireme::test {

struct ShapeNumbers {
  int64_t layers, hidden, heads, kv_heads, ffn, vocab;
};

inline config::ModelShape shape_of(const ShapeNumbers& n) {
  config::ModelShape shape;
  shape.layers = n.layers;
  shape.hidden = n.hidden;
  shape.heads = n.heads;
  shape.kv_heads = n.kv_heads;
  shape.head_dim = n.hidden / n.heads;
  shape.ffn = n.ffn;
  shape.vocab = n.vocab;
  shape.max_positions = 4096;
  return shape;
}

inline plan::ModelLayout layout(const model::ModelSpec& spec,
                                const model::ModelSpec* lender = nullptr) {
  return machine::layout_of(spec, lender);
}

}  // namespace trireme::test
