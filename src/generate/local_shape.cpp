#include "local_shape.hpp"

namespace trireme::generate {

LocalShape local_shape(const model::ModelSpec& spec, const GeneratorWeights& weights) {
  using model::Role;
  LocalShape s;
  s.layers = spec.shape.layers;
  s.hidden = spec.shape.hidden;
  s.head_dim = spec.shape.head_dim;
  s.heads = weights.block(spec.index_of(Role::q, 0)).rows / s.head_dim;
  s.kv_heads = weights.block(spec.index_of(Role::k, 0)).rows / s.head_dim;
  s.ffn = weights.block(spec.index_of(Role::up, 0)).rows;
  const base::Block head = weights.block(spec.head_parameter());
  s.vocabulary_first = head.row;
  s.vocabulary_rows = head.rows;
  s.type = weights.dtype();
  s.logit_type = spec.wide_head() ? kernels::ElementType::f32 : s.type;
  return s;
}

}  // namespace trireme::generate
