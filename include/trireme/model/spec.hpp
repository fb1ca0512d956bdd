// A model as a list of stages: named parameters, and the operations that compute with them.
// Training and generation, on CPUs and GPUs, execute this list; nothing else knows what a block is
// made of. Knows nothing of sharding. Legend: L layers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/shard_layout.hpp"
#include "trireme/config/choices.hpp"
#include "trireme/config/model_shape.hpp"
#include "trireme/model/adapter.hpp"
#include "trireme/model/operations.hpp"
#include "trireme/model/parameter.hpp"

namespace trireme::model {

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
  // Of a model with an adapter: the operations without it. The result is that of their last one.
  std::vector<Operation> without_adapter = {};
  // Of a head whose weight has an adapter: scale A x, which multiplies B beside the weight's own
  // product.
  std::optional<Value> low = std::nullopt;

  const std::vector<Operation>& base_operations() const {
    return without_adapter.empty() ? operations : without_adapter;
  }
  Value result() const;
};

// Whether a pass runs a model with its adapter; a model without one has no choice.
enum class AdapterUse : uint8_t { applied, disabled };

// A table of rotary embeddings: theta^(-2 i / dims), scaled.
struct Rotation {
  int64_t dims = 0;
  double theta = 10000;
  config::RopeScaling scaling;
};
Rotation rotation_of(const config::ModelShape& shape);

struct ModelSpec {
  config::ModelShape shape;
  HeadKind head = HeadKind::language;
  config::HeadType head_type = config::HeadType::model;  // of a language-model head
  std::vector<Parameter> parameters;
  std::vector<Stage> stages;  // embedding, L blocks, head
  std::vector<Rotation> rotations;
  size_t values = 0;  // that its operations name
  std::optional<Adapter> adapter = std::nullopt;

  std::vector<base::TensorSpec> tensors() const;  // of parameters, same order
  int64_t elements() const;                       // of all parameters; a tied one counts once
  int64_t trainable_elements() const;
  std::vector<size_t> trainable_parameters() const;
  std::vector<std::string> trainable_names() const;
  bool is_trainable() const;  // has a trainable parameter
  // Has a trainable parameter in this stage.
  bool is_trainable(const Stage& stage) const;
  // Positions in Stage::parameters and in `parameters`; throw InternalError when there is none.
  size_t position_of(const Stage& stage, Role role) const;
  size_t index_of(const Stage& stage, Role role) const {
    return stage.parameters[position_of(stage, role)];
  }
  size_t index_of(Role role, int layer = -1) const;
  // Logits are fp32 whatever the compute type: run_stage() gives the head stage's result in fp32.
  bool wide_head() const {
    return head == HeadKind::language && head_type == config::HeadType::fp32;
  }
  size_t head_parameter() const { return stages.back().parameters.back(); }
  // Positions in the head stage's parameters: of the weight, and of the adapter's B beside it.
  size_t head_position(AdapterUse use) const;
  std::optional<size_t> head_low_position(AdapterUse use) const;
};

// Every parameter is trainable.
ModelSpec describe(const config::ModelShape& shape, HeadKind head);

// The same model without a trainable parameter: a reference, a reward model.
ModelSpec frozen(ModelSpec spec);

// Freezes the parameters whose Hugging Face name fits a pattern: "*" is any text, "{2..5}" a number
// from 2 to 5, everything else itself. Throws UserError(configuration) with the deck's `key` for
// patterns that fit no parameter, or are not written so, and where nothing is left to train.
void freeze(ModelSpec& spec, const std::vector<std::string>& patterns, const std::string& key);

// [parameters] the frozen parameter of `base` that one of `spec` is equal to, where both were read
// from one model: by name and shape. None for trainable ones.
std::vector<std::optional<size_t>> frozen_alike(const ModelSpec& spec, const ModelSpec& base);

// Kept for the backward of a block, a token: columns in the compute type, and numbers in
// fp32. The most of any block, without the stream that it begins with.
struct KeptColumns {
  int64_t values = 0;
  int64_t numbers = 0;
};
KeptColumns kept_by_block(const ModelSpec& spec, Kept OperationRow::*by);
// Columns, a token, that an adapter adds to a block's values where they are most (run_stage).
int64_t adapter_columns(const ModelSpec& spec);

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
