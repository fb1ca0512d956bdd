// Bytes of what a pass over a micro-batch holds beside weights, gradients and the optimizer's
// state: the live tensors of zero's stage loop, of model's blocks and of the head, from their
// shapes. Legend: T tokens, D hidden, F ffn, V vocabulary, C rows of a piece of it, L layers.
#pragma once

#include <cstdint>

#include "trireme/config/model_shape.hpp"
#include "trireme/plan/model_bytes.hpp"

namespace trireme::plan {

// Rows of the vocabulary whose logits stand at a time (kernels::token_log_probs).
inline constexpr int64_t vocabulary_chunk = 4096;

// Whose operators run (model/elementwise.cpp, kernels/token_log_probs.cpp).
enum class Operators : uint8_t {
  host,  // the program's own on CPUs; estimated from above, with what the libraries under them take
  device,    // the program's own on GPUs: allocated bytes at the fullest moment, counted on the
             // fake device within 3 %
  composed,  // LibTorch's on GPUs, where the program's own were put aside: these keep fp32 copies;
             // estimated
};

struct PassWork {
  const ModelLayout& model;
  int64_t tokens = 0;       // T
  int64_t targets = 0;      // of T, at most
  int64_t head_rows = 0;    // V, or 1 for a score
  int64_t kept_blocks = 0;  // whose activations stay until they are differentiated
  Operators operators = Operators::device;
  int64_t element_bytes = 2;  // of the compute type
  int64_t logit_bytes = 2;    // model.head_dtype
  int64_t kept_logits = 0;    // bytes at most (train.logits_memory); on the host
  bool exact_products =
      true;  // train.exact_products: on devices a product of bf16 adds to an fp32 matrix by itself
};

// Of a training pass. The first three stand in forward, head and backward, the others at the
// fullest moment of their phase.
struct PassBytes {
  int64_t stage_inputs = 0;  // of the blocks, [T, D] each
  int64_t kept = 0;          // what kept blocks save
  int64_t columns = 0;       // ids, positions, targets, log-probs ...: numbers per token
  int64_t forward = 0;       // the last block's values
  int64_t head_weight =
      0;  // the gradient of a piece of the vocabulary, before it is added to its slot
  int64_t head_logits = 0;  // of a piece of the vocabulary, and its rows where they are widened
  int64_t head_kept = 0;    // logits that wait for their gradient
  int64_t head_hidden = 0;  // hidden states of targets, their gradients
  int64_t backward = 0;     // the block that is differentiated
};
PassBytes training_pass_bytes(const PassWork& work);

// Of a forward pass that keeps nothing: the fuller of a block and the head, numbers per token
// included.
int64_t scoring_pass_bytes(const PassWork& work);

// The tables of cosines and sines of a model, fp32, which grow by doubling (zero::StageLoop).
int64_t rotation_bytes(const config::ModelShape& shape, int64_t longest);

}  // namespace trireme::plan
