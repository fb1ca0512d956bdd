// A model as a list of stages: named parameters, and the operations that compute with them.
// Training and generation, on CPUs and GPUs, execute this list; nobody else knows what a block is
// made of. Knows nothing of sharding. Legend: T tokens, V vocabulary, D hidden, H heads, K KV
// heads, hd head size, F ffn, L layers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/shard_layout.hpp"
#include "trireme/config/choices.hpp"
#include "trireme/config/model_shape.hpp"

namespace trireme::model {

// What a parameter is; decides its name, shape, tensor-parallel slicing and initial values
// (src/model/parameter_table.hpp).
enum class Role : uint8_t {
  embedding,  // [V, D]
  input_norm,
  q,
  k,
  v,
  q_bias,
  k_bias,
  v_bias,
  q_norm,
  k_norm,
  o,
  o_bias,  // [D] [H*hd, D] [K*hd, D] [K*hd, D] ... [hd] [hd] [D, H*hd]
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

// Activations between the operations, of T tokens each.
enum class Value : uint8_t {
  stream,  // [T, D], the residual stream
  normed,
  q,
  k,
  v,
  attended,
  projected,
  gate,
  up  // [T, D] [T, H*hd] [T, K*hd] [T, K*hd] [T, H*hd] [T, D] [T, F] [T, F]
};
inline constexpr size_t value_count = static_cast<size_t>(Value::up) + 1;

enum class OperationKind : uint8_t {
  look_up,   // out = the weight's rows, by token id
  norm,      // out = RMS norm of `in`: of each head where that is q or k, else of whole rows
  spread,    // out = in, whole on every tensor-parallel rank; backward the sum of the ranks'
             // gradients
  linear,    // out = in weight^T + bias
  rotate,    // out = rotary embedding of the heads of `in`
  attend,    // out = causal attention of q, k and v
  gate,      // out = silu(in) * other
  reduce,    // out = the sum over the tensor-parallel ranks of `in`
  add,       // out = in + other
  add_bias,  // out = in + weight
};

struct Operation {
  OperationKind kind = OperationKind::add;
  Value in = Value::stream;
  Value other = Value::stream;
  Value out = Value::stream;
  int weight = -1;  // position in Stage::parameters; -1: none
  int bias = -1;
};

enum class StageKind : uint8_t { embedding, block, head };
enum class HeadKind : uint8_t {
  language,
  score
};  // score: one number per position (reward model, critic)

// The operations run in order from the stream of the stage before (none for the embedding); the
// last one's `out` is the result. The product with the head's weight is no operation: it is taken
// in pieces of the vocabulary, with the loss. The head stage's last parameter is that weight; with
// tied embeddings it is the embedding's: it is gathered there too, both stages' gradients add into
// it.
struct Stage {
  StageKind kind = StageKind::block;
  int layer = -1;                  // of a block
  std::vector<size_t> parameters;  // indices into ModelSpec::parameters
  std::vector<Operation> operations;
};

struct ModelSpec {
  config::ModelShape shape;
  HeadKind head = HeadKind::language;
  config::HeadType head_type = config::HeadType::model;  // of a language-model head
  std::vector<Parameter> parameters;
  std::vector<Stage> stages;  // embedding, L blocks, head

  std::vector<base::TensorSpec> tensors() const;     // of parameters, same order
  int64_t elements() const;                          // of all parameters; a tied one counts once
  size_t index_of(Role role, int layer = -1) const;  // throws InternalError when there is none
  // Logits are fp32 whatever the compute type: run_stage() gives the head stage's result in fp32.
  bool wide_head() const {
    return head == HeadKind::language && head_type == config::HeadType::fp32;
  }
  size_t head_parameter() const { return stages.back().parameters.back(); }
};

ModelSpec describe(const config::ModelShape& shape, HeadKind head);

// How many operations from this one on are linears that take the same value.
size_t joint_linears(const Stage& stage, size_t first);
// [parameters] whether a parameter follows the one before it in such a group, as k follows q and up
// follows gate, and biases likewise: laid out one behind the other, they are one matrix (or vector)
// of a single product.
std::vector<bool> joins_the_one_before(const ModelSpec& spec);

// [parameters] the part of the model that each belongs to, for reports: "embedding", "layers_0_7"
// (a quarter of the blocks), ..., "head".
std::vector<std::string> layer_groups(const ModelSpec& spec);

// The slices of tensor-parallel rank 0 .. degree - 1: q, k, v and o by KV group (uneven is allowed,
// a group is never split), gate, up and down by ffn columns, embedding and head by vocabulary rows,
// norms whole. Throws UserError(configuration) when there are more ranks than KV groups, naming
// both.
base::ShardLayout tensor_parallel_layout(const ModelSpec& spec, int degree);

// The initial values of rows [block] of a parameter: N(0, initializer_range) for matrices, 1 for
// norms, 0 for biases, N(0, 1/(D+1)) for a score head; the same elements whatever the block. `out`
// has block.elements().
void initial_values(const ModelSpec& spec, size_t parameter, const base::Block& block,
                    uint64_t seed, float* out);

}  // namespace trireme::model
