// The part of the model that one tensor-parallel rank holds.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "trireme/generate/weights.hpp"
#include "trireme/kernels/decode_gemm.hpp"

namespace trireme::generate {

struct LocalShape {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t head_dim = 0;
  int64_t heads = 0;     // query heads of this rank
  int64_t kv_heads = 0;  // KV heads of this rank
  int64_t ffn = 0;       // columns of this rank
  int64_t vocabulary_first = 0;
  int64_t vocabulary_rows = 0;
  kernels::ElementType type = kernels::ElementType::f32;
  kernels::ElementType logit_type = kernels::ElementType::f32;

  int64_t q_dim() const { return heads * head_dim; }
  int64_t kv_dim() const { return kv_heads * head_dim; }
  int64_t group() const { return heads / kv_heads; }
  int64_t element_bytes() const { return static_cast<int64_t>(kernels::size_of(type)); }
};

// One layer of the cache: [S, K, hd] each, S slots.
struct CacheLayer {
  at::Tensor keys, values;
};

LocalShape local_shape(const model::ModelSpec& spec, const GeneratorWeights& weights);

}  // namespace trireme::generate
