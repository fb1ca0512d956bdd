// A model as a list of stages with named parameters. Knows nothing of sharding.
// Legend: V vocabulary, D hidden, H heads, K KV heads, hd head size, F ffn, L layers.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/base/shard_layout.hpp"
#include "trireme/config/model_shape.hpp"

namespace trireme::model {

// What a parameter is; decides its tensor-parallel slicing and its initial values.
enum class Role : uint8_t {
  embedding,  // [V, D]
  input_norm,
  q,
  k,
  v,
  q_bias,
  k_bias,
  v_bias,
  o,
  o_bias,  // [D] [H*hd, D] [K*hd, D] [K*hd, D] ... [D, H*hd]
  post_norm,
  gate,
  up,
  down,  // [D] [F, D] [F, D] [D, F]
  final_norm,
  lm_head,
  score  // [D] [V, D] [1, D]
};

struct Parameter {
  base::TensorSpec spec;  // Hugging Face name and global shape
  Role role = Role::embedding;
};

enum class StageKind : uint8_t { embedding, block, head };
enum class HeadKind : uint8_t { language, score };  // score: one number per position (reward model, critic)

// Parameters in the order in which the stage's functions take them. With tied embeddings the head stage of a language
// model lists the embedding's parameter: it is gathered there too, and both stages' gradients add into it.
struct Stage {
  StageKind kind = StageKind::block;
  int layer = -1;                  // of a block
  std::vector<size_t> parameters;  // indices into ModelSpec::parameters
};

struct ModelSpec {
  config::ModelShape shape;
  HeadKind head = HeadKind::language;
  std::vector<Parameter> parameters;
  std::vector<Stage> stages;  // embedding, L blocks, head

  std::vector<base::TensorSpec> tensors() const;     // of parameters, same order
  size_t index_of(Role role, int layer = -1) const;  // throws InternalError when there is none
};

// Stage orders: embedding {embedding}; block {input_norm, q, k, v, [q_bias, k_bias, v_bias], o, [o_bias], post_norm, gate,
// up, down}; head {final_norm, lm_head | embedding when tied | score}.
ModelSpec describe(const config::ModelShape& shape, HeadKind head);

// The slices of tensor-parallel rank 0 .. degree - 1: q, k, v and o by KV group (uneven is allowed, a group is never
// split), gate, up and down by ffn columns, embedding and head by vocabulary rows, norms whole. Throws
// UserError(configuration) when there are more ranks than KV groups, naming both.
base::ShardLayout tensor_parallel_layout(const ModelSpec& spec, int degree);

// The initial values of rows [block] of a parameter: N(0, initializer_range) for matrices, 1 for norms, 0 for biases,
// N(0, 1/(D+1)) for a score head; the same elements whatever the block. `out` has block.elements().
void initial_values(const ModelSpec& spec, size_t parameter, const base::Block& block, uint64_t seed, float* out);

}  // namespace trireme::model
